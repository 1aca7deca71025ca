"""No child of a test that failed is left."""

from collections.abc import Iterator

import pytest

from tests.support import bulk


@pytest.fixture(autouse=True)
def all_children_are_ended() -> Iterator[None]:
    """Those of a test that has passed are."""
    yield
    left = list(bulk.started)
    for child in left:
        child.kill()
    assert not left
