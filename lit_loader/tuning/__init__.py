"""Decides how many workers a loader has, from what its batches cost."""
