"""Samplers and streams with a state pass the contracts of `lit_loader.testing`."""

import random
from typing import Any

import pytest

from lit_loader import BalancedBatchSampler, ExactnessWarning, MixtureStream
from lit_loader.testing import SamplerContract, StreamContract
from tests.support.datasets import BufferedStream, ByName, StatefulStream
from tests.support.exact import SamplerWithStatefulIterator, StatefulSampler


class TestSampler(SamplerContract):
    def make(self) -> Any:
        return StatefulSampler(12)


class TestSamplerWithStatefulIterator(SamplerContract):
    def make(self) -> Any:
        return SamplerWithStatefulIterator(12)


class TestBatchSampler(SamplerContract):
    is_batch_sampler = True

    def make(self) -> Any:
        return BalancedBatchSampler([1 + 7 * n % 40 for n in range(26)], 3, group=2, seed=1)


class TestStream(StreamContract):
    def make(self) -> Any:
        return StatefulStream()


class TestOrderByName(StreamContract):
    def make(self) -> Any:
        return ByName()


class TestBuffer(StreamContract):
    def make(self) -> Any:
        return BufferedStream()


class TestMixture(StreamContract):
    def make(self) -> Any:
        ending = "all_exhausted_without_replacement"
        return MixtureStream([BufferedStream(), StatefulStream()], stopping_strategy=ending)


class Forgetful(StatefulSampler):
    """Its state says nothing of its order."""

    def order(self) -> list[int]:
        return random.SystemRandom().sample(range(self.length), self.length)


def test_what_does_not_continue_is_noticed() -> None:
    class Wrong(SamplerContract):
        def make(self) -> Any:
            return Forgetful(12)

    with pytest.raises((AssertionError, ExactnessWarning)):
        Wrong().test_a_resume_from_any_batch_is_exact()
