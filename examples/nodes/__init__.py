"""The recipe "nodes": a pipeline of torchdata's nodes as a stream."""

from digits.needs import needs

needs("nodes", "torchdata.nodes", "PIL")
