"""What surrounds the loop reaches the dataset, in the process itself and in forked workers."""

import decimal
import logging
import os
import signal
import sys
import warnings
from contextvars import ContextVar

import numpy as np
import pytest
import torch

from tests.support.datasets import Call
from tests.support.samples import uncollated as as_is
from tests.support.samples import worker_pids

VARIABLE = ContextVar("VARIABLE", default=0)


def modes(_=0):
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return (*modes, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))


@pytest.mark.ours_only  # torch's has no other worker then; its started workers have no modes
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_that_takes_anothers_place_has_the_same(loader_class, method):
    loader = loader_class(
        Call(modes, 20), None, num_workers=1, multiprocessing_context=method, collate_fn=as_is
    )
    with torch.inference_mode(), torch.autocast("cpu", torch.float16):
        expected, iterator = modes(), iter(loader)
        found = [next(iterator)]
    os.kill(worker_pids(iterator)[0], signal.SIGKILL)
    assert {*found, *iterator} == {expected} != {modes()}


with torch.device("meta"):  # which torch 2.6 does not show
    UNSEEN = set() if torch.get_default_device().type == "meta" else {"device"}


def surroundings(_=0):
    umask = os.umask(0)
    os.umask(umask)
    return {
        "context variable": VARIABLE.get(),
        "errstate": np.geterr(),
        "dtype": torch.get_default_dtype(),
        "device": str(torch.get_default_device()),
        "modes": modes(),
        "decimal": decimal.getcontext().prec,
        "folder": os.getcwd(),
        "umask": umask,
        "environment": os.environ.get("LIT_LOADER_TEST_SURROUNDINGS"),
        "warnings": any(each[1] and each[1].pattern == "zzz" for each in warnings.filters),
        "logging": logging.getLogger("a.b").level,
        "recursion": sys.getrecursionlimit(),
    }


@pytest.mark.usefixtures("by_fork")
def test_what_surrounds_the_loop(loader_class, num_workers, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIT_LOADER_TEST_SURROUNDINGS", "yes")
    before = surroundings()  # in the folder and environment of the test
    limit, mask, token = sys.getrecursionlimit(), os.umask(0o27), VARIABLE.set(7)
    try:
        sys.setrecursionlimit(limit + 1)
        logging.getLogger("a.b").setLevel(13)
        torch.set_default_dtype(torch.float64)
        with (
            np.errstate(divide="raise"),
            decimal.localcontext(decimal.Context(prec=9)),
            warnings.catch_warnings(),
            torch.device("cpu:0"),
            torch.inference_mode(),
            torch.autocast("cpu", torch.float16),
        ):
            warnings.filterwarnings("ignore", "zzz")
            expected = surroundings()
            unlike = {name for name in before if before[name] != expected[name]}
            assert unlike == before.keys() - {"folder", "environment"} - UNSEEN
            loader = loader_class(
                Call(surroundings, 2), None, num_workers=num_workers, collate_fn=as_is
            )
            assert list(loader) == [expected] * 2
    finally:
        torch.set_default_dtype(before["dtype"])
        logging.getLogger("a.b").setLevel(before["logging"])
        sys.setrecursionlimit(limit)
        os.umask(mask)
        VARIABLE.reset(token)
