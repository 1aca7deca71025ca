"""Several datasets mixed by weights: recipe mixture."""
