"""Results as text, pictures and files."""
