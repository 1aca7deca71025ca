"""Readers of an iterable dataset."""
