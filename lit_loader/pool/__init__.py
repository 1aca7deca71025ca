"""The parent's side of the workers: feed, watch, replace, stop."""
