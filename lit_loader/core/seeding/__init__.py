"""Seeds, and the random generators that are set from them."""
