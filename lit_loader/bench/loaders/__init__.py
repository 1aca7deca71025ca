"""The loaders that are compared, and how each is opened and kept going."""
