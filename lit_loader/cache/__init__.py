"""Samples kept as they were first made: in memory that all workers share, and on disk."""
