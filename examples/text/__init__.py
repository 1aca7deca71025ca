"""Language models over the source files that come with Python: recipes text and text_…."""
