"""Who may import whom: lower never imports higher, and one layer's files not each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lit_loader"

LAYERS: tuple[tuple[str, ...], ...] = (
    # words that all others use
    ("errors",),
    ("children", "generator_lock", "interrupts", "messages", "board", "cgroup", "context",
     "forecast", "outbox", "permutation", "pickling", "pieces", "places", "position",
     "processors", "reachable", "reductions", "scalars", "shared_file", "slot", "slots", "sources",
     "stream_locks", "uncommitted", "watchdog"),
    ("fork_guard", "restoring", "seeding"),
    ("leases", "stateful"),
    # one stage of a batch's way each, and the options
    ("config", "sampling", "arena", "layout", "collate", "failure", "fetch", "fingerprint",
     "generators", "pin_memory", "quiet_start", "reorder", "sample_errors", "sampler_state",
     "shared_sequence", "stacks", "statistics", "streams"),
    ("generator_watch", "mixture", "pad", "predict", "recorder", "sampler_memory",
     "sharded_sampler", "state", "tables", "token_budget", "tolerant_fetch", "timeline",
     "verdict"),
    ("epoch_batches",),
    # making one batch, carrying it; planning all of them
    ("loading", "codec", "batch_plan", "flights", "mixture_stream", "outcome", "plot",
     "unsharded"),
    ("handover", "placement"),
    # making batches in a worker process, and in the consumer's own
    ("worker", "iterator", "launcher_main"),
    # around the workers
    ("launcher", "processes", "epochs"),
    ("starting", "pool_resources"),
    ("mailbox",),
    ("worker_pool",),
    ("diagnosis",),
    ("recovery", "device_copy"),
    ("engine",),
    ("under_way",),
    # the iterator with workers, and the workers that outlive one
    ("multiprocess",),
    ("exactness_check", "persistent"),
    # the public face
    ("loader", "trainer_progress"),
    ("callbacks", "loop_watch"),
    ("managed", "monitor", "on_demand"),
    ("migration",),
    ("datamodule",),
    ("apps",),
)  # fmt: skip

LIGHT = (
    "__init__",
    "errors",
    "messages",
    "board",
    "context",
    "config",
    "apps.searchpath_plugin",
    "apps.trainer_plugin",
)
"""What is imported without a loader being used; of these only `messages` may import NumPy."""

LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}


def modules() -> dict[str, str]:
    """Dotted name below the package to source text."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text()
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imports(source: str) -> Iterator[str]:
    """All that a module imports, wherever in it, as dotted names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(dotted: str) -> str | None:
    """The part of the package that a dotted name lies in; None if outside, "" for all of it."""
    root, _, rest = dotted.partition(".")
    if root != PACKAGE.name:
        return None
    name = rest.partition(".")[0]
    return name if name in LAYER_OF else ""


def breaks(name: str, source: str) -> list[str]:
    """What a module imports and may not."""
    layer = LAYER_OF[name.partition(".")[0]]
    found = []
    # An application of several files is one program, whose files import each other.
    program = ".".join(name.split(".")[:2]) if name.count(".") > 1 else None
    for dotted in imports(source):
        if program and dotted.startswith(f"{PACKAGE.name}.{program}."):
            continue
        other = part(dotted)
        # The whole package is every layer at once: only programs on top of it may want that.
        if other is not None and LAYER_OF.get(other, len(LAYERS) - 2) >= layer:
            found.append(f"{name} (layer {layer}) imports {dotted}")
    return found


def test_every_module_is_in_the_table_once() -> None:
    names = [name for layer in LAYERS for name in layer]
    assert len(names) == len(set(names))
    present = {name.partition(".")[0] for name in modules()} - {"__init__"}
    assert present <= set(names)


def test_imports_go_downwards() -> None:
    found = [
        line
        for name, text in modules().items()
        if name != "__init__"
        for line in breaks(name, text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("arena", "from lit_loader.worker import worker_main"),
        ("arena", "import lit_loader.codec"),
        ("arena", "from lit_loader import codec"),
        ("arena", "def f():\n    from lit_loader.loader import DataLoader"),
        ("loader", "import lit_loader"),
        ("loader", "from lit_loader import DataLoader"),
        ("errors", "from lit_loader.messages import SIZE"),
    ],
    ids=range(7),
)
def test_a_break_is_found(name: str, source: str) -> None:
    assert len(breaks(name, source)) == 1


def test_what_is_allowed_is_not_found() -> None:
    source = "import os\nfrom lit_loader.errors import LoaderError\nfrom lit_loader import slot"
    assert breaks("arena", source) == []
    assert breaks("apps.bench", "import lit_loader") == []


def test_the_package_imports_nothing_of_itself_at_once() -> None:
    tree = ast.parse(modules()["__init__"])
    at_once = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert {part(dotted) for node in at_once for dotted in imports(ast.unparse(node))} == {None}


def test_light_modules_import_no_torch() -> None:
    names = [("lit_loader." + name).removesuffix(".__init__") for name in LIGHT]
    code = f"import sys, {', '.join(names)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
