"""Worker processes, as the training process sees them: start, feed, watch, replace, stop."""
