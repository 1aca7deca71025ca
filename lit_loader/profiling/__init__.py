"""What batches have cost: recorded, summed up, put into words, drawn."""
