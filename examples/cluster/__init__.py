"""Training on a Ray cluster: recipe ray_train.py."""
