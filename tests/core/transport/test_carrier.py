"""Large buffers go apart from the pickle, and come back as what they were: in one process."""

import dataclasses
import gc
import mmap
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader.core.system.shared_file import nameless_file
from lit_loader.core.transport.dataset_pickle import LARGE, Frozen, Policy, freeze, thaw

MANY = 3 * LARGE
"""Elements of a large array."""


def frozen(value: Any, by_value: bool = False) -> Frozen:
    return freeze(value, dataclasses.replace(Policy.workers(), by_value=by_value))


def carried(value: Any, by_value: bool = False, most: int = 4096) -> Any:
    """What arrives of an object; its pickle has at most so many bytes."""
    apart = frozen(value, by_value)
    assert len(apart.pickled) < most
    fd = written(apart)
    assert os.fstat(fd).st_size == apart.size
    try:
        return thaw(fd, apart.fds)
    finally:
        os.close(fd)


def written(apart: Frozen) -> int:
    fd, _ = nameless_file("lit_loader test")
    apart.write(fd)
    return fd


def cost(value: Any) -> int:
    """Bytes of the file for an object's buffers."""
    return frozen(value).nbytes


def readonly(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


RECORD = np.dtype([("a", "<i2"), ("b", ">f8"), ("c", "S3"), ("d", "u1", (2, 3))], align=True)

ARRAYS: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
    "C order": lambda: np.arange(MANY).reshape(3, -1),
    "Fortran order": lambda: np.asfortranarray(np.arange(MANY, dtype=np.int16).reshape(64, -1)),
    "reversed": lambda: np.arange(MANY, dtype="u2")[::-1],
    "a part": lambda: np.arange(MANY).reshape(64, -1)[:, 1:-1],
    "broadcast": lambda: np.broadcast_to(np.arange(LARGE), (5, LARGE)),
    "byte order": lambda: np.arange(MANY, dtype=">i4"),
    "datetimes": lambda: np.arange(MANY).astype("M8[s]"),
    "strings": lambda: np.arange(MANY).astype("U5"),
    "records": lambda: np.arange(MANY, dtype="u1").repeat(4)[: 32 * LARGE // 8].view(RECORD),
    "one field": lambda: np.zeros(LARGE, [("a", "i1"), ("b", "f8")])["b"],
    "with metadata": lambda: np.zeros(MANY, np.dtype("f8", metadata={"unit": "m"})),
    "read-only": lambda: readonly(np.arange(MANY)),
    "unaligned": lambda: np.zeros(8 * MANY + 1, "u1")[1:].view("f8"),
    "small": lambda: np.arange(6.0).reshape(2, 3),
    "0-d view": lambda: np.arange(MANY)[7, ...],
    "empty view": lambda: np.arange(MANY)[5:5],
}


@pytest.mark.parametrize("by_value", [False, True], ids=["by name", "by value"])
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_what_it_was(name: str, by_value: bool) -> None:
    array = ARRAYS[name]()
    found = carried(array, by_value)
    assert type(found) is np.ndarray
    assert (found.dtype, found.shape, found.tobytes()) == (
        array.dtype,
        array.shape,
        array.tobytes(),
    )
    assert found.flags.writeable == array.flags.writeable
    if array.flags.f_contiguous or array.flags.c_contiguous:
        assert found.strides == array.strides or not array.size


# Aliases -----------------------------------------------------------------------------------------


def test_the_same_array_is_there_once() -> None:
    base = np.arange(MANY).reshape(64, -1)
    value = {"whole": base, "again": base, "alias": base[:], "part": base[3:5]}
    assert cost(value) == pytest.approx(base.nbytes, abs=mmap.PAGESIZE)
    found = carried(value, most=LARGE)  # a small part stays in the pickle
    assert found["again"] is found["whole"]
    found["whole"][:] = 7
    assert (found["alias"] == 7).all()
    np.testing.assert_array_equal(found["part"], base[3:5])  # as pickle has it


def test_tensors_of_one_storage_share_it() -> None:
    base = torch.arange(MANY).reshape(64, -1)
    value = [base, base[3], base.t(), base.view(torch.int32), torch.nn.Parameter(torch.rand(MANY))]
    whole, row, turned, halves, parameter = carried(value)
    assert whole.untyped_storage().data_ptr() == halves.untyped_storage().data_ptr()
    whole += 1
    assert torch.equal(row, base[3] + 1)
    assert torch.equal(turned, base.t() + 1)
    assert (turned.stride(), halves.dtype) == (base.t().stride(), torch.int32)
    assert isinstance(parameter, torch.nn.Parameter)
    assert torch.equal(parameter, value[4])
    assert not base.is_shared()  # the parent's is where it was


# Files -------------------------------------------------------------------------------------------


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    path = tmp_path / "numbers"
    path.write_bytes(b"head" * 3 + np.arange(MANY).tobytes())
    return path


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_mapped_file_goes_by_its_name(on_disk: Path, mode: Any) -> None:
    array = np.memmap(on_disk, np.int64, mode, offset=12, shape=(64, MANY // 64))
    value = [array, array[3:, ::-2], np.asarray(array)[5], np.asarray(array).T]
    assert cost(value) == 0
    found = carried(value, most=LARGE // 2)  # a row is small
    assert [type(one) for one in found] == [type(one) for one in value]
    for one, own in zip(found, value, strict=True):
        np.testing.assert_array_equal(one, own)
        assert one.flags.writeable == (mode == "r+")
        assert one.strides == own.strides
    assert found[0].filename == str(on_disk)
    if mode == "r+":
        found[0][3, -1] = -5
        assert array[3, -1] != -5
        assert np.fromfile(on_disk, np.int64, offset=12).min() == 0


def test_a_file_replaced_later_is_noticed(on_disk: Path) -> None:
    apart = frozen(np.memmap(on_disk, np.int64, "r", offset=12))
    assert not apart.nbytes
    on_disk.rename(on_disk.with_suffix(".old"))
    on_disk.write_bytes(bytes(8 * MANY + 12))
    fd = written(apart)
    with pytest.raises(FileNotFoundError, match="has been replaced by another file since"):
        thaw(fd)
    os.close(fd)


# The file ----------------------------------------------------------------------------------------


def test_what_goes_along_is_the_same_in_all_copies() -> None:
    """One pickle for all, also if what was carried is closed or gone meanwhile."""
    gc.collect()  # what earlier tests left would be closed meanwhile
    before = os.listdir("/proc/self/fd")
    reader, writer = multiprocessing.get_context("spawn").Pipe(duplex=False)
    tensor = torch.zeros(3).share_memory_()
    apart = frozen([writer, tensor, np.arange(LARGE), tensor[1:]])
    writer.close()
    fd = written(apart)
    for number in (1, 2):
        other, found, _, view = thaw(fd, [os.dup(each) for each in apart.fds])
        other.send(number)
        assert reader.recv() == number
        found += 1
        assert tensor.tolist() == [number] * 3
        assert view.tolist() == [number] * 2
        other.close()
        del found, view
    apart.close()
    os.close(fd)
    reader.close()
    del tensor, apart
    gc.collect()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("by_value", [False, True], ids=["by name", "by value"])
@pytest.mark.parametrize("length", [3, LARGE], ids=["small", "large"])
def test_conjugates_and_negatives_stay_what_they_are(length: int, by_value: bool) -> None:
    """torch's own pickling for other processes carries the bytes alone."""
    if by_value:
        pytest.importorskip("cloudpickle")
    view = torch.complex(torch.arange(length) + 1.0, torch.arange(length) + 2.0).conj()
    value = [view, view.imag, view[1:], torch.nn.Parameter(view), view.clone().requires_grad_()]
    assert value[0].is_conj() and value[1].is_neg() and value[3].is_conj()
    for found, given in zip(carried(value, by_value), value, strict=True):
        assert torch.equal(found, given)
        assert type(found) is type(given)
        assert found.requires_grad == given.requires_grad and found.is_leaf
