"""A canary for every reach into what torch, NumPy or Python do not document.

If one of these fails after an upgrade, the code it names must change. Each reach is marked in the
code (``tests/project/reaches.py``), and `reaches.md` lists the marks.
"""

from __future__ import annotations

import ast
import inspect
import io
import multiprocessing
import os
import random
from multiprocessing import context, forkserver, reduction, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from lit_loader.batch import collate
from lit_loader.seeding import find_generators, seeds
from lit_loader.worker import payload as handover
from tests.project.reaches import VERSIONS, Reach, all_marks, all_reaches, reaches

TABLE = Path(__file__).with_name("reaches.md")


def table() -> str:
    """What the marks say, as Markdown."""
    found, rows = all_reaches(), []
    for mark in all_marks():
        what = dict.fromkeys(r.what for r in found if (mark.file, mark.line) in places(r))
        names = ", ".join(f"`{name}`" for name in what)
        rows.append(f"| {mark.file} | {names} | {mark.why} | {VERSIONS[mark.library]} |")
    head = (
        "Where the package reaches into what others do not document; written by "
        "`python -m tests.project.test_reaches`.\n\n"
        "| file | what | why | versions |\n| --- | --- | --- | --- |\n"
    )
    return head + "\n".join(rows) + "\n"


def places(reach: Reach) -> set[tuple[str, int]]:
    return {(reach.file, line) for line in reach.lines}


def test_every_reach_is_marked() -> None:
    marked = {(mark.file, mark.line) for mark in all_marks()}
    bare = [f"{r.file}:{r.line} {r.what}" for r in all_reaches() if not places(r) & marked]
    assert not bare, "say '# reach: LIBRARY: why' there, or above it"


def test_no_mark_is_stale() -> None:
    held = {place for reach in all_reaches() for place in places(reach)}
    assert [mark for mark in all_marks() if (mark.file, mark.line) not in held] == []


def test_the_table() -> None:
    assert TABLE.read_text() == table(), "python -m tests.project.test_reaches writes it"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("x._secret", "x._secret"),
        ("getattr(x, '_secret')", "_secret"),
        ("from torch._secret import y", "torch._secret.y"),
        ("import ctypes", "ctypes"),
        ("from dis import dis", "dis.dis"),
        ("sys._getframe(1)", "sys._getframe"),
        ("gc.get_referrers(x)", "gc.get_referrers"),
        ("def f():\n    return 1, x._secret", "x._secret"),
        ("self._own; x._replace(a=1); os._exit(0); x.__class__; gc.collect()", None),
    ],
)
def test_what_is_one(code: str, what: str | None) -> None:
    found = [reach.what for reach in reaches("a.py", ast.parse(code), {"_own"})]
    assert found == ([] if what is None else [what])


def test_where_a_mark_may_stand() -> None:
    code = "def f():\n    a = 1\n    return (\n        x._secret\n    )\nb = 2\n"
    [reach] = reaches("a.py", ast.parse(code), set())
    assert sorted(reach.lines) == [0, 1, 2, 3, 4, 5]


def test_worker_info(monkeypatch: pytest.MonkeyPatch) -> None:
    """batch/worker_info.py: the variable behind torch.utils.data.get_worker_info()."""
    info = torch_worker.WorkerInfo(id=1, num_workers=2, seed=3, dataset=[4])
    monkeypatch.setattr(torch_worker, "_worker_info", info)
    seen = torch.utils.data.get_worker_info()
    assert (seen.id, seen.num_workers, seen.seed, seen.dataset) == (1, 2, 3, [4])


@pytest.mark.skipif(not hasattr(torch_worker, "_RNG"), reason="this torch has none")
def test_the_generators_of_worker_info() -> None:
    """batch/worker_info.py: what WorkerInfo.rng is an object of."""
    names = ("random_generator", "torch_generator", "numpy_generator")
    assert tuple(inspect.signature(torch_worker._RNG).parameters) == names
    assert "rng" in inspect.signature(torch_worker.WorkerInfo).parameters


def test_instructions_that_load_a_global() -> None:
    """seeding/find_generators.py: the names that `dis` has for them."""
    assert find_generators._loads(test_collate_rules.__code__, "torch")
    assert not find_generators._loads(test_collate_rules.__code__, "default_collate")


def test_collate_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """batch/collate.py: torch's table of rules, and the functions in it that ours stand for."""
    table = torch_collate.default_collate_fn_map
    assert torch.utils.data.default_collate is torch_collate.default_collate
    assert table[torch.Tensor] is torch_collate.collate_tensor_fn
    assert set(collate._OWN_RULES) - {collate._stack_privately} <= set(table.values())
    monkeypatch.setitem(table, torch.Tensor, lambda batch, collate_fn_map=None: "replaced")
    assert torch.utils.data.default_collate([torch.zeros(1)]) == "replaced"


def carried(read_end: handover.Descriptor) -> None:
    os.write(read_end.fd, b"!")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_descriptors_travel_along(method: str) -> None:
    """worker/payload.py: multiprocessing.reduction.DupFd, of which only the code tells."""
    assert callable(reduction.DupFd)
    reading, writing = os.pipe()
    process = multiprocessing.get_context(method).Process(
        target=carried, args=(handover.Descriptor(writing),)
    )
    process.start()
    process.join(60)
    os.close(writing)
    assert (os.read(reading, 1), process.exitcode) == (b"!", 0)
    os.close(reading)
    process.close()


def test_what_stands_for_a_start_is_asked_for_descriptors() -> None:
    """system/carrier.py: what reduction.DupFd asks of the process that is being started."""

    class Start:
        def duplicate_for_child(self, fd: int) -> int:
            return fd + 1000

        def DupFd(self, fd: int) -> int:
            return -fd

    start: Any = Start()
    context.set_spawning_popen(start)
    try:
        assert reduction.DupFd(5) == -1005  # type: ignore[comparison-overlap]
    finally:
        context.set_spawning_popen(None)


def test_multiprocessings_pickler() -> None:
    """system/carrier.py: ForkingPickler's table, in which torch registers."""
    assert torch.UntypedStorage in reduction.ForkingPickler(io.BytesIO()).dispatch_table


def test_helper_processes_can_be_started_beforehand() -> None:
    """worker/process_start.py: ensure_running() of forkserver and resource tracker."""
    resource_tracker.ensure_running()
    forkserver.ensure_running()


def test_what_the_fork_server_imports() -> None:
    """worker/process_start.py: ForkServer._preload_modules, and what it is if nobody has set it."""
    server = forkserver.ForkServer()
    assert server._preload_modules == ["__main__"]
    server.set_forkserver_preload(["a"])
    assert server._preload_modules == ["a"]
    assert isinstance(forkserver._forkserver, forkserver.ForkServer)
    assert server._forkserver_pid is None  # until it runs


def test_numpys_global_generator() -> None:
    """seeding/find_generators.py: the object behind numpy.random's functions."""
    assert np.random.rand.__self__ is np.random.mtrand._rand is find_generators._GLOBALS[1]


def test_the_layout_of_a_torch_generators_state() -> None:
    """seeding/seeds.py: the state's first eight bytes are the initial seed."""
    seeds._initial_seed_leads_the_state.cache_clear()
    assert seeds._initial_seed_leads_the_state()


def test_pythons_global_generator() -> None:
    """seeding/find_generators.py: random.seed is a method of the generator behind the functions."""
    assert isinstance(random.seed.__self__, random.Random)
    assert random.random.__self__ is random.seed.__self__ is find_generators._GLOBALS[0]


def test_the_parts_of_a_sparse_tensor() -> None:
    """transport/reductions.py: indices and values of a tensor that is not coalesced."""
    sparse = torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], (3,), check_invariants=True)
    assert sparse._indices().tolist() == [[1, 1]]
    assert sparse._values().tolist() == [2.0, 3.0]


def test_storages() -> None:
    """transport/reductions.py: what is inside of a TypedStorage, how it is made."""
    storage = torch.arange(3, dtype=torch.uint8).untyped_storage()
    typed = torch.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)
    assert typed._untyped_storage.data_ptr() == storage.data_ptr()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantised_tensors() -> None:
    """transport/reductions.py: making a quantised tensor of its integers."""
    whole = torch._make_per_tensor_quantized_tensor(torch.tensor([4], dtype=torch.int8), 0.5, 2)
    assert whole.dequantize().tolist() == [1.0]
    channel = torch._make_per_channel_quantized_tensor(
        torch.tensor([[4]], dtype=torch.int8), torch.tensor([0.5]), torch.tensor([2]), 0
    )
    assert channel.dequantize().tolist() == [[1.0]]


def test_attributes_of_tensor_subclasses() -> None:
    """transport/reductions.py: a context in which __torch_function__ is left alone."""

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_):
            raise AssertionError("called")

    loud = torch.zeros(1).as_subclass(Loud)
    with torch._C.DisableTorchFunctionSubclass():
        assert loud.layout is torch.strided


def test_lightnings_mark_of_a_resumed_loop() -> None:
    """lightning/trainer_progress.py: is a Trainer resumed; steps for loggers."""
    trainer = pytest.importorskip("lightning.pytorch").Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    loop = trainer.fit_loop
    loop._restarting = True
    assert loop.restarting is True
    loop._restarting = False
    assert loop.restarting is False
    assert loop.epoch_loop._batches_that_stepped == 0
    assert loop._data_fetcher is None  # lightning/state_callback.py


def test_a_process_that_somebody_else_has_waited_for() -> None:
    """system/child_processes.py: Popen.returncode says how it ended."""
    process = multiprocessing.get_context("fork").Process(target=os._exit, args=(7,))
    process.start()
    os.wait4(process.pid or 0, 0)
    process._popen.returncode = 7  # type: ignore[attr-defined]
    process.join()
    assert process.exitcode == 7
    process.close()


def test_a_forked_daemon_may_have_children_if_it_is_none_any_more() -> None:
    """worker/launcher.py: documented of processes that were not started, as a child is."""
    process = multiprocessing.get_context("fork").Process(target=_child_of_a_daemon, daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 3
    process.close()


def _child_of_a_daemon() -> None:
    multiprocessing.current_process().daemon = False
    process = multiprocessing.get_context("fork").Process(target=os._exit, args=(3,))
    process.start()
    process.join()
    os._exit(process.exitcode or 0)


if __name__ == "__main__":
    TABLE.write_text(table())
