"""One pass over the data, as the consumer sees it: in this process, or by workers."""
