"""Threads as workers."""
