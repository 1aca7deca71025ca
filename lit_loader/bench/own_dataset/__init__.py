"""The user's own dataset: a grid of settings measured, and advice from it."""
