"""The trace: Chrome's format, one track for each actor, slices where the time went."""

import pytest

from lit_loader import DataLoader
from lit_loader.profiling.chrome_trace import trace_events
from lit_loader.profiling.recorder import Recorder
from tests.support.chrome_traces import tracks_of
from tests.support.samples import Rows


@pytest.mark.parametrize("pin", [False, True], ids=["plain", "pinned"])
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_loaders_latest_batches(pinned: None, num_workers: int, pin: bool) -> None:
    loader = DataLoader(
        Rows(60, 1_000), batch_size=4, shuffle=True, num_workers=num_workers, pin_memory=pin
    )
    for _ in range(2):
        list(loader)
    loader.statistics()
    events = list(trace_events({"train": Recorder.of(loader._core.log).latest}))
    tracks = tracks_of(events)
    stages = {name: {event["name"] for event in found} for name, found in tracks.items()}
    if num_workers:
        assert stages["loop"] == ({"wait", "step"} if pin else {"wait", "decode", "step"})
        assert ("pin memory" in stages) == pin
        assert {"fetch", "collate"} <= stages["worker 0"] | stages.get("worker 1", set())
    else:
        assert stages == {"loop": {"fetch", "collate", "step"} | ({"pin"} if pin else set())}
    made = [event for each in tracks.values() for event in each if event["name"] == "fetch"]
    numbers = sorted((event["args"]["epoch"], event["args"]["batch"]) for event in made)
    assert numbers == [(epoch, batch) for epoch in range(2) for batch in range(15)]
    counts = [event["args"]["batches"] for event in events if event["ph"] == "C"]
    # One more than are in flight: the next is asked for just before a batch is yielded.
    assert len(counts) == (60 if num_workers else 0) and max(counts or [0]) <= 2 * num_workers + 1
