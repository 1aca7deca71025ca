"""The recipe "tabular": Parquet files, read by row groups in the workers, resumed exactly."""

from digits.needs import needs

needs("tabular", "pyarrow")
