"""Workers that begin before an iterator does."""
