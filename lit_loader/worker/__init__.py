"""The worker process, and the ways of starting one."""
