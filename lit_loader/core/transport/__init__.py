"""What crosses the border between the parent and a worker, and how it is written down."""
