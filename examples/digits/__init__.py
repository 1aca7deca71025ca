"""An application of lit_loader: a classifier of handwritten digits."""
