"""The fixture ``loader_class``: torch's DataLoader and ours, and what each needs to run."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch.utils.data

from .tools import Gate

# What torch itself warns about on purpose and the tests do not assert. The second one is Python's
# (>= 3.12): torch's queues keep threads in the parent while workers are forked.
ORACLE_FILTERS = (
    "ignore:This DataLoader will create:UserWarning",
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:Got pickle error when attempting to start:UserWarning",
)


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "dear_oracle: torch's own run of this test is slow, so that run is marked slow",
        "ours_only: states something that torch's DataLoader does not do",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "loader_class" not in metafunc.fixturenames:
        return
    marks: list[pytest.MarkDecorator] = [
        pytest.mark.filterwarnings(entry) for entry in ORACLE_FILTERS
    ]
    if metafunc.definition.get_closest_marker("dear_oracle"):
        marks.append(pytest.mark.slow)
    missing = importlib.util.find_spec("lit_loader.loader") is None
    skip = [pytest.mark.skip(reason="lit_loader.loader does not exist yet")] if missing else []
    params = [pytest.param("ours", marks=skip)]
    if not metafunc.definition.get_closest_marker("ours_only"):
        params.insert(0, pytest.param("oracle", marks=marks))
    metafunc.parametrize("loader_class", params, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where a test runs in-process and with workers, torch's run with workers is a slow one."""
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if params.get("loader_class") == "oracle" and params.get("num_workers"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def loader_class(request: pytest.FixtureRequest) -> type:
    """The class under test."""
    if request.param == "oracle":
        return torch.utils.data.DataLoader
    import lit_loader

    return lit_loader.DataLoader


@pytest.fixture(params=[0, 2], ids=["in-process", "workers"])
def num_workers(request: pytest.FixtureRequest) -> int:
    """Loading in the parent, and loading in two worker processes."""
    return request.param


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A closed gate; it is opened in the end, so that nobody is left waiting."""
    made = Gate()
    yield made
    made.open()
    made.close()
