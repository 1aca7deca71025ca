"""The shared memory that batches travel in, and who holds which part of it."""
