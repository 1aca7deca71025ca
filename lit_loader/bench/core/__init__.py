"""What every part of the benchmark shares: settings, names, results."""
