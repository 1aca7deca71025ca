"""What a user reads: the texts of errors and warnings, and the repr of public objects."""

from __future__ import annotations

import ast
import functools
import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import lit_loader
from lit_loader import (
    DataLoader,
    LoaderConfig,
    LoaderDataModule,
    LoaderMonitor,
    MixtureDataset,
    MixtureSampler,
    MixtureStream,
    PadCollate,
    SharedSequence,
    TokenBudgetBatchSampler,
    WorkerDiedError,
    WorkerError,
)

PACKAGE = Path(lit_loader.__file__).parent

# --- what is raised and warned of ---

INTERNAL = re.compile(r"\b(slots?|generation|flights?|outbox|board|payload|parcel|pickled apart)\b")
"""Words of the architecture, with which a user can do nothing."""

CALLS = {"warn", "rank_zero_warn", "rank_zero_info", "warn_once", "_tell", "_note", "exit"}

INTERNAL_ERRORS = {"SlotFull", "Refusal"}  # caught, and told in other words


def plain(node: ast.expr) -> str | None:
    """A text as it stands in the source; what is put into it is a §."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "§" for part in node.values
        )
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def told() -> Iterator[tuple[str, str]]:
    """Every literal text that the package raises or warns of, and where."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Yield) and path.name == "loader_config.py":  # raised elsewhere
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", plain(node.value) or "?"  # type: ignore[arg-type]
            call = node.exc if isinstance(node, ast.Raise) else node
            if not (isinstance(call, ast.Call) and call.args):
                continue
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            if not (isinstance(node, ast.Raise) or name in CALLS):
                continue
            text = plain(call.args[0])
            if text is not None and name not in INTERNAL_ERRORS:
                yield f"{path.relative_to(PACKAGE)}:{call.lineno}", text


TEXTS = dict(told())


def faults_of(text: str) -> Iterator[str]:
    """What is wrong with a text."""
    # What is known of a worker (its stacks, its traceback, bad samples) is told line by line.
    if "\n" in re.sub(r"§\n(§|Batch|It has|The worker)", "", text):
        yield "more than one line"
    if "\n" not in text and text.endswith("."):
        yield "several sentences instead of one"
    if "!" in text or "  " in text or text.endswith(" ") or re.search("[,;]§?$", text):
        yield "punctuation"
    if text[0].isupper() and not re.match(r"[A-Z]\w*[a-z][A-Z]", text):  # the name of a class
        yield "begins with a capital"
    if INTERNAL.search(text):
        yield "words of the architecture"


def test_every_text_is_one_plain_line() -> None:
    assert [(w, text, fault) for w, text in TEXTS.items() for fault in faults_of(text)] == []


# --- errors of workers ---


class Ending(TensorDataset):
    """Its third sample ends the worker that reads it."""

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            os._exit(7)
        return super().__getitem__(index)


def test_a_death_has_no_second_traceback() -> None:
    dataset = Ending(torch.arange(8))
    with DataLoader(dataset, 4, num_workers=1, max_worker_restarts=0) as loader:
        with pytest.raises(WorkerDiedError, match="fetching index 2") as caught:
            next(iter(loader))
        shown = "".join(traceback.format_exception(caught.value))
    assert "During handling" not in shown
    assert "BoardRow" not in shown
    message = str(caught.value)
    assert "exited by itself with code 7: something in the dataset, collate_fn or" in message


class Stopping(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        raise StopIteration("at the end")


def test_what_would_end_the_loop_says_so() -> None:
    text = r"raised StopIteration\(at the end\), which would end the loop.*: raise another"
    with pytest.raises(WorkerError, match=text):
        next(iter(DataLoader(Stopping(torch.arange(3)))))


# --- repr ---


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


DATA = TensorDataset(torch.arange(10))
MIXTURE = MixtureDataset({"web": range(30), "books": range(10)}, {"web": 3, "books": 1})

SHOWN: list[tuple[Any, str]] = [
    (
        lambda: DataLoader(DATA, 4, shuffle=True),
        "DataLoader(TensorDataset, batch_size=4, sampler=ShuffledSampler, num_workers=0)",
    ),
    (
        lambda: DataLoader(DATA, batch_size=None, rank=1, num_replicas=2),
        "DataLoader(TensorDataset, batch_size=None, sampler=OrderedSampler, num_workers=0, "
        "rank=1 of num_replicas=2)",
    ),
    (lambda: DataLoader(DATA, shuffle=True).sampler, "ShuffledSampler(TensorDataset, epoch=0)"),
    (
        lambda: iter(DataLoader(Stream(), 2, num_workers=2)),
        "<EpochRun of DataLoader(Stream, batch_size=2, num_workers=2): not begun>",
    ),
    (
        lambda: LoaderConfig(sampler=list(range(1000)), drop_last=True),
        "LoaderConfig(sampler=[0, 1, 2, 3, 4, 5, ...], drop_last=True)",
    ),
    (
        lambda: LoaderDataModule({"train": Stream, "val": DATA}, val={"batch_size": 8}),
        "LoaderDataModule(train: factory Stream, batch_size=1; val: TensorDataset, batch_size=8)",
    ),
    (
        lambda: LoaderMonitor(trace=Path("a/b.json"), keep=5),
        "LoaderMonitor(trace='a/b.json', keep=5)",
    ),
    (
        lambda: MixtureDataset([range(2)] * 10),
        f"MixtureDataset({'; '.join(f'{str(n)!r}: 2 samples, weight 2' for n in range(8))}; "
        "… 10 sources in all)",
    ),
    (
        lambda: MixtureSampler(MIXTURE, epoch_length=7, seed=1),
        f"MixtureSampler({MIXTURE!r}, epoch_length=7, shuffle=True, seed=1)",
    ),
    (
        lambda: MixtureStream({"web": [1], "books": [2]}, [3, 1]),
        "MixtureStream(weights={'books': 1, 'web': 3}, epoch_length=None, exhausted='stop', "
        "seed=0)",
    ),
    (
        lambda: PadCollate({"tokens": 0}),
        "PadCollate(pad_value={'tokens': 0}, pad_to_multiple_of=1)",
    ),
    (lambda: SharedSequence([1, 2]), "SharedSequence(2 records, 40 bytes)"),
    (
        lambda: TokenBudgetBatchSampler([5] * 2000, 10, seed=3),
        "TokenBudgetBatchSampler(2,000 samples in 1,000 batches, max_tokens=10, shuffle=True, "
        "num_replicas=1, seed=3)",
    ),
]


def test_repr() -> None:
    for make, text in SHOWN:
        assert repr(make()) == text


def test_an_iterator_tells_where_it_is() -> None:
    loader = DataLoader(DATA, 4)
    iterator = iter(loader)
    shown = functools.partial(re.sub, r"^.*: |>$", "")
    assert shown(repr(iterator)) == "not begun"
    next(iterator)
    assert shown(repr(iterator)) == "epoch 0, 1 batch given out"
    next(iterator)
    assert shown(repr(iterator)) == "epoch 0, 2 batches given out"
    assert len(list(iterator)) == 1
    assert shown(repr(iterator)) == "epoch 0, ended"


def test_a_config_can_be_made_again_from_its_repr() -> None:
    config = LoaderConfig(batch_size=None, num_workers=3, seed=7, prefetch_next_epoch=False)
    assert eval(repr(config), {"LoaderConfig": LoaderConfig}) == config
