"""Files in memory that are found by their label: sealed ones, of this user, and no others."""

import os
from collections.abc import Iterator

import pytest

from lit_loader.data import memory_files as files
from tests.support.bulk import Child

LABEL = f"lit_loader test {os.getpid()}"

OTHER = 65534
"""Number of a user who is nobody."""


@pytest.fixture
def fd() -> Iterator[int]:
    fd = files.new(LABEL)
    os.write(fd, b"something")
    yield fd
    os.close(fd)


def test_that_of_another_user_is_not_taken(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    files.seal(fd)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert files.find(LABEL) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_users_are_kept_apart(fd: int) -> None:
    """Not even root takes what another user has made."""
    files.seal(fd)
    label = f"{LABEL} of another"

    def another(say: object) -> object:
        os.setuid(OTHER)
        files.seal(files.new(label))
        with pytest.raises(PermissionError):
            os.open(f"/proc/{os.getppid()}/fd/{fd}", os.O_RDONLY)
        os.close(fd)
        return files.find(LABEL)

    child = Child(another)
    assert child.line() == "None"
    assert files.find(label) is None
    child.end()


def test_another_file_that_comes_in_between_is_not_taken(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may close its file, and open one of another label, while it is being found."""
    files.seal(fd)
    other, kept, look = files.new(f"{LABEL} other"), os.dup(fd), os.readlink
    files.seal(other)

    def exchange(path: str) -> str:
        found = look(path)
        if found.startswith(f"/memfd:{LABEL} (") and os.path.dirname(path).endswith("/fd"):
            for number in (fd, kept):
                os.dup2(other, number)
        return found

    monkeypatch.setattr(os, "readlink", exchange)
    try:
        assert files.find(LABEL) is None
    finally:
        os.close(other)
        os.close(kept)
