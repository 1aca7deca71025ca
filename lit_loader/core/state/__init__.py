"""What a state of the loader holds, how it is written, and how a foreign one is read."""
