"""An application of lit_loader: a classifier of handwritten digits."""

from digits.needs import needs

needs("digits", "sklearn", "matplotlib")
