"""What waits for storage, read ahead: several reads at a time in one process."""
