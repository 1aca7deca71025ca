"""Making one batch: fetch its samples, collate them."""
