"""Datasets of our own: kept samples, shared data, mixtures."""
