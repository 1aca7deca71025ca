"""What Hydra finds of the package: its groups of configurations and their schema."""
