"""The fixture ``loader_class``: torch's DataLoader and ours, and what each needs to run."""

import pytest
import torch.utils.data

# What torch itself warns about on purpose and the tests do not assert. The second one is Python's
# (>= 3.12): torch's queues keep threads in the parent while workers are forked.
ORACLE_FILTERS = (
    "ignore:This DataLoader will create:UserWarning",
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:Got pickle error when attempting to start:UserWarning",
)


def pytest_configure(config: pytest.Config) -> None:
    line = "ours_only: states something that torch's DataLoader does not do"
    config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "loader_class" not in metafunc.fixturenames:
        return
    # That the tests are true of torch needs to be seen again only when torch changes.
    marks = [pytest.mark.slow, *map(pytest.mark.filterwarnings, ORACLE_FILTERS)]
    # Ours warns, once, where every worker gives the same samples, of a stream that gives nothing,
    # and of fewer samples than promised, all of which torch does in silence; and of a worker that
    # was replaced, where torch ends the epoch.
    quiet = (
        pytest.mark.filterwarnings("ignore:.*LL(205|222):UserWarning"),
        pytest.mark.filterwarnings("ignore:.*has not asked which of them it serves:UserWarning"),
        pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning"),
    )
    params = [pytest.param("ours", marks=quiet)]
    if not metafunc.definition.get_closest_marker("ours_only"):
        params.insert(0, pytest.param("oracle", marks=marks))
    metafunc.parametrize("loader_class", params, indirect=True)


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
