"""Parquet files: scikit-learn's breast cancer data, 569 real patients, 30 measurements of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

TRAIN_ROWS, GROUP_ROWS = 384, 16
TARGET = "malignant"


def write(root: Path) -> None:
    """Writes ``root/<split>.parquet``: a float32 column for each measurement, and the target.

    Measurements are brought to mean 0 and standard deviation 1 by those of the training rows.
    """
    source = load_breast_cancer()
    names = [str(name).replace(" ", "_") for name in source.feature_names]
    target = (source.target == 0).astype(np.int64)  # there 0 is malignant, 1 benign
    train, rest = train_test_split(
        np.arange(len(target)), train_size=TRAIN_ROWS, stratify=target, random_state=0
    )
    val, test = train_test_split(rest, test_size=0.5, stratify=target[rest], random_state=0)
    mean, deviation = source.data[train].mean(0), source.data[train].std(0)
    features = ((source.data - mean) / deviation).astype(np.float32)
    for split, rows in {"train": train, "val": val, "test": test}.items():
        columns = dict(zip(names, features[rows].T, strict=True))
        table = pa.table({**columns, TARGET: target[rows]})
        pq.write_table(table, root / f"{split}.parquet", row_group_size=GROUP_ROWS)
