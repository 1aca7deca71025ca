"""Habits of programs that are written for torch's loader."""
