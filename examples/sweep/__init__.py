"""The recipe "sweep": which number of workers and which prefetching suit this machine."""
