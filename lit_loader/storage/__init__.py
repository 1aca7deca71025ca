"""Reads ahead of samples that wait for storage."""
