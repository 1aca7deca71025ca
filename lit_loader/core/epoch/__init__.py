"""One pass over the data: the iterators that ``iter(loader)`` gives, and what they are made of."""
