"""Deciding which samples a batch holds: orders, shards, epochs."""
