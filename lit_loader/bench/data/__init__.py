"""The datasets that are read."""
