"""``lit-loader-top``: what the loaders of running trainings are at, seen from outside."""
