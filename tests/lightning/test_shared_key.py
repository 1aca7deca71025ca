"""Datasets that are built once, by an option of the data module; for ranks: test_one_import.py."""

import functools
from pathlib import Path
from typing import Any

from lit_loader import LoaderDataModule
from tests.support.bulk import Bulk, builders, inode_of


def inode(data: Any) -> int:
    return inode_of(data.array)


def test_factories(tmp_path: Path) -> None:
    notes = tmp_path / "built"

    def module(key: str | None, **arguments: Any) -> LoaderDataModule:
        factory = functools.partial(Bulk, notes, **arguments)
        made = LoaderDataModule({"train": factory, "val": [factory, factory]}, shared_key=key)
        made.setup("fit")
        return made

    one, two = module("v1"), module("v1")
    assert inode(one.dataset("train")) == inode(two.dataset("val")[1]) != 0
    assert inode(module("v1", start=3).dataset("train")) != inode(one.dataset("train"))
    assert inode(module(None).dataset("train")) == 0
    assert len(builders(notes)) == 1 + 1 + 3


class Own(LoaderDataModule):
    """Makes its datasets itself."""

    splits = ("train", "test")

    def __init__(self, notes: Path, start: int = 0, label: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.save_hyperparameters({"label": label})
        self.notes, self.start = notes, start

    def make_dataset(self, split: str) -> Bulk:
        return Bulk(self.notes, self.start)


def test_a_subclass(tmp_path: Path) -> None:
    notes = tmp_path / "built"
    data = Own(notes, shared_key="v1", loader={"batch_size": 3})
    train = data.dataset("train")
    same = Own(notes, shared_key="v1", loader={"batch_size": 2}).dataset("train")
    assert inode(train) == inode(same) != 0
    others = [
        data.dataset("test"),
        Own(notes, 1, shared_key="v1").dataset("train"),
        Own(notes, label="other", shared_key="v1").dataset("train"),
        Own(notes, shared_key="v2").dataset("train"),
    ]
    assert len({inode(train), *map(inode, others)}) == 5
    assert len(builders(notes)) == 5
