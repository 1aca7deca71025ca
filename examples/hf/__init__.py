"""The recipe "huggingface": a `datasets` Dataset from Parquet files."""

from digits.needs import needs

needs("huggingface", "datasets")
