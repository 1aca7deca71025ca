"""What an exception out of a signal handler leaves behind can be garbage like any other.

Its traceback holds the frames, and these what they were working on. Where a memoryview is among it
whose buffer something else there exports, CPython's collector may tear the memoryview down first:
"BufferError: memoryview has 1 exported buffer", and the process dies of a segmentation fault.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.programs import run_program

ROOT = Path(__file__).parents[2]

INTERRUPTED = """
import gc, sys
import numpy as np, torch
from lit_loader.transport import arena as arena_module
from lit_loader.transport.arena import Arena, ArenaMap
from lit_loader.transport.status_board import Progress
from lit_loader.transport.status_board import ROW_WORDS, StatusBoard, board_bytes
from lit_loader.transport.codec import decode, encode
from lit_loader.transport.codec import SlotWriter

held = int(sys.argv[1])
arena_module.DIVIDED, arena_module._COPIES, arena_module._SHARE = 1, 1, 2

class Struck(BaseException):
    pass

class Tracer:
    def __init__(self, at):
        self.at, self.lines = at, 0

    def __call__(self, frame, event, argument):
        if "lit_loader" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                raise Struck
        return self

x = torch.arange(64.0)
BATCHES = [[x, x[:3].clone()], {"views": [x, x[3:]], "array": np.arange(9), "rest": {1, 2}}]

def work(tracer):
    sys.settrace(tracer)
    try:
        memory = Arena(board_bytes(2), 4, held, slot_bytes=1 << 16)
        Progress(StatusBoard(memory.board).words, 2 * ROW_WORDS).step(3)
        copy = ArenaMap(memory.fd, memory.mapped, len(memory.board))
        for batch in BATCHES:
            slot = memory.acquire()
            place = encode(batch, SlotWriter(copy.memory(slot.offset, slot.capacity)))
            lease = memory.lease(slot, sum(place))
            decode(lease, *place, memory.divide)
        memory.close()
    finally:
        sys.settrace(None)

def as_garbage(error):
    '''Make a cycle of what the frames hold, younger than all that is in it.'''
    cycle = []
    trace = error.__traceback__
    while trace is not None:
        cycle.append(dict(trace.tb_frame.f_locals))
        trace = trace.tb_next
    cycle.append(cycle)

def strike(at):
    try:
        work(Tracer(at))
    except Struck as error:
        as_garbage(error)

count = Tracer(0)
work(count)
assert count.lines > 200, count.lines
gc.disable()
gc.freeze()  # what is there already need not be looked through each time
for at in range(1, count.lines + 1):
    strike(at)
    gc.collect()
print("alive")
"""


@pytest.mark.parametrize("held", [0, 4], ids=["copied", "divided"])
def test_what_an_interruption_leaves(tmp_path: Path, held: int) -> None:
    """Wherever it strikes on a batch's way: nothing is torn down under what still looks into it."""
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED)
    found = run_program(program, held, stderr=subprocess.STDOUT)
    assert "exported buffer" not in found
    assert "BufferError" not in found or sys.version_info >= (3, 14)
    assert found.endswith("alive\n")


def test_numpy_exports_no_memoryview_for_long() -> None:
    """transport/arena.py: an array over a memoryview keeps the memory, exporting none."""
    memory = np.zeros(8, np.uint8)
    view = memory.data
    array = np.frombuffer(view, np.uint8)
    view.release()  # raises BufferError where it is exported
    array[3] = 7
    assert memory[3] == 7
    assert not isinstance(array.base, np.ndarray)
