"""``num_workers="auto"``: what is decided from measurements of some batches."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.profiling.controller import Bounds, Controller, Load

LOAD = Load(
    workers=2, batches=16, worker=0.05, cpu_time=0.005, queued=0.0, spread=0.1, step=0.02,
    wait=0.005,
)  # fmt: skip
CALM = LOAD._replace(wait=0.0)
BOUNDS = Bounds(cores=8, most=64, batches=1000)

SECONDS = st.floats(0.001, 0.1)


def rate(workers: int, made: float, computed: float, step: float, cores: int) -> float:
    """Batches per second: so long it takes to make one, a part of that on a core, and a step."""
    return min(workers / made, cores / computed, 1 / step)


@settings(max_examples=200, derandomize=True)
@given(SECONDS, st.floats(0.05, 1), SECONDS, st.integers(2, 16))
def test_as_good_as_the_best_number_and_not_many_more_workers(
    made: float, part: float, step: float, cores: int
) -> None:
    """With any samples and steps, from a start at two workers."""
    computed = part * made
    rates = {n: rate(n, made, computed, step, cores) for n in range(1, 65)}
    controller = Controller(2)
    for _ in range(20):
        workers = controller.setting.workers
        # On cores that all want a batch takes longer than it would alone.
        worker = max(made, workers * computed / cores)
        wait = max(0.0, 1 / rates[workers] - step)
        load = Load(workers, 16, worker, computed, worker - made, 0.1, step, wait)
        controller.decide(load, Bounds(cores=cores, most=64, batches=1000))
    best = max(rates.values())
    least = min(n for n, each in rates.items() if each >= 0.98 * best)
    found = controller.setting.workers
    assert rates[found] >= 0.93 * best
    assert found <= max(2.2 * least, 4)


def test_twice_the_workers_while_the_loop_waits_and_four_times_if_it_hardly_does_else() -> None:
    assert Controller(2).decide(LOAD, BOUNDS).workers == 4
    assert Controller(2).decide(LOAD._replace(step=0.001), BOUNDS).workers == 8


def test_what_did_not_help_is_taken_back() -> None:
    controller = Controller(2)
    assert controller.decide(LOAD, BOUNDS).workers == 4
    narrow = LOAD._replace(workers=4, worker=0.1)  # a disk that gives no more than before
    assert controller.decide(narrow, BOUNDS).workers == 4  # perhaps only these batches are slow
    setting = controller.decide(narrow, BOUNDS)
    assert (setting.workers, setting.reason) == (2, "more than 2 did not help")
    assert setting.limited
    tried = [controller.decide(LOAD, BOUNDS).workers for _ in range(30)]
    assert tried[:10] == [2] * 10 and max(tried) == 4, "again after a while"


def test_half_the_workers_if_the_loop_does_not_wait_and_back_if_they_are_missed() -> None:
    controller, much = Controller(12), CALM._replace(workers=12)
    assert [controller.decide(much, BOUNDS).workers for _ in range(4)] == [12, 12, 12, 6]
    missed = LOAD._replace(workers=6)
    setting = controller.decide(missed, BOUNDS)
    assert (setting.workers, setting.reason) == (12, "6 were not enough")
    assert [controller.decide(much, BOUNDS).workers for _ in range(7)] == [12] * 7, "later then"


def test_a_change_of_load_forgets_what_was_learned() -> None:
    controller = Controller(2)
    for load in (LOAD, LOAD._replace(workers=4, worker=0.1), LOAD._replace(workers=4, worker=0.1)):
        controller.decide(load, BOUNDS)
    other = LOAD._replace(worker=0.2)
    assert controller.decide(other, BOUNDS).workers == 2  # it may have begun in the first load
    assert controller.decide(other, BOUNDS).workers == 4


def test_bounds_are_kept() -> None:
    setting = Controller(2).decide(LOAD, BOUNDS._replace(most=3))
    assert setting.workers == 3
    setting = Controller(3).decide(LOAD._replace(workers=3), BOUNDS._replace(most=3))
    assert (setting.workers, setting.reason) == (3, "more than 3 are not allowed")
    setting = Controller(2).decide(LOAD._replace(spread=2.0), BOUNDS._replace(batches=10))
    assert setting.workers * setting.prefetch <= 10
    assert Controller(8).decide(LOAD._replace(workers=8), BOUNDS._replace(most=3)).workers == 3
