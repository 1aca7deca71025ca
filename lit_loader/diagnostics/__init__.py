"""What is said of workers that hang, grow, or were forked beside what does not survive it."""
