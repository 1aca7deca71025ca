"""Remote workers behind a network of their own: one that is cut in mid-epoch, and one that is slow.

A second node runs in a network namespace, with a name of its own, at the other end of a cable
(`tests/support/links.py`). Skipped without Ray, and where namespaces are not allowed.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.support.links import Link, link, why_none
from tests.support.ray_nodes import NEEDS_RAY, Node, at, cluster, joining
from tests.support.remote_loaders import Calm, compare_until, loader_of

pytestmark = [*NEEDS_RAY, pytest.mark.slow]


class Far(NamedTuple):
    """A cluster of a head without processors, and a node at the other end of a link."""

    nodes: list[Node]
    link: Link

    def join(self) -> None:
        """Start a node there."""
        joining(self.nodes, 2, f"--node-ip-address={self.link.far}", under=self.link.under)

    def made(self, loader: Any) -> int:
        """How many batches came from there."""
        return int(loader.statistics().evidence.remote_batches)  # no other node makes any


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    if why := why_none():
        pytest.skip(f"no network namespaces: {why}")
    with link() as laid, cluster(0, host=laid.near) as nodes:
        there = Far(nodes, laid)
        there.join()
        yield there


class During:
    """A loader, of which one epoch is disturbed in its middle."""

    def __init__(self, loader: Any, disturb: Callable[[], None]) -> None:
        self._loader, self._disturb = loader, [disturb]

    def __iter__(self) -> Iterator[Any]:
        for place, batch in enumerate(self._loader):
            yield batch
            if place == 8 and self._disturb:
                self._disturb.pop()()


def until_silence(loader: Any, disturb: Callable[[], None]) -> list[str]:
    """Disturb an epoch, and compare this and the next ones, until silence is told of."""
    disturbed, warned = During(loader, disturb), list[str]()
    while not any("is gone (no sign of life" in text for text in warned):
        warned += compare_until(lambda: True, disturbed, Calm())
    return warned


def test_a_link_that_is_cut_costs_no_batch_and_is_used_when_it_is_mended(far: Far) -> None:
    with loader_of(Calm(), 1, 2, at(far.nodes, patience=3.0)) as loader:
        compare_until(lambda: far.made(loader) > 8, loader, Calm())
        warned = until_silence(loader, far.link.cut)
        far.link.mend()
        before = far.made(loader)
        warned += compare_until(lambda: far.made(loader) > before + 8, loader, Calm())
    warned = [text for text in warned if "are up" not in text]
    assert len(warned) == 1, warned
    assert f"(node {far.link.host}) for " in warned[0]


def test_a_node_without_power_is_one_event_and_its_successor_is_used(far: Far) -> None:
    def lose_power() -> None:
        far.link.cut()
        far.nodes[1].kill()

    with loader_of(Calm(), 1, 2, at(far.nodes, patience=3.0)) as loader:
        compare_until(lambda: far.made(loader) > 8, loader, Calm())
        warned = until_silence(loader, lose_power)
        far.link.mend()
        before = far.made(loader)
        far.join()
        warned += compare_until(lambda: far.made(loader) > before + 8, loader, Calm())
    warned = [text for text in warned if "are up" not in text]
    assert len(warned) == 1, warned
