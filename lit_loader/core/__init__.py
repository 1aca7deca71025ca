"""Ring one: what one must understand."""
