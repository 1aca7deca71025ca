"""What makes another dataset of a factory: its arguments, its code, and what that names."""

from __future__ import annotations

import collections.abc
import functools
import importlib
import pickle
import sys
import textwrap
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_loader import OptionError
from lit_loader.cache.folder import fingerprint as cache_fingerprint
from lit_loader.node.fingerprint import environment, fingerprint
from tests.support.commands import run_python

MODULE = """
import functools
import json
import helpers

SIZE = 64
TABLE = {"sizes": [1, 2], "kinds": {"b", "a"}}
counter = object()

def decode(index):
    return helpers.scale(index) * SIZE

@functools.lru_cache
def cached(index):
    return index + 1

class Base:
    SHAPE = (3, 4)

    def read(self):
        return decode(0)

class Data(Base):
    def __init__(self, root="here"):
        self.found = [cached(n) for n in range(3)], TABLE, counter, json.dumps(root)

    def __len__(self):
        return 3

    def again(self):  # a circle
        return Data(), decode

    @property
    def shape(self):
        return self.SHAPE

    @classmethod
    def made(cls):
        return cls()
"""
HELPERS = """
FACTOR = 2

def scale(index):
    return index * FACTOR

def unused():
    return 1
"""


def modules(monkeypatch: pytest.MonkeyPatch, text: str = MODULE, helpers: str = HELPERS) -> Any:
    made = {}
    for name, source in (("helpers", helpers), ("dataset_module", text)):
        made[name] = module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(textwrap.dedent(source), vars(module))
    return made["dataset_module"]


FACTORIES = {
    "class": lambda module: module.Data,
    "partial": lambda module: functools.partial(module.Data, root="there"),
    "lambda": lambda module: eval("lambda: Data('there')", vars(module)),
    "classmethod": lambda module: module.Data.made,
}


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SIZE = 64", "SIZE = 128"),
        ("* SIZE", "* SIZE + 1"),
        ("FACTOR = 2", "FACTOR = 3"),
        ("index * FACTOR", "index + FACTOR"),
        ("(3, 4)", "(3, 5)"),
        ("index + 1", "index + 2"),
        ("[1, 2]", "[1, 3]"),
        ('{"b", "a"}', '{"b", "c"}'),
        ('root="here"', 'root="elsewhere"'),
        ("return self.SHAPE", "return self.SHAPE[0]"),
    ],
)
def test_what_code_names_counts(
    factory: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = FACTORIES[factory]
    first = fingerprint(make(modules(monkeypatch)))
    assert before in MODULE + HELPERS
    changed = modules(monkeypatch, MODULE.replace(before, after), HELPERS.replace(before, after))
    assert fingerprint(make(changed)) != first


@pytest.mark.parametrize("factory", FACTORIES)
def test_what_it_does_not_name_does_not_count(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = FACTORIES[factory]
    first = fingerprint(make(modules(monkeypatch)))
    other = modules(
        monkeypatch,
        "# a comment\n" + MODULE + "\nOTHER = 1\n",
        HELPERS.replace("return 1", "return 2"),
    )
    other.counter = object()  # an equal one
    pickle.dumps(other.Base())  # which is noted in the class
    assert fingerprint(make(other)) == first


# By case: a module with a factory `A`, what in it is changed, and to what.
CASES = {
    "namespace": (
        """
import argparse
args = argparse.Namespace(size=64)
class A:
  def __init__(self): self.x = args.size
""",
        "size=64",
        "size=128",
    ),
    "simple": (
        """
import types
cfg = types.SimpleNamespace(size=64)
def A(): return cfg.size
""",
        "size=64",
        "size=128",
    ),
    "dataclass": (
        """
import dataclasses
@dataclasses.dataclass
class C:
  size: int = 3
cfg = C(size=5)
def A(): return cfg.size
""",
        "size=5",
        "size=6",
    ),
    "transform": (
        """
class T:
  def __init__(self, s): self.s = s
  def __call__(self, x): return x * self.s
t = [T(2)]
class A:
  def __init__(self): self.x = t[0](3)
""",
        "T(2)",
        "T(3)",
    ),
    "cached_property": (
        """
import functools
class A:
  @functools.cached_property
  def x(self): return 1 + 2
""",
        "1 + 2",
        "1 + 30",
    ),
    "singledispatchmethod": (
        """
import functools
class A:
  @functools.singledispatchmethod
  def x(self, y): return [y, 7]
""",
        "7",
        "8",
    ),
    "decorated": (
        """
import functools
def d(f):
  @functools.wraps(f)
  def g(*a): return f(*a)
  return g
@d
def h(x): return x * 2
def A(): return h(1)
""",
        "x * 2",
        "x * 3",
    ),
    "lru": (
        """
import functools
@functools.lru_cache(3)
def h(x): return x * 2
def A(): return h(1)
""",
        "x * 2",
        "x * 3",
    ),
    "alias": (
        """
def fast(x): return x
def slow(x): return x + 1
decode = fast
def A(): return fast(1), slow(1), decode(2)
""",
        "decode = fast",
        "decode = slow",
    ),
    "nesting": (
        """
def f(x): return x
def g(x): return 2 * x
steps = [[f], g]
def A(): return steps
""",
        "[[f], g]",
        "[[f, g]]",
    ),
    "enum": (
        """
import enum
class E(enum.Enum):
  A1 = 3
mode = E.A1
def A(): return mode
""",
        "= 3",
        "= 4",
    ),
    "numpy": (
        """
import numpy as np
mean = np.array([1., 2.])
def A(): return mean
""",
        "2.]",
        "3.]",
    ),
    "torch": (
        """
import torch
mean = torch.tensor([1., 2.])
def A(): return mean
""",
        "2.]",
        "3.]",
    ),
    "slots": (
        """
class S:
  __slots__ = ('v',)
  def __init__(self, v): self.v = v
s = S(4)
def A(): return s.v
""",
        "S(4)",
        "S(5)",
    ),
    "lock holder": (
        """
import threading
class S:
  def __init__(self, v): self.v, self.l = v, threading.Lock()
s = S(4)
def A(): return s.v
""",
        "S(4)",
        "S(5)",
    ),
    "default": (
        """
def A(n=3): return n
""",
        "n=3",
        "n=4",
    ),
    "kwdefault": (
        """
def A(*, n=3): return n
""",
        "n=3",
        "n=4",
    ),
    "metaclass": (
        """
class M(type):
  def __call__(cls): return 5
class A(metaclass=M): pass
""",
        "return 5",
        "return 6",
    ),
    "nested class": (
        """
class A:
  class Inner:
    SIZE = 3
  def __init__(self): self.x = self.Inner.SIZE
""",
        "SIZE = 3",
        "SIZE = 4",
    ),
    "partialmethod": (
        """
import functools
class A:
  def b(self, n): return n
  c = functools.partialmethod(b, 3)
""",
        "b, 3",
        "b, 4",
    ),
    "pathlib": (
        """
import pathlib
root = pathlib.Path('/data/a')
def A(): return root
""",
        "/data/a",
        "/data/b",
    ),
    "function attribute": (
        """
def h(x): return x * h.factor
h.factor = 2
def A(): return h(1)
""",
        "factor = 2",
        "factor = 3",
    ),
    "instance attr fn": (
        """
class P:
  def __init__(self): self.steps = [lambda x: x + 1]
p = P()
def A(): return p
""",
        "x + 1",
        "x + 2",
    ),
    "set in the code": ("def A(): return [n in {1, 3} for n in range(9)]", "{1, 3}", "{2, 4}"),
    "set in a tuple": ("def A(): return 5 in ({1}, {2, 3})", "{2, 3}", "{2, 4}"),
    "order of parameters": (
        """
import functools
def f(h, w): return 10 * h + w
A = functools.partial(f, h=1, w=2)
""",
        "f(h, w): return 10 * h + w",
        "f(w, h): return 10 * w + h",
    ),
    "star": ("def f(a): return len(a)\ndef A(): return f((1, 2))", "f(a)", "f(*a)"),
    "method of a named tuple": (
        """
import collections, functools
class Size(collections.namedtuple("Size", "h w")):
  def area(self): return self.h * self.w
A = functools.partial(lambda size: size.area(), Size(2, 3))
""",
        "self.h * self.w",
        "self.h + self.w",
    ),
    "method of a kind of dict": (
        """
import functools
class Config(dict):
  __getattr__ = dict.__getitem__
  def scale(self): return 1
A = functools.partial(lambda config: config.x * config.scale(), Config(x=3))
""",
        "return 1",
        "return 2",
    ),
    "attribute of a kind of list": (
        """
class Names(list): pass
names = Names("ab")
names.start = 3
def A(): return names.start
""",
        "start = 3",
        "start = 4",
    ),
    "default of a dict": (
        """
import collections
names = collections.defaultdict(lambda: 1)
def A(): return names["unknown"]
""",
        "lambda: 1",
        "lambda: 2",
    ),
    "decorated call": (
        """
import functools
class Make:
  @functools.lru_cache
  def __call__(self): return 1
A = Make()
""",
        "return 1",
        "return 2",
    ),
    "partial method": (
        """
import functools
class A:
  def f(self, m, i): return i * m
  __getitem__ = functools.partialmethod(f, 2)
""",
        "(f, 2)",
        "(f, 3)",
    ),
    "Hydra's target": (
        """
import functools
import hydra
class Data:
  def __init__(self): self.x = 1
A = functools.partial(hydra.utils.instantiate, {"a": [{"_target_": "case_module.Data"}]})
""",
        "self.x = 1",
        "self.x = 2",
    ),
    "what is in the midst of a try": (
        """
def A(a=int, b=ord):
  x = 0
  try:
    x = a()
    x = b(x)
  except TypeError:
    pass
  return x
""",
        """    x = b(x)
  except TypeError:
    pass
""",
        """  except TypeError:
    pass
  else:
    x = b(x)
""",
    ),
    "recursion": (
        """
def h(x): return x if x < 1 else h(x - 1)
def A(): return h(3)
""",
        "x < 1",
        "x < 2",
    ),
}


def factory_of(source: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = types.ModuleType("case_module")
    monkeypatch.setitem(sys.modules, "case_module", module)
    exec(source, vars(module))
    return module.A


@pytest.mark.parametrize("case", CASES)
def test_what_counts(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, before, after = CASES[case]
    assert before in source
    first = fingerprint(factory_of(source, monkeypatch))
    assert fingerprint(factory_of(source, monkeypatch)) == first
    assert fingerprint(factory_of(source.replace(before, after), monkeypatch)) != first


def test_a_function_imports_when_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module need not have been imported before, and is not for this."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "factories.py").write_text("def A():\n    from .late import decode\n    decode(1)\n")
    (package / "late.py").write_text("def decode(x):\n    return x\n")
    factory = importlib.import_module("own_package.factories").A
    first = fingerprint(factory)
    assert "own_package.late" not in sys.modules
    factory()
    assert fingerprint(factory) == first
    (package / "late.py").write_text("def decode(x):\n    return x + 1\n")
    assert fingerprint(factory) != first
    for name in [name for name in sys.modules if name.startswith("own_package")]:
        monkeypatch.delitem(sys.modules, name)


def test_code_inside_of_arguments_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Transform:
        def __init__(self, function: Any) -> None:
            self.function = function

    def made(step: int) -> Any:
        names: dict[str, Any] = {"__name__": "case_module"}
        exec(f"def function(x):\n    return x + {step}\n", names)
        return functools.partial(list, Transform(names["function"]))

    assert fingerprint(made(1)) == fingerprint(made(1)) != fingerprint(made(2))


PROGRAM = """
import functools, torch, helpers_of_it as module
from lit_loader.node.fingerprint import environment, fingerprint
tensors = [torch.ones(3), {"t": torch.ones(3)}]
arguments = {"x", "y", "z"}, {module.decode, module.cached, len}, tensors
print(fingerprint(functools.partial(module.Data, arguments)))
"""


def test_it_is_the_same_in_all_processes(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "helpers_of_it.py").write_text(MODULE)
    root = str(Path(__file__).parents[2])
    found = {
        run_python(tmp_path, "-c", PROGRAM, PYTHONPATH=f"{root}:{tmp_path}", PYTHONHASHSEED=seed)
        for seed in ("1", "2")
    }
    assert len(found) == 1


class Holder:
    """Of anything."""

    def __init__(self, *held: Any) -> None:
        self.held: Any = held


def test_objects_count_by_what_they_hold() -> None:
    """Whether two are one and the same, or in themselves, does not matter."""
    text = "".join(["a", "b"])
    assert fingerprint(Holder(text, text)) == fingerprint(Holder(text, "".join(["a", "b"])))
    circles = [Holder(number) for number in (1, 1, 2)]
    for circle in circles:
        circle.held = circle, *circle.held
    first, same, other = map(fingerprint, circles)
    assert first == same != other


@pytest.mark.parametrize(
    ("tensor", "other"),
    [
        (torch.ones(3), torch.ones(4)),
        (torch.ones(3), torch.zeros(3)),
        (torch.ones(3), torch.nn.Parameter(torch.ones(3))),
        (torch.arange(6).view(2, 3), torch.arange(6).view(3, 2)),
        (torch.tensor([1j]), torch.tensor([1j]).conj()),
        (torch.tensor(3.0), torch.tensor(3)),
    ],
)
def test_tensors_count_by_their_values(tensor: torch.Tensor, other: torch.Tensor) -> None:
    assert fingerprint(Holder(tensor)) == fingerprint(Holder(tensor.clone()))
    assert fingerprint(Holder(tensor)) != fingerprint(Holder(other))


def test_what_cannot_be_pickled_is_refused_in_an_argument_and_not_in_what_code_names() -> None:
    unpicklable = Holder(threading.Lock())
    with pytest.raises(OptionError, match="that cannot be compared"):
        fingerprint(functools.partial(list, unpicklable))
    names: dict[str, Any] = {"__name__": "case_module", "held": unpicklable}
    exec("def factory():\n    return held", names)
    before = fingerprint(names["factory"])
    unpicklable.more = 1  # type: ignore[attr-defined]
    assert fingerprint(names["factory"]) != before


HOLDERS = """
import functools
import torch.utils.data as data

def double(x): return 2 * x

class Scale:
  def __call__(self, x): return x * 3

class Compose:
  def __init__(self, *steps): self.steps = steps
  def __call__(self, x):
    for step in self.steps: x = step(x)
    return x

class D(data.Dataset):
  def __init__(self, transform): self.transform = transform
  def __len__(self): return 3
  def __getitem__(self, index): return self.transform(index + 4)

HELD
"""


@pytest.mark.parametrize(
    ("held", "before", "after"),
    [
        ("A = data.Subset(D(double), [1])", "index + 4", "index + 5"),
        ("A = data.ConcatDataset([D(double), D(double)])", "index + 4", "index + 5"),
        ("A = D(double)", "2 * x", "5 * x"),
        ("A = D(functools.partial(double))", "2 * x", "5 * x"),
        ("A = data.Subset(D(Compose(Scale(), double)), [1])", "x * 3", "x * 7"),
        ("A = D({'train': [Scale().__call__]})", "x * 3", "x * 7"),
    ],
)
def test_the_code_that_a_cached_dataset_works_with_counts(
    held: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = HOLDERS.replace("HELD", held)
    first = cache_fingerprint("key", factory_of(source, monkeypatch))
    assert cache_fingerprint("key", factory_of(source, monkeypatch)) == first
    changed = factory_of(source.replace(before, after), monkeypatch)
    assert cache_fingerprint("key", changed) != first


def test_what_a_cached_dataset_holds_besides_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parameters are for the key to name; a file that was opened meanwhile changes nothing."""
    dataset = factory_of(HOLDERS.replace("HELD", "A = D(double)"), monkeypatch)
    first = cache_fingerprint("key", dataset)
    dataset.lock, dataset.sizes, dataset.names = threading.Lock(), [1, 2], ["a"] * 5000
    dataset.again = dataset
    assert cache_fingerprint("key", dataset) == first


class Lazy(collections.abc.Mapping[str, int]):
    """Whose values must not be read to find code."""

    def __getitem__(self, key: str) -> int:
        raise AssertionError(key)

    def __iter__(self) -> Iterator[str]:
        return iter("abc")

    def __len__(self) -> int:
        return 3


class Odd:
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def test_what_reads_when_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = factory_of(HOLDERS.replace("HELD", "A = D(double)"), monkeypatch)
    dataset.mapping, dataset.odd = Lazy(), Odd()
    assert cache_fingerprint("key", dataset)
    assert fingerprint(functools.partial(print, Odd())) == fingerprint(
        functools.partial(print, Odd())
    )


@pytest.mark.parametrize("what", ["__version__", "torch.__version__", "np.__version__"])
def test_what_another_version_has_pickled_is_not_read(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment()
    monkeypatch.setattr(f"lit_loader.node.fingerprint.{what}", "0.0")
    assert environment() != before
