"""What is decided on simulated loads, beside fixed numbers and rivals."""

import random
from dataclasses import replace

import pytest

from lit_loader.profiling.controller import Bounds, Controller, Load
from tests.profiling.loads import best, scenes, tuned

LOAD = Load(
    workers=2, batches=16, worker=0.05, processor=0.05, queued=0.0, spread=0.1, step=0.001,
    wait=0.024,
)  # fmt: skip
BOUNDS = Bounds(processors=8, most=64, batches=1000)

MANY = {
    "remote workers keep up": 6,  # those here are used before remote ones
    "slow consumer, remote": 3,
}
"""Workers beyond the best number that are let pass."""


@pytest.mark.parametrize("name", scenes())
def test_as_good_as_the_best_fixed_number(name: str) -> None:
    """After 200 batches from a start at nothing; 400 where bursts of 20 to 60 batches come."""
    number, most = best(name)
    scene = scenes()[name]
    found = tuned(scene)
    assert found.throughput >= 0.95 * most
    in_the_end = found.decided[-1][1].workers
    assert in_the_end <= max(1.35 * number, number + MANY.get(name, 2))
    if name == "very slow consumer":
        assert in_the_end == 1
    if name in ("decoding", "decoding, 16 processors", "slow consumer", "storage, then decoding"):
        assert len(found.decided) <= 5, "it does not swing"
    if name in ("remote workers keep up", "decoding, remote workers"):
        # About as many here as there would be without, though nobody waits for them.
        alone = tuned(replace(scene, remote=0)).decided[-1][1].workers
        assert in_the_end >= max(6, alone - 1)


@pytest.mark.parametrize("others", [0.0, 4.0, 16.0])
def test_work_that_computes_gets_few_workers_on_two_processors(others: float) -> None:
    """However busy other programs are: they do not lose more and more."""
    decoding = scenes()["decoding"]
    found = tuned(replace(decoding, processors=2, neighbour=lambda now: others))
    assert 2 <= found.decided[-1][1].workers <= (5 if others else 3)


def test_a_step_up_that_did_not_help_is_taken_back() -> None:
    controller = Controller(2)
    assert controller.decide(LOAD, BOUNDS).workers == 8
    # A disk that gives no more than before: each of the eight waits four times as long.
    narrow = LOAD._replace(workers=8, worker=0.2)
    assert controller.decide(narrow, BOUNDS).workers == 8  # it may be a moment's
    setting = controller.decide(narrow, BOUNDS)
    assert (setting.workers, setting.reason) == (2, "more than 2 did not help")
    for _ in range(10):
        assert controller.decide(LOAD, BOUNDS).workers == 2


def test_a_change_of_load_forgets_what_was_learned() -> None:
    controller = Controller(2)
    controller.decide(LOAD, BOUNDS)
    for _ in range(2):
        controller.decide(LOAD._replace(workers=8, worker=0.2), BOUNDS)
    controller.decide(LOAD, BOUNDS)
    waits = LOAD._replace(worker=0.05, processor=0.005)
    assert controller.decide(waits, BOUNDS).workers == 2  # begun in the one, ended in the other
    assert controller.decide(waits, BOUNDS).workers > 8


def test_fewer_that_are_missed_come_back() -> None:
    controller = Controller(12)
    enough = LOAD._replace(workers=12, step=0.01, wait=0.0)
    fewer = [controller.decide(enough, BOUNDS).workers for _ in range(4)][-1]
    assert fewer < 12
    missed = enough._replace(workers=fewer, worker=0.15, wait=0.01)
    setting = controller.decide(missed, BOUNDS)
    assert (setting.workers, setting.reason) == (12, "fewer were not enough")


def test_bounds_are_kept() -> None:
    setting = Controller(2).decide(LOAD, BOUNDS._replace(most=3))
    assert (setting.workers, setting.reason) == (3, "more than 3 are not allowed")
    setting = Controller(2).decide(LOAD._replace(spread=2.0), BOUNDS._replace(batches=10))
    assert setting.workers * setting.prefetch <= 10
    # Fewer than there are, from one window to the next.
    assert Controller(8).decide(LOAD._replace(workers=8), BOUNDS._replace(most=3)).workers == 3


def test_any_load_has_a_decision() -> None:
    dice = random.Random(0)

    def number() -> float:
        return dice.choice([0.0, 1e-9, 1e-4, 10 ** dice.uniform(-6, 2)])

    for _ in range(300):
        controller = Controller(dice.randint(1, 8))
        bounds = BOUNDS._replace(most=dice.randint(1, 9))
        for _ in range(6):
            load = Load(
                workers=controller.setting.workers, batches=dice.randint(1, 64),
                worker=1e-9 + number(), processor=number(), queued=number(),
                spread=min(number(), 5), step=1e-9 + number(), wait=number(),
                remote=dice.choice([0.0, dice.random()]),
            )  # fmt: skip
            setting = controller.decide(load, bounds)
            assert 1 <= setting.workers <= bounds.most
            assert 1 <= setting.prefetch <= 6
