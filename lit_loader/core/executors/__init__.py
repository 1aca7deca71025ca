"""The workers of a loader: the processes, and how the parent feeds, watches and replaces them."""
