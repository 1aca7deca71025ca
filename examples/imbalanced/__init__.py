"""Rare classes drawn as often as common ones, in two processes: recipe imbalanced."""
