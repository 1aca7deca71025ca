"""Uses of the operating system: processes, files, signals, limits."""
