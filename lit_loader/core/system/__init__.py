"""What the operating system is asked for: processes, files, signals, limits."""
