"""JSON lines become batches of packed tokens: two sources by weights, on any number of ranks.

    python examples/language_model.py

Two ranks read ten batches each, and one rank continues. Copy this file, and change what is read.
"""

import json
import shutil
from pathlib import Path

from torch.utils.data import IterableDataset

from lit_loader import DataLoader, MixtureStream, PackedStream, get_shard, merge_states

LENGTH = 32  # tokens of a sequence
SHARDS = 12  # a multiple of the ranks, at least ranks x workers, at most the files of a source


class Documents(IterableDataset):
    """JSON lines in files; `without` names documents that are left out."""

    def __init__(self, files, without=()):
        self.files, self.without = files, frozenset(without)

    def __iter__(self):
        return DocumentReader(self)


class DocumentReader:
    """One shard's way through its files; its state is a file and an offset in it."""

    def __init__(self, documents):
        self.shard = get_shard()
        index, count = self.shard
        self.files, self.without = documents.files[index::count], documents.without
        self.number = self.offset = 0

    def __iter__(self):
        return self

    def __next__(self):
        while self.number < len(self.files):
            path = self.files[self.number]
            name = f"{path.name}:{self.offset}"
            with path.open("rb") as file:
                file.seek(self.offset)
                line = file.readline()
            if not line:
                self.number, self.offset = self.number + 1, 0
                continue
            self.offset += len(line)  # before what may fail, so that the next call continues
            if name not in self.without:
                return self.tokens(line, name)
        raise StopIteration

    def tokens(self, line, name):
        try:
            return list(json.loads(line)["text"].encode())
        except ValueError as error:
            index, count = self.shard
            raise ValueError(f"bad line at {name}, shard {index} of {count}: {error}") from error

    def state_dict(self):
        return {"number": self.number, "offset": self.offset}

    def load_state_dict(self, state):
        self.number, self.offset = state["number"], state["offset"]


def make_loader(folder, num_workers, rank=0, ranks=1, without=(), **options):
    def source(kind):
        return PackedStream(Documents(sorted(folder.glob(f"{kind}-*.jsonl")), without), LENGTH)

    mixture = MixtureStream(
        {"web": source("web"), "books": source("books")},
        weights={"web": 3, "books": 1},
        stopping_strategy="all_exhausted_without_replacement",
    )
    return DataLoader(
        mixture,
        batch_size=4,
        num_workers=num_workers,
        num_shards=SHARDS,
        num_replicas=ranks,
        rank=rank,
        uneven_ranks="keep",  # each document once; ranks may differ by some batches
        seed=1,
        **options,
    )


def resumed(folder):
    """Two ranks with two workers each save their states; one rank with three workers continues."""
    ranks = [make_loader(folder, 2, rank, 2) for rank in range(2)]  # in a job: one in each process
    iterators = [iter(loader) for loader in ranks]
    read = [next(iterator) for _ in range(10) for iterator in iterators]
    state = merge_states([loader.state_dict() for loader in ranks])  # gather_object, in a job
    for loader in ranks:
        loader.close()
    with make_loader(folder, 3) as loader:
        loader.load_state_dict(state)
        return [*read, *loader]


def write_documents(folder):
    """Write documents of two kinds, of different lengths."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for kind, files in ("web", 24), ("books", 12):
        for number in range(files):
            texts = [f"{kind} {number} {line} " * (1 + line % 3) for line in range(12)]
            lines = [json.dumps({"text": text}) + "\n" for text in texts]
            (folder / f"{kind}-{number:02}.jsonl").write_text("".join(lines))


def main():
    folder = Path("outputs/language_model")
    write_documents(folder)
    with make_loader(folder, 2) as loader:
        whole = [row for batch in loader for row in batch["tokens"].tolist()]
        print(f"{loader.statistics().tokens_per_second:.0f} tokens per second")
    again = [row for batch in resumed(folder) for row in batch["tokens"].tolist()]
    print(f"{len(whole)} sequences, the same after a resume: {sorted(again) == sorted(whole)}")


if __name__ == "__main__":
    main()
