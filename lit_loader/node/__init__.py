"""What the processes of one user on one machine have in common: a dataset, built by one of them."""
