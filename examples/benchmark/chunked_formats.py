"""Compares readers of JPEG files with those of chunked formats: LitData's and Mosaic's.

    python examples/benchmark/chunked_formats.py [--samples 2000] [--rounds 3] [--workers 2]
                                                 [--batch-size 16] [--quick]

The same images of 500 × 375, shuffled, decoded by Pillow, cropped and flipped at random, by as many
persistent workers:

- ``lit_loader, files`` and ``torch, files``: a map-style dataset of one file a sample.
- ``LitData``: chunks of `litdata.optimize`, its StreamingDataset and StreamingDataLoader.
- ``Mosaic``: shards of its MDSWriter, its StreamingDataset, torch's DataLoader.
- ``lit_loader, LitData`` and ``lit_loader, Mosaic``: the same datasets, one import changed.

Each is measured in a process of its own, in rounds that take turns; medians over the rounds of

- the time from making dataset and loader to the first batch, imports not counted;
- the time of a batch in the midst of the second epoch;
- the processor time of all processes for a sample of that epoch, and whether the two epochs had
  each sample once;
- a resume from a state of the first epoch's half, and of the second one's, each in another process:
  samples that were never given, and that were given again; the time from making dataset and loader
  to the next batch, in the second epoch. "—": it has no state.

A reader that fails is left out, and the last line of its error is printed below the table.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pickle
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from common import parser
from samples import augmented, jpeg_files
from torch.utils.data import Dataset

from lit_loader import DataLoader

READERS: Final = {
    "lit_loader, files": ("lit_loader", "files"),
    "torch, files": ("torch", "files"),
    "LitData": ("litdata", "litdata"),
    "Mosaic": ("torch", "streaming"),
    "lit_loader, LitData": ("lit_loader", "litdata"),
    "lit_loader, Mosaic": ("lit_loader", "streaming"),
}
"""Whose loader over which format; a format but for files is called as the module that it needs."""

_PACKAGES: Final = ("lit_loader", "torch", "litdata", "mosaicml-streaming", "pillow", "numpy")
_LONGEST: Final = 300.0
"""Seconds that a measurement may take."""
_SKIPPED, _LAST = 10, 5
"""Batches at an epoch's beginning and end that are not clocked."""
_CHUNK: Final = 8 << 20
"""Bytes of a chunk, or a shard."""


class Files(Dataset[Any]):
    """A sample is (an image, its index).

    Args:
        folder: Where the files are.
        length: How many.
    """

    def __init__(self, folder: Path, length: int) -> None:
        self._folder, self._length = folder, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return augmented((self._folder / f"{index}.jpg").read_bytes()), index


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--samples", type=int, default=2000, help="images (2000)")
    options.add_argument("--batch-size", type=int, default=16, help="samples of a batch (16)")
    options.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.quick:
        args.samples, args.rounds, args.batch_size = 96, 1, 4
    if args.workers < 1 or args.samples < 2 * args.batch_size:
        options.error("there must be a worker, and samples for two batches")
    if args.one:
        what, reader, folder = args.one
        print("\n" + json.dumps(_PARTS[what](args, reader, Path(folder))), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="formats", ignore_cleanup_errors=True) as folder:
        _compare(args, folder)


def _compare(args: argparse.Namespace, folder: str) -> None:
    failed: dict[str, str] = {}
    readers = []
    for reader, (_, form) in READERS.items():
        if form == "files" or importlib.util.find_spec(form) is not None:
            readers.append(reader)
        else:
            failed[reader] = f"{form} is not installed"
    for form in dict.fromkeys(READERS[reader][1] for reader in readers):
        _measure(args, "write", form, folder, failed)
    readers = [reader for reader in readers if READERS[reader][1] not in failed]
    found: dict[str, list[dict[str, Any]]] = {reader: [] for reader in readers}
    for number in range(args.rounds):
        first = number % len(readers)
        for reader in readers[first:] + readers[:first]:
            one: dict[str, Any] = {}
            for part in ("speed", "begin", "go on 1", "go on 2"):
                one |= {} if reader in failed else _measure(args, part, reader, folder, failed)
            found[reader] += [] if reader in failed else [one]
    print(f"{args.samples} images, batches of {args.batch_size}, {args.workers} workers; ", end="")
    print(", ".join(_versions()))
    _show({reader: rounds for reader, rounds in found.items() if rounds and reader not in failed})
    for reader, error in failed.items():
        print(f"{reader}: left out: {error}")


def _measure(
    args: argparse.Namespace, what: str, reader: str, folder: str, failed: dict[str, str]
) -> dict[str, Any]:
    """Do a part in a process of its own; one that fails is noted."""
    command = [sys.executable, __file__, "--one", what, reader]
    command += [folder, f"--samples={args.samples}", f"--workers={args.workers}"]
    # What the libraries put aside lies in temporary folders, so it is removed with this one. With a
    # session of its own, what hangs is ended with all that it has started.
    with subprocess.Popen(
        [*command, f"--batch-size={args.batch_size}"],
        env={**os.environ, "TMPDIR": folder},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=_LONGEST)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            failed[reader] = f"{what}: not over after {_LONGEST:.0f} s"
            return {}
    if process.returncode:
        failed[reader] = f"{what}: {(err.strip().splitlines() or ['no word'])[-1]}"
        return {}
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def _write(args: argparse.Namespace, form: str, folder: Path) -> dict[str, Any]:
    """Write the images in a format; the files first, of which the others are made."""
    own = folder / form
    if form == "files":
        own.mkdir()
        images = jpeg_files()
        for index in range(args.samples):
            (own / f"{index}.jpg").write_bytes(images[index % len(images)])
    elif form == "litdata":
        import litdata

        litdata.optimize(
            partial(_sample, folder / "files"),
            list(range(args.samples)),
            str(own),
            chunk_bytes=_CHUNK,
            num_workers=1,
        )
    else:
        from streaming import MDSWriter

        columns = {"image": "bytes", "index": "int"}
        with MDSWriter(out=str(own), columns=columns, size_limit=_CHUNK) as writer:
            for index in range(args.samples):
                writer.write(_sample(folder / "files", index))
    return {}


def _sample(folder: Path, index: int) -> dict[str, Any]:
    return {"image": (folder / f"{index}.jpg").read_bytes(), "index": index}


def _decoded(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    return augmented(sample["image"]), sample["index"]


def _dataset(args: argparse.Namespace, form: str, folder: Path) -> Any:
    if form == "files":
        return Files(folder, args.samples)
    if form == "litdata":
        import litdata

        return litdata.StreamingDataset(str(folder), shuffle=True, transform=_decoded)
    import streaming

    class Decoded(streaming.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: Any) -> Any:
            return _decoded(super().__getitem__(at))

    return Decoded(local=str(folder), shuffle=True, batch_size=args.batch_size)


class _Reader:
    """An open reader.

    Args:
        args: The program's options.
        name: Which.
        folder: Where the formats are.
    """

    def __init__(self, args: argparse.Namespace, name: str, folder: Path) -> None:
        loader, form = READERS[name]
        kinds: dict[str, Any] = {"lit_loader": DataLoader, "torch": torch.utils.data.DataLoader}
        if loader == "litdata":
            import litdata

            kinds[loader] = litdata.StreamingDataLoader
        if form != "files":
            importlib.import_module(form)
        self.began = time.perf_counter()
        self._dataset = _dataset(args, form, folder / form)
        self.loader = kinds[loader](
            self._dataset,
            batch_size=args.batch_size,
            num_workers=args.workers,
            persistent_workers=True,
            multiprocessing_context="fork",  # which hands over a class of a function
            **({"shuffle": True} if form == "files" else {}),
        )
        # Torch's loader has no state; Mosaic's dataset has one that a loop of the user's keeps.
        self._by_hand = loader == "torch" and form == "streaming"

    def state(self, samples: int) -> Any:
        """Give the state behind so many samples; None: there is none."""
        if self._by_hand:
            return self._dataset.state_dict(samples, from_beginning=True)
        return self.loader.state_dict() if hasattr(self.loader, "state_dict") else None

    def resume(self, state: Any) -> None:
        """Go on there."""
        (self._dataset if self._by_hand else self.loader).load_state_dict(state)

    def indices(self) -> Iterable[list[int]]:
        """Give the indices of each batch of an epoch."""
        return (batch[1].tolist() for batch in self.loader)


def tally(seen: Iterable[int], length: int) -> tuple[int, int]:
    """Give how many samples of an epoch are missing, and how many came again."""
    count = Counter(seen)
    return sum(index not in count for index in range(length)), count.total() - len(count)


def _processor() -> float:
    """Processor seconds of this process and all below it that are alive now."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _speed(args: argparse.Namespace, name: str, folder: Path) -> dict[str, Any]:
    reader = _Reader(args, name, folder)
    batches = iter(reader.indices())
    seen = [*next(batches)]
    first = time.perf_counter() - reader.began
    for batch in batches:
        seen += batch
    wrong = [tally(seen, args.samples)]
    before, seen, times = _processor(), [], []
    for batch in reader.indices():
        seen += batch
        times.append(time.perf_counter())
    spent = _processor() - before
    wrong.append(tally(seen, args.samples))
    begin, end = (_SKIPPED, -_LAST) if len(times) > 2 * (_SKIPPED + _LAST) else (0, -1)
    clocked = times[begin:end]
    lost, twice = (sum(numbers) for numbers in zip(*wrong, strict=True))
    return {
        "first batch, ms": 1e3 * first,
        "µs a batch": 1e6 * (clocked[-1] - clocked[0]) / (len(clocked) - 1),
        "processor, µs a sample": 1e6 * spent / args.samples,
        "each sample once": f"no: {lost} lost, {twice} twice" if lost or twice else "yes",
    }


def _begin(args: argparse.Namespace, name: str, folder: Path) -> dict[str, Any]:
    """Note, at the half of two epochs, what is needed to go on there."""
    reader = _Reader(args, name, folder)
    half = args.samples // args.batch_size // 2
    for epoch in (1, 2):
        # It stays open and is read to its end, as in a training that saves a checkpoint.
        batches = iter(reader.indices())
        seen = [index for batch in islice(batches, half) for index in batch]
        (folder / f"state {epoch}").write_bytes(pickle.dumps((seen, reader.state(len(seen)))))
        if epoch == 1:
            deque(batches, maxlen=0)
    return {}


def _go_on(epoch: int, args: argparse.Namespace, name: str, folder: Path) -> dict[str, Any]:
    """Have the other half, in another process."""
    seen, state = pickle.loads((folder / f"state {epoch}").read_bytes())
    lost: Any = "—"
    twice: Any = "—"
    first: Any = "—"
    if state is not None:
        reader = _Reader(args, name, folder)
        reader.resume(state)
        for batch in reader.indices():
            if first == "—":
                first = time.perf_counter() - reader.began
            seen += batch
        lost, twice = tally(seen, args.samples)
    told = {f"epoch {epoch}, resumed: lost": lost, "twice" + " " * (epoch - 1): twice}
    return told if epoch == 1 else {**told, "next batch, s": first}


_PARTS: Final[dict[str, Callable[[argparse.Namespace, str, Path], dict[str, Any]]]] = {
    "write": _write,
    "speed": _speed,
    "begin": _begin,
    **{f"go on {epoch}": partial(_go_on, epoch) for epoch in (1, 2)},
}


def _versions() -> Iterable[str]:
    yield f"Python {platform.python_version()}"
    for name in _PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _show(found: dict[str, list[dict[str, Any]]]) -> None:
    """Print a table: a row a reader, medians of numbers, and all that differs of words."""
    names = list(dict.fromkeys(name for rounds in found.values() for one in rounds for name in one))
    print("\n| reader | " + " | ".join(name.strip() for name in names) + " |")
    print("| --- | " + " | ".join(["---:"] * len(names)) + " |")
    for reader, rounds in found.items():
        cells = " | ".join(_cell([one[name] for one in rounds]) for name in names)
        print(f"| {reader} | {cells} |")


def _cell(values: list[Any]) -> str:
    if any(isinstance(value, str) for value in values):
        return "; ".join(dict.fromkeys(map(str, values)))
    median = statistics.median(values)
    return f"{median:,.0f}" if median >= 100 or median == int(median) else f"{median:,.3g}"


if __name__ == "__main__":
    main()
