"""The fixture ``examples``: modules of examples/ can be imported."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Generators and environment are put back, and the modules forgotten, afterwards."""
    from tests.support.recipes import importable

    with importable(monkeypatch):
        yield
