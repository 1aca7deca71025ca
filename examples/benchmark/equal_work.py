"""Equal work for the ranks of a step: how long they wait for the slowest, and what that costs.

    python examples/benchmark/equal_work.py [--rounds 3] [--steps 12] [--quick]
    python examples/benchmark/equal_work.py --simulate

Two processes (gloo) train a small transformer on texts whose lengths are lognormal(5, 1), clipped
to 16 … 1,024: four batches of 8 samples each in a step. Each way of making batches gives the same
samples, as far as it can, and takes turns with the others. Tokens a second, padding not counted:
by the clock, and by the processor time of the slower process in each step, which other work on the
machine does not change. ``--simulate`` computes for 8, 64 and 1,024 ranks how much of the time
they wait.
"""

import itertools
import os
import socket
import time
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from common import in_turns, parser, table
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import Dataset

from lit_loader import (
    BalancedBatchSampler,
    DataLoader,
    PackCollate,
    PackingBatchSampler,
    PadCollate,
    TokenBudgetBatchSampler,
)

RANKS, SIZE, ACCUMULATED, WIDTH, WORDS = 2, 8, 4, 64, 256
GROUP = RANKS * ACCUMULATED


def lengths(count, seed=0):
    drawn = np.random.default_rng(seed).lognormal(5, 1, count)
    return np.clip(drawn, 16, 1024).astype(np.int64)


class Texts(Dataset):
    """Each word follows from the one before, most times: something to be learnt."""

    def __init__(self, count):
        self.lengths = lengths(count)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        steps = rng.choice([1, 7], int(self.lengths[index]), p=[0.9, 0.1])
        return torch.from_numpy(steps.cumsum() % WORDS)


# --- the ways of making batches: a sampler for all ranks, and whether a batch is padded ---


class LengthGrouped:
    """As ``LengthGroupedSampler``: long samples together within 50 shuffled batches."""

    def __init__(self, of, size, ranks, seed=0):
        order = np.random.default_rng(seed).permutation(len(of))
        block = 50 * size * ranks
        blocks = (order[start : start + block] for start in range(0, len(of), block))
        order = np.concatenate([each[np.argsort(-of[each], kind="stable")] for each in blocks])
        steps = order[: len(order) // (size * ranks) * size * ranks].reshape(-1, size, ranks)
        self.batches = steps.transpose(0, 2, 1).reshape(-1, size).tolist()

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def ways(of):
    """Samplers by name, each with whether its batches are padded."""
    tokens = int(SIZE * of.mean())
    return {
        "shuffled, padded": (Shuffled(of), True),
        "length groups, padded": (LengthGrouped(of, SIZE, RANKS), True),
        "balanced, padded": (BalancedBatchSampler(of, SIZE, GROUP), True),
        "token budget, padded": (TokenBudgetBatchSampler(of, tokens, num_replicas=RANKS), True),
        "shuffled, not padded": (Shuffled(of), False),
        "balanced, not padded": (BalancedBatchSampler(of, SIZE, GROUP), False),
        "packed": (PackingBatchSampler(of, tokens if tokens > 1024 else 1024, num_replicas=RANKS),
                   False),
    }  # fmt: skip


class Shuffled:
    """Batches of the order in which the balanced ones' groups are."""

    def __init__(self, of):
        self.loader = DataLoader(of, SIZE, shuffle=True, seed=0)

    def __iter__(self):
        return (self.loader.indices_of(0, number) for number in range(len(self)))

    def __len__(self):
        return len(self.loader)


# --- the model: its work is in proportion to the tokens it is given ---


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(
            nn.Linear(WIDTH, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, WIDTH)
        )

    def forward(self, x, ends):
        """x: rows × tokens × width; ends: of the sequences in a row, None: each row is one."""
        parts = self.qkv(self.norm(x))
        pieces = [parts] if ends is None else parts.tensor_split(ends, dim=1)
        seen = [
            scaled_dot_product_attention(*piece.chunk(3, dim=-1), is_causal=True)
            for piece in pieces
        ]
        x = x + self.out(torch.cat(seen, dim=1))
        return x + self.wide(self.second(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(1024, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(2)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, places, ends):
        x = self.words(tokens) + self.places(places)
        for layer in self.layers:
            x = layer(x, ends)
        return self.head(x)


def loss_of(model, batch, padded):
    """The sum over all tokens that are predicted, and how many they are."""
    if padded:
        tokens, of = batch.values, batch.lengths
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        ends, last = None, places[:, 1:] >= of[:, None]
        targets = tokens[:, 1:].masked_fill(last, -100)
    else:
        tokens, places = batch.values[None], batch.position_ids[None]
        ends = batch.cu_seqlens[1:-1].long()
        targets = tokens[:, 1:].masked_fill(places[:, 1:] == 0, -100)
    found = model(tokens, places, ends)[:, :-1]
    total = cross_entropy(found.flatten(0, 1), targets.flatten(), reduction="sum")
    return total, int((targets != -100).sum())


def train(data, sampler, padded, steps, rank):
    """Tokens of all ranks, seconds, those of the busier rank in each step, losses of the steps."""
    collate = PadCollate() if padded else PackCollate()
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate, num_replicas=RANKS,
                        rank=rank, seed=0)  # fmt: skip
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    batches, losses, tokens, slowest = iter(loader), [], 0, 0.0
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        sums, busy = torch.zeros(2), time.process_time()
        for batch in itertools.islice(batches, ACCUMULATED):
            total, count = loss_of(model, batch, padded)
            total.backward()
            sums += torch.tensor([total.item(), count])
        times = torch.zeros(RANKS)
        times[rank] = time.process_time() - busy
        gradients = [each.grad.flatten() for each in model.parameters()]
        gradients = torch.cat([*gradients, times, sums])
        dist.all_reduce(gradients)  # where the ranks wait for each other
        sums, place = gradients[-2:], 0
        slowest += float(gradients[-2 - RANKS : -2].max())
        for each in model.parameters():
            each.grad = gradients[place : place + each.numel()].view_as(each) / sums[1]
            place += each.numel()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(sums[0] / sums[1]))
        tokens += int(sums[1])
    return tokens, time.perf_counter() - began, slowest, losses


def run(rank, port, steps, rounds, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    data = Texts(steps * GROUP * SIZE)
    losses, busy = {}, {}

    def turn(name):
        sampler, padded = ways(data.lengths)[name]
        enough = min(steps, len(sampler) // GROUP)
        tokens, seconds, slowest, losses[name] = train(data, sampler, padded, enough, rank)
        busy.setdefault(name, []).append(tokens / slowest)
        return tokens / seconds

    found = in_turns({name: partial(turn, name) for name in ways(data.lengths)}, rounds)
    if rank == 0:
        queue.put((found, {name: max(rates) for name, rates in busy.items()}, losses))
    dist.destroy_process_group()


def measured(args):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    steps, rounds = (2, 1) if args.quick else (args.steps, args.rounds)
    ranks = [context.Process(target=run, args=(rank, port, steps, rounds, queue))
             for rank in range(RANKS)]  # fmt: skip
    for each in ranks:
        each.start()
    found, busy, losses = queue.get()
    for each in ranks:
        each.join()
    first = "shuffled, padded"
    rows = [
        [name, rate, rate / found[first], busy[name] / busy[first], losses[name][0],
         losses[name][-1]]
        for name, rate in found.items()
    ]  # fmt: skip
    head = ["batches", "tokens/s", "beside the first", "by processor time", "first loss", "last"]
    table(head, rows)
    for name in ("balanced, padded", "balanced, not padded"):
        apart = max(abs(a - b) for a, b in zip(losses[name], losses[first], strict=True))
        print(f"{name}: losses of the steps differ by at most {apart:.1e} from those shuffled")


# --- how long ranks wait, computed from the lengths alone ---


def waits(sums, ranks, accumulated):
    """Share of the time that ranks wait, if all wait behind a step's batches, and behind each."""
    steps = sums[: len(sums) // (ranks * accumulated) * ranks * accumulated]
    steps = steps.reshape(-1, accumulated, ranks)
    once = steps.sum(axis=1)
    each = steps.max(axis=2).sum()
    return 1 - once.mean() / once.max(axis=1).mean(), 1 - steps.sum() / ranks / each


def simulated(quick):
    rows = []
    for ranks, accumulated in itertools.product((8,) if quick else (8, 64, 1024), (1, 4, 16)):
        group, size = ranks * accumulated, 16
        of = lengths(max(20_000, 4 * group * size))
        samplers = {
            "shuffled": np.random.default_rng(0).permutation(len(of)),
            "length groups": np.concatenate(LengthGrouped(of, size, ranks).batches),
            "balanced": np.concatenate(
                [batch for batch in BalancedBatchSampler(of, size, group) if len(batch) == size]
            ),
        }
        for name, order in samplers.items():
            batches = of[order[: len(order) // size * size]].reshape(-1, size).sum(axis=1)
            behind_step, behind_batch = waits(batches, ranks, accumulated)
            rows.append([f"{ranks:,} ranks × {accumulated}, {name}", 100 * behind_step,
                         100 * behind_batch])  # fmt: skip
    table(["", "waits behind each step, %", "behind each batch, %"], rows)


def main():
    options = parser(__doc__, rounds=3)
    options.add_argument("--steps", type=int, default=12, help="steps of each turn (12)")
    options.add_argument("--simulate", action="store_true", help="compute waits, train nothing")
    args = options.parse_args()
    if args.simulate:
        simulated(args.quick)
    else:
        measured(args)


if __name__ == "__main__":
    main()
