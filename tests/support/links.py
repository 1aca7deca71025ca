"""A network of two machines on this host: the far end is a network namespace with its own name."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

_NOBODY = "02:00:00:00:00:fe"
"""The address of a card that nobody has."""


class Link:
    """A cable between this host and a network namespace; ``near`` and ``far`` are addresses."""

    def __init__(self, number: int) -> None:
        self.host = f"far{number}"  # name of the machine there
        self._near_card, self._far_card = f"ln{number}", f"lf{number}"
        high, low = divmod(number % 16384, 64)
        self.near, self.far = (f"10.{190 + high // 256}.{high % 256}.{4 * low + n}" for n in (1, 2))

    @property
    def under(self) -> list[str]:
        """What a command is started by to run there."""
        there = ["nsenter", f"--net=/run/netns/{self.host}", "unshare", "--uts", "sh", "-c"]
        return [*there, 'hostname "$0" && exec "$@"', self.host]

    def lay(self) -> None:
        _ip("netns", "add", self.host)
        peer = ("peer", "name", self._far_card, "netns", self.host)
        _ip("link", "add", self._near_card, "type", "veth", *peer)
        _ip("addr", "add", f"{self.near}/30", "dev", self._near_card)
        _ip("link", "set", self._near_card, "up")
        _ip("-n", self.host, "addr", "add", f"{self.far}/30", "dev", self._far_card)
        for card in ("lo", self._far_card):
            _ip("-n", self.host, "link", "set", card, "up")

    def cut(self) -> None:
        """Lose all that is sent, at both ends, silently."""
        self._neighbours("replace", "lladdr", _NOBODY, "nud", "permanent")

    def mend(self) -> None:
        """Undo that."""
        self._neighbours("del")

    def _neighbours(self, what: str, *how: str) -> None:
        _ip("neigh", what, self.far, *how, "dev", self._near_card)
        _ip("-n", self.host, "neigh", what, self.near, *how, "dev", self._far_card)

    def narrow(self, rate: str) -> None:
        """Let the far end send no faster: ``"100mbit"``."""
        shape = ["tbf", "rate", rate, "burst", "64kb", "latency", "100ms"]
        _run("tc", "-n", self.host, "qdisc", "replace", "dev", self._far_card, "root", *shape)

    def remove(self) -> None:
        """Remove it."""
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self.host)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._near_card)  # gone with the other end, but for a moment


def why_none() -> str:
    """Why no link can be laid here; "": it can."""
    missing = [name for name in ("ip", "tc", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"no {' or '.join(missing)} here"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    try:
        with link():
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


@contextlib.contextmanager
def link() -> Iterator[Link]:
    """Have a link."""
    laid = Link(os.getpid() % 100_000)
    try:
        laid.lay()
        yield laid
    finally:
        laid.remove()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
