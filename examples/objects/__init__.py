"""Samples in object storage, read through fsspec: recipe objects."""
