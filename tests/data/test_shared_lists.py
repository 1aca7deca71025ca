"""The ``share_lists`` option: long lists of the dataset, once in memory for all workers."""

import copy
import logging
import operator
import pickle
import random
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from lit_loader import DataLoader
from lit_loader.data.shared_lists import LONG, SharedList, SharedLists, SharedTuple, shared
from tests.support.samples import METHODS, OfLength, uncollated

N = LONG + 5

LISTS: dict[str, Any] = {
    "ints": list(range(N)),
    "floats": [n / 3 for n in range(N)],
    "strings": [f"file {n}" for n in range(N)],
    "large numbers": [2**70 + n for n in range(N)],
    "tuples": [(f"file {n}", n, (None, True)) for n in range(N)],
    "mixed": [n if n % 2 else str(n) for n in range(N)],
    "a tuple": tuple(range(N)),
    "dicts": [{"name": f"file {n}", "box": [n, n + 0.5], "of": ({"a": n},)} for n in range(N)],
    "lists": [[n, [str(n)], {}] for n in range(N)],
    "bytes": [b"%d" % n for n in range(N)],
    "bools": [n % 3 == 0 for n in range(N)],
}


@pytest.mark.parametrize("name", LISTS)
def test_it_reads_alike(name: str) -> None:
    plain = LISTS[name]
    view = shared(plain)
    assert type(view) is (SharedTuple if type(plain) is tuple else SharedList)
    assert len(view) == N
    for index in (0, 7, -1, -N):
        assert view[index] == plain[index]
        assert isinstance(view[index], type(plain[index]))
    for part in (slice(3, 9), slice(None, None, -4000), slice(5, 5)):
        assert view[part] == plain[part]
        assert type(view[part]) is type(plain)
    assert list(view) == list(plain)
    assert view == plain
    assert plain == view
    assert view != plain[:-1]
    assert view + plain[:1] == plain + plain[:1]
    assert plain[:1] + view == plain[:1] + plain
    assert view == shared(plain)
    assert plain[9] in view
    assert view.index(plain[9]) == plain.index(plain[9])
    assert view.count(plain[9]) == plain.count(plain[9])
    for bad in (N, -N - 1):
        with pytest.raises(IndexError):
            view[bad]
    with pytest.raises(TypeError):
        view[0] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        view.append(1)


WRITES: dict[str, Any] = {
    "dict item": lambda r: operator.setitem(r, "n", 5),
    "dict del": lambda r: operator.delitem(r, "n"),
    "update": lambda r: r.update(n=5),
    "pop": lambda r: r.pop("n"),
    "setdefault": lambda r: r.setdefault("m", 1),
    "or": lambda r: operator.ior(r, {"m": 1}),
    "list item": lambda r: operator.setitem(r["in"], 0, 1),
    "append": lambda r: r["in"].append(1),
    "extend": lambda r: operator.iadd(r["in"], [1]),
    "sort": lambda r: r["in"].sort(),
    "times": lambda r: operator.imul(r["in"], 2),
    "deep": lambda r: r["of"][0]["a"].append(1),
}


@pytest.mark.parametrize(
    "write",
    [
        lambda held: held.append(1),
        lambda held: held.sort(),
        lambda held: random.shuffle(held),
        lambda held: operator.delitem(held, 0),
        lambda held: operator.iadd(held, [1]),
    ],
)
def test_the_list_itself_refuses_to_be_changed(write: Any) -> None:
    plain = [1, 3, 2]
    view = shared(plain)
    with pytest.raises(TypeError, match="this list belongs to what all workers share"):
        write(view)
    assert view == plain
    write(view.copy())


@pytest.mark.parametrize("name", WRITES)
def test_a_record_refuses_to_be_changed(name: str) -> None:
    plain = {"n": 1, "in": [3, 2], "of": ({"a": []},)}
    view = shared([plain])
    with pytest.raises(TypeError, match=r"belongs to what all workers share \(share_lists=True\)"):
        WRITES[name](view[0])
    assert view[0] == plain
    for copied in (copy.deepcopy(view[0]), pickle.loads(pickle.dumps(view[0]))):
        WRITES[name](copied)
        assert copied != plain
    for shallow in (view[0].copy(), copy.copy(view[0]), dict(view[0]), view[0] | {}):
        assert shallow == plain and type(shallow) is dict
    assert type(view[0]["in"] + [1]) is type(copy.copy(view[0]["in"])) is list


class Records(OfLength):
    """Gives its records as they are."""

    length = 4

    def __init__(self) -> None:
        self.records = [{"n": n, "box": [n, n + 0.5]} for n in range(LONG)]

    def __getitem__(self, index: int) -> Any:
        return self.records[index]


@pytest.mark.parametrize("collate", [None, uncollated], ids=["default", "none"])
def test_records_arrive_as_plain_ones(collate: Any) -> None:
    batches = [
        list(DataLoader(Records(), 2, num_workers=1, collate_fn=collate, share_lists=share))
        for share in (False, True)
    ]
    assert repr(batches[0]) == repr(batches[1])
    sample: Any = batches[1][0] if collate is None else batches[1][0][0]
    assert type(sample) is dict and type(sample["box"]) is list


class Files(OfLength):
    """Long lists in places of all kinds; samples tell what the worker sees."""

    length = 12

    def __init__(self, length: int = N) -> None:
        self.files = [f"file {n}" for n in range(length)]
        self.same = self.files
        self.parts = {"train": {"labels": tuple(range(length))}}
        self.inner: Any = Subset(TensorDataset(torch.arange(length)), list(range(length)))
        self.records = [{"n": n} for n in range(length)]
        self.sets = [{n} for n in range(length)]
        self.by_name = {f"file {n}": n for n in range(length)}
        self.short = list(range(LONG - 1))

    def __getitem__(self, index: int) -> Any:
        kinds = [
            type(each).__name__
            for each in (
                *(self.files, self.same, self.parts["train"]["labels"]),
                *(self.inner.indices, self.records, self.sets, self.by_name, self.short),
            )
        ]
        values = (self.files[index], self.parts["train"]["labels"][-index - 1])
        assert self.by_name[f"file {index}"] == index
        assert self.records[index]["n"] == index
        return kinds, self.same is self.files, *values, self.inner[index][0].item()


SHARED = [*("SharedList", "SharedList", "SharedTuple", "SharedList", "SharedList", "list")]
SHARED += ["dict", "list"]


PLAIN = [*("list", "list", "tuple", "list", "list", "list", "dict", "list")]


@pytest.mark.parametrize(
    ("method", "share"), [*((method, True) for method in METHODS), ("fork", False)]
)
def test_in_workers_only_and_if_asked_for(method: str, share: bool) -> None:
    dataset = Files()
    before = {name: id(value) for name, value in vars(dataset).items()}
    with DataLoader(
        dataset,
        4,
        num_workers=2,
        multiprocessing_context=method,
        collate_fn=uncollated,
        share_lists=share,
    ) as loader:
        for _ in range(1 if method == "spawn" else 2):
            samples = [sample for batch in loader for sample in batch]
            assert samples == [
                (SHARED if share else PLAIN, True, f"file {n}", N - 1 - n, n)
                for n in range(len(dataset))
            ]
    assert {name: id(value) for name, value in vars(dataset).items()} == before
    assert type(dataset.files) is type(dataset.inner.indices) is list


def test_what_was_done_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lit_loader.share"):
        SharedLists(Files())
    first, *others = [record.message for record in caplog.records]
    assert first == f"share_lists: Files.files, {N} records, takes 0.3 MB for all workers"
    assert [message.split(",")[0] for message in others] == [
        "share_lists: Files.parts['train']['labels']",
        "share_lists: Files.inner.indices",
        "share_lists: Files.records",
        "share_lists: Files.sets is left alone: its records hold other objects; SharedSequence "
        "takes any records",
        "share_lists: Files.by_name is left alone: it is a dict; SharedSequence takes any records",
    ]
