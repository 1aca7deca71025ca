"""What is said of workers that hang, grow, or were forked with what does not survive it."""
