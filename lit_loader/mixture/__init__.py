"""Several datasets as one, mixed by weights."""
