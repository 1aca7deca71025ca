"""``lit-loader-bench``: measures the loaders that are installed on the same work, side by side."""
