"""What goes into a slot comes out of it: values, kinds, sharing, lifetimes, refusals."""

import gc
import pathlib
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lit_loader.core.transport import arena as arena_module
from lit_loader.core.transport.codec import SlotFull, SlotWriter, decode, encode
from lit_loader.errors import TransportError

CAPACITY = 1 << 20

pytestmark = [  # of torch's own, on making the tensors that these tests send
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]


class Lease(np.ndarray):
    """A slot's memory, of a class of its own as the arena's leases are, and over no other array."""


def new_slot(capacity: int = CAPACITY) -> Lease:
    return Lease(capacity, np.uint8, bytearray(b"\xa5" * capacity))


_divide: Any = None


@pytest.fixture(scope="class", params=["as it lies", "copied", "divided"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """How the consumer holds what is carried: over the slot, or each part for itself."""
    global _divide
    copied, small_copied = arena_module.copied, arena_module.small_copied
    _divide = {"as it lies": None, "copied": copied, "divided": small_copied}[request.param]
    with pytest.MonkeyPatch.context() as patch:  # all sizes of parts, in small batches
        for name, value in {"_TOGETHER": 128, "_SHARE": 2}.items():
            patch.setattr(arena_module, name, value)
        yield
    _divide = None


def carry(batch: object, capacity: int = CAPACITY) -> Any:
    """Encode into one slot, decode from a copy of it, as another process would see it."""
    slot = new_slot(capacity)
    offset, nbytes = encode(batch, SlotWriter(slot))
    slot = slot.copy()
    got = decode(slot, offset, nbytes, _divide)
    if _divide is arena_module.copied:
        slot.fill(0)  # nothing of it is needed any more
    return got


def check_tensor(got: torch.Tensor, sent: torch.Tensor) -> None:
    assert type(got) is type(sent)
    assert (got.dtype, got.shape, got.layout) == (sent.dtype, sent.shape, sent.layout)
    assert got.requires_grad == sent.requires_grad
    assert not got.is_inference()
    if got.numel() and got.layout is torch.strided:
        assert raw_bytes(got) == raw_bytes(sent)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return bytes(plain.reshape(-1).view(torch.uint8).numpy().tobytes())


class Point(NamedTuple):
    x: Any
    y: Any


class Tagged(torch.Tensor):
    """A plain subclass: values and attributes."""


class Shy(torch.Tensor):
    """A subclass that refuses every operation and every attribute read through torch."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was called")


class Slotted(torch.Tensor):
    """A subclass with a slot, which torch's own reduction has to carry."""

    __slots__ = ("secret",)


class OwnPickling(torch.Tensor):
    """A subclass that says itself how it is pickled."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return make_own_pickling, (self.as_subclass(torch.Tensor),)


def make_own_pickling(values: torch.Tensor) -> OwnPickling:
    return (values + 1).as_subclass(OwnPickling)


class Pair(torch.Tensor):
    """A wrapper subclass: two tensors behind one shape, no memory of its own."""

    @staticmethod
    def __new__(cls, left: torch.Tensor, right: torch.Tensor) -> "Pair":
        return torch.Tensor._make_wrapper_subclass(cls, left.shape, dtype=left.dtype)

    def __init__(self, left: torch.Tensor, right: torch.Tensor) -> None:
        self.left, self.right = left, right

    def __tensor_flatten__(self) -> Any:
        return ["left", "right"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> "Pair":
        return Pair(inner["left"], inner["right"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} of a pair")


class Refusing:
    """An object whose pickling and whose repr both fail."""

    def __reduce__(self) -> Any:
        raise ValueError("not me")

    def __repr__(self) -> str:
        raise RuntimeError("no repr either")


WITHOUT_ELEMENTS = re.compile(
    r"torch\.(u?int[1-7]|q.*|bits.*|float4.*)"
)  # torch cannot compute with them
DTYPES = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and not WITHOUT_ELEMENTS.fullmatch(str(dtype))
    },
    key=str,
)


def random_tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = dtype.itemsize
    for size in shape:
        count *= size
    values = torch.arange(count, dtype=torch.int64).mul(37).remainder(101).to(torch.uint8)
    if dtype is torch.bool:
        return values.bool().reshape(shape)
    return values.view(dtype).reshape(shape)


@pytest.mark.usefixtures("way")
class TestSharing:
    def test_parts_that_overlap_come_apart_and_one_object_stays_one(self) -> None:
        x, raw = torch.arange(24.0).view(4, 6), bytearray(range(64))
        odd = torch.frombuffer(raw, dtype=torch.float32, count=4, offset=2)
        sent = [x, x[:, :-1], x[:, 1:], x.t(), x.numpy(), x, odd, np.frombuffer(raw, "c16", 2, 2)]
        got = carry(sent)
        # torch 2.6 crashes where it reads complex numbers that lie between two addresses of theirs
        whole = [each.copy() if isinstance(each, np.ndarray) else each for each in sent]
        check_equal([*map(torch.as_tensor, got)], [*map(torch.as_tensor, whole)])
        assert got[5] is got[0] and got[7].ctypes.data % 16 == 0
        got[0].zero_()
        check_equal([*map(torch.as_tensor, got[1:5])], [*map(torch.as_tensor, sent[1:5])])

    def test_views_in_slot_memory(self) -> None:
        slot = new_slot()
        writer = SlotWriter(slot)
        x = writer.empty((4, 4), torch.float32)
        assert x is not None
        x.copy_(torch.arange(16.0).view(4, 4))
        rows = [x[2:], x[:2]]
        got = decode(slot, *encode(rows, writer))
        assert [each.data_ptr() for each in got] == [each.data_ptr() for each in rows]
        sent = [x, x.t(), x[1:], x.numpy()]
        expected = [torch.as_tensor(each).clone() for each in sent]
        got = [torch.as_tensor(each) for each in decode(slot, *encode(sent, writer))]
        check_equal(got, expected)
        got[0].zero_()
        check_equal(got[1:], expected[1:])


def noted(tensor: torch.Tensor) -> torch.Tensor:
    """With attributes, one of which is the tensor itself."""
    tensor.note, tensor.me = {"mask": torch.ones(2)}, tensor
    return tensor


def shy() -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return noted(torch.ones(3).as_subclass(Shy).requires_grad_())


def slotted() -> torch.Tensor:
    sent = torch.arange(3.0).as_subclass(Slotted)
    sent.secret = 7
    return sent


def quantised(dtype: torch.dtype, by_row: bool) -> torch.Tensor:
    values = torch.arange(12.0).view(4, 3)
    if by_row:
        scales = torch.tensor([0.5, 1, 2, 3], dtype=torch.float64)
        return torch.quantize_per_channel(values, scales, torch.arange(4), 0, dtype)
    return torch.quantize_per_tensor(values, 0.5, 3, dtype)[2:]


DENSE = torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 4], [0, 0, 5, 0]])
ROWS = [torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)]
KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.randn(3),
    "attributes": lambda: noted(torch.randn(3)),
    "parameter": lambda: torch.nn.Parameter(torch.randn(3)),
    "subclass": lambda: noted(torch.randn(3, 4).as_subclass(Tagged)),
    "shy subclass": shy,  # of which nothing is asked
    "subclass with slots": slotted,
    "subclass with its own pickling": lambda: torch.zeros(3).as_subclass(OwnPickling),
    "wrapper": lambda: Pair(torch.randn(2, 3), torch.randn(2, 3)),
    "conjugate": lambda: torch.tensor([1 + 2j, 3j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3j]).conj().imag,
    "coo": lambda: torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,)),
    "csr": DENSE.to_sparse_csr,
    "bsc": lambda: DENSE.to_sparse_bsc((2, 2)),
    "nested": lambda: torch.nested.nested_tensor(ROWS),
    "jagged": lambda: torch.nested.nested_tensor(ROWS, layout=torch.jagged),
    "qint8": lambda: quantised(torch.qint8, by_row=False),
    "qint32": lambda: quantised(torch.qint32, by_row=True),
    "meta": lambda: torch.empty_strided((3, 4), (1, 3), dtype=torch.float16, device="meta"),
}


def values(tensor: Any) -> Any:
    """What a tensor of any kind holds, as lists."""
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(tensor, Pair):
            return tensor.left.tolist(), tensor.right.tolist()
        if tensor.is_nested:
            return [row.tolist() for row in tensor.unbind()]
        if tensor.is_quantized:
            return tensor.qscheme(), tensor.dequantize().tolist()
        if tensor.is_meta:
            return tensor.stride()
        if tensor.layout is torch.sparse_coo:
            return tensor.is_coalesced(), tensor.to_dense().tolist()
        return (tensor if tensor.layout is torch.strided else tensor.to_dense()).tolist()


@pytest.mark.usefixtures("way")
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*[Qq]uanti|TypedStorage is")
class TestKinds:
    @pytest.mark.parametrize("kind", KINDS)
    def test_kinds(self, kind: str) -> None:
        sent = KINDS[kind]()
        got, again = carry([sent, (sent,)])
        assert got is again[0] and type(got) is type(sent)
        with torch._C.DisableTorchFunctionSubclass():
            assert (got.dtype, got.layout, got.requires_grad) == (
                *(sent.dtype, sent.layout, sent.requires_grad),
            )
        if kind == "subclass with its own pickling":  # which adds 1
            sent = torch.ones(3)
        assert values(got) == values(sent)
        if hasattr(sent, "note"):
            assert got.note["mask"].tolist() == [1, 1] and got.me is got
        assert getattr(got, "secret", 7) == 7

    def test_storages(self) -> None:
        tensor = torch.arange(3.0)
        storage, got, empty = carry([tensor.untyped_storage(), tensor, torch.UntypedStorage(0)])
        assert type(storage) is torch.UntypedStorage and storage.nbytes() == 12
        assert bytes(storage) == raw_bytes(got) and empty.nbytes() == 0

    @pytest.mark.parametrize("around", [torch.inference_mode, lambda: torch.device("meta")])
    def test_normal_tensors_wherever_it_is_asked_for(self, around: Any) -> None:
        slot = new_slot()
        with torch.inference_mode():
            sent = [torch.ones(3), torch.ones(3, dtype=torch.bfloat16), torch.ones(0)]
            place = encode(sent, SlotWriter(slot))
        with around():
            got = decode(slot, *place)
        for mine, other in zip(got, sent, strict=True):
            check_tensor(mine, other)
            mine.add_(1)


@pytest.mark.usefixtures("way")
class TestArrays:
    @pytest.mark.parametrize(
        "array",
        [
            np.zeros(3, np.dtype([("a", "i1"), ("b", "f8", (2, 2))], align=True)),
            np.array([({"a": 1}, 2)], [("o", object), ("n", int)]),
            np.arange(3, dtype=np.clongdouble),
            np.zeros(2, "S0"),
            np.zeros(3, np.dtype("f4", metadata={"unit": "m"})),
        ],
        ids=lambda array: str(array.dtype)[:20],
    )
    def test_strange_dtypes(self, array: np.ndarray) -> None:
        """Others are drawn below, or are in tests/parity/test_collation.py."""
        got = carry({"x": array})["x"]
        assert type(got) is np.ndarray and got.flags.writeable
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        # NumPy 1 gives what it has unpickled metadata that are empty.
        assert (got.dtype.metadata or None) == array.dtype.metadata
        assert str(got.tolist()) == str(array.tolist())

    @pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 2")
    def test_variable_strings(self) -> None:
        array = np.array(["short", "long " * 50], np.dtypes.StringDType())
        assert carry(array).tolist() == array.tolist()

    def test_orders_of_memory_stay(self) -> None:
        array = np.asfortranarray(np.arange(24.0).reshape(4, 6))
        got = carry([array, np.arange(6)[::-1], np.broadcast_to(np.float32(3), (1000, 1000))])
        assert got[0].flags.f_contiguous and (got[0] == array).all()
        assert got[1].tolist() == [5, 4, 3, 2, 1, 0] and got[1].strides == (-8,)
        assert got[2].strides == (0, 0) and got[2].shape == (1000, 1000)
        with pytest.raises(ValueError, match="read-only"):
            got[2][0] = 1  # which would be in every row

    @pytest.mark.filterwarnings("ignore:the matrix subclass")
    def test_subclasses(self, tmp_path: pathlib.Path) -> None:
        record = np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)])
        masked = np.ma.masked_array([1, 2, 3], mask=[0, 1, 0])
        matrix = np.matrix([[1, 2], [3, 4]])
        mapped = np.memmap(tmp_path / "x", np.int32, "w+", shape=(3,))
        mapped[:] = [1, 2, 3]
        got = carry([record, masked, matrix, mapped])
        assert [type(g) for g in got] == [type(r) for r in (record, masked, matrix, mapped)]
        assert got[0].a.tolist() == [1] and got[1].tolist() == [1, None, 3]
        assert (got[2] == matrix).all() and got[3].tolist() == [1, 2, 3]


class TestLifetime:
    def batch(self) -> tuple[Any, weakref.ref[Lease]]:
        slot = new_slot()
        sent = {
            "tensor": torch.arange(12.0).view(3, 4),
            "half": torch.ones(3, dtype=torch.bfloat16),
            "array": np.arange(4),
            "record": np.zeros(2, [("a", "i4"), ("b", "f4")]),
            "sparse": torch.eye(2).to_sparse(),
            "text": "nothing that looks into the slot",
            "empty": torch.ones(0),
            "number": np.float32(1),
        }
        place = encode(sent, SlotWriter(slot))
        return decode(slot, *place), weakref.ref(slot)

    @pytest.mark.parametrize(
        "keep",
        [
            lambda b: b["tensor"],
            lambda b: b["half"],
            lambda b: b["array"],
            lambda b: b["record"],
            lambda b: b["sparse"],
            lambda b: b["tensor"].untyped_storage(),
            lambda b: b["tensor"][1:, 2],
            lambda b: b["tensor"].numpy()[1:].T,
            lambda b: b["half"].view(torch.int16),
            lambda b: b["array"][2:].view(np.uint8)[::2],
            lambda b: b["record"]["b"],
            lambda b: memoryview(b["array"]),
            lambda b: b["sparse"]._values(),
        ],
    )
    def test_any_view_keeps_the_slot_and_the_last_frees_it(self, keep: Any) -> None:
        batch, slot = self.batch()
        kept = keep(batch)
        del batch
        gc.collect()
        assert slot() is not None
        del kept
        assert slot() is None  # at once, no collection needed

    @pytest.mark.filterwarnings("ignore")  # torch's, of prototypes
    @pytest.mark.parametrize("kind", [*KINDS, "storage", "twice"])
    def test_every_kind_keeps_the_slot_and_frees_it(self, kind: str) -> None:
        others = {
            "storage": lambda: torch.ones(2, 3).untyped_storage(),
            "twice": lambda: [torch.ones(2, 3).t()] * 2,
        }
        slot = new_slot()
        alive = weakref.ref(slot)
        batch = decode(slot, *encode((KINDS | others)[kind](), SlotWriter(slot)))
        del slot
        made_anew = {"meta", "subclass with its own pickling"}
        assert alive() is not None or kind in made_anew
        del batch
        gc.collect()  # some hold themselves
        assert alive() is None


class TestSlots:
    def test_full_slot_says_how_much_is_needed(self) -> None:
        small = SlotWriter(new_slot(1024))
        inside = small.empty((16,), torch.float32)
        assert inside is not None
        inside.copy_(torch.arange(16.0))
        batch = {"inside": inside, "large": torch.ones(1000), "half": torch.ones(3).bfloat16()}
        before = small.position
        with pytest.raises(SlotFull) as full:
            encode(batch, small)
        assert small.position == before
        slot = new_slot(full.value.nbytes)
        got = decode(slot, *encode(batch, SlotWriter(slot)))
        inside.zero_()
        assert torch.equal(got["inside"], torch.arange(16.0))
        assert torch.equal(got["large"], torch.ones(1000))

    @pytest.mark.parametrize("count", [1, 20, 300])
    def test_needed_size_always_suffices(self, count: int) -> None:
        big = torch.arange(40_000, dtype=torch.uint8)
        batch = [big[i * 7 : i * 7 + 5] for i in range(count)] + [big[5000 + i :] for i in range(3)]
        with pytest.raises(SlotFull) as full:
            encode(batch, SlotWriter(new_slot(0)))
        slot = new_slot(full.value.nbytes)
        for mine, sent in zip(decode(slot, *encode(batch, SlotWriter(slot))), batch, strict=True):
            assert torch.equal(mine, sent)


class TestRefusals:
    @pytest.mark.parametrize(
        ("batch", "words"),
        [
            ({"x": [1, lambda: 0]}, r"batch\['x'\]\[1\]: <function .* cannot be pickled"),
            (Point(1, threading.Lock()), r"batch\.y: <unlocked .* cannot be pickled"),
            ([Refusing()], r"batch\[0\]: <Refusing instance at .*ValueError: not me"),
            (
                {"x": (torch.ones(2, requires_grad=True) * 2,)},
                r"batch\['x'\]\[0\]: a tensor of shape \(2,\) with history .*detach\(\)",
            ),
        ],
    )
    def test_the_place_is_named(self, batch: object, words: str) -> None:
        with pytest.raises(TransportError, match=f"^lit_loader: {words}") as refused:
            encode(batch, SlotWriter(new_slot()))
        assert "\n" not in str(refused.value)
        assert isinstance(refused.value.__cause__, Exception)

    def test_endless_depth_is_an_error_and_no_crash(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(TransportError, match="RecursionError"):
            encode(deep, SlotWriter(new_slot()))

    @pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="built without oneDNN")
    def test_opaque_layout(self) -> None:
        with pytest.raises(TransportError, match=r"layout torch\._mkldnn.*to_dense\(\)"):
            encode([torch.ones(2, 2).to_mkldnn()], SlotWriter(new_slot()))

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_other_devices(self) -> None:
        with pytest.raises(
            TransportError, match=r"^lit_loader: batch\['x'\]: .* on device cuda:0 .*pin_memory"
        ):
            encode({"x": torch.ones(2, device="cuda")}, SlotWriter(new_slot()))


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=50)
    | st.builds(random_tensor, st.sampled_from(DTYPES), st.integers(0, 3), st.integers(1, 4))
    | hnp.arrays(
        hnp.integer_dtypes() | hnp.unicode_string_dtypes() | hnp.datetime64_dtypes(),
        hnp.array_shapes(min_dims=0, max_dims=3, max_side=4, min_side=0),
    )
)
BATCHES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(Point, inner, inner)
        | inner.map(lambda value: [value, value])
    ),
    max_leaves=12,
)


def check_equal(got: Any, sent: Any) -> None:
    assert type(got) is type(sent)
    if isinstance(sent, torch.Tensor):
        check_tensor(got, sent)
    elif isinstance(sent, np.ndarray):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert got.tobytes() == sent.tobytes()
    elif isinstance(sent, dict):
        assert list(got) == list(sent)
        for key in sent:
            check_equal(got[key], sent[key])
    elif isinstance(sent, (list, tuple)):
        assert len(got) == len(sent)
        for mine, other in zip(got, sent, strict=True):
            check_equal(mine, other)
    else:
        assert got == sent


@pytest.mark.usefixtures("way")
class TestRoundTrips:
    @settings(max_examples=60, derandomize=True)
    @given(BATCHES)
    def test_any_structure(self, batch: object) -> None:
        check_equal(carry(batch), batch)

    @settings(max_examples=60, derandomize=True)
    @given(
        st.lists(
            st.tuples(
                st.integers(0, 60),
                st.integers(0, 40),
                st.integers(1, 5),
                st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.complex128]),
                st.booleans(),
            ),
            max_size=8,
        )
    )
    def test_any_overlap(self, cuts: list[Any]) -> None:
        """Views cut from one storage: equal, and each for itself."""
        raw = torch.arange(2048).remainder(251).to(torch.uint8)
        sent: list[Any] = []
        for begin, length, step, dtype, as_array in cuts:
            size = dtype.itemsize
            view = raw[begin * size : min(2048, (begin + length) * size) // size * size]
            view = view.view(dtype)[::step]
            sent.append(view.numpy() if as_array else view)
        got = carry(sent)
        check_equal(got, sent)
        for place, mine in enumerate(got):
            check_equal(got[place:], sent[place:])
            torch.as_tensor(mine).zero_()
