"""The fixture ``workers``: batches made in this process, and by two others."""

import pytest


@pytest.fixture(params=[0, 2], ids="{} workers".format)
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)
