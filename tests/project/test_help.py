"""What `help` and editors show: each public name's arguments, with meaning, type and default.

Editors are asked through the language server of pyright, as they do it themselves.
"""

from __future__ import annotations

import inspect
import json
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchLoader

import lit_loader
from lit_loader.config.loader_config import LoaderConfig
from tests.project.readmes import ROOT, documented

TORCHS = {"get_worker_info", "default_convert"}
POINTS_ELSEWHERE = {"LoaderConfig"}
"""Its fields are the loader's arguments, and are explained there."""


@pytest.mark.parametrize("name", sorted({*lit_loader.__all__} - {"__version__"} - TORCHS))
def test_every_argument_is_explained(name: str) -> None:
    thing = getattr(lit_loader, name)
    assert inspect.getdoc(thing)
    if isinstance(thing, type) and issubclass(thing, Exception):
        return
    taken = inspect.signature(thing).parameters.values()
    assert not [each for each in taken if each.kind is each.VAR_POSITIONAL]
    if name not in POINTS_ELSEWHERE:
        assert [*documented(thing)] == [each.name for each in taken]


def test_help_has_the_loader_s_arguments_with_defaults() -> None:
    text = pydoc.plain(pydoc.render_doc(lit_loader.DataLoader))
    shown = inspect.signature(lit_loader.DataLoader).parameters
    assert [*shown] == ["dataset", *LoaderConfig.__dataclass_fields__]
    for name, said in documented(lit_loader.DataLoader).items():
        default = shown[name].default
        assert f"{name}: {said[:20]}" in text
        assert name == "dataset" or re.search(rf"\b{name}: .* = {re.escape(repr(default))}", text)
        torchs = inspect.signature(TorchLoader).parameters.get(name)
        assert torchs is None or torchs.default == default


# --- editors ---

PROGRAM = """\
from torch.utils.data import TensorDataset
from lit_loader import CachedDataset, DataLoader, LoaderConfig

data = TensorDataset()
loader = DataLoader(data, batch_size=2)
LoaderConfig(seeding="")
DataLoader(data, shard_tail="", )
loader.set_epoch(3)
for batch in loader:
    pass
cached = CachedDataset(data, 1000)
"""


class Editor:
    """A client of the language server, with one file open."""

    def __init__(self, folder: Path) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", "pyright.langserver", "--stdio"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder,
        )  # fmt: skip
        self.uri = (folder / "program.py").as_uri()
        folders = [{"uri": folder.as_uri(), "name": folder.name}]
        place = {"rootUri": folder.as_uri(), "workspaceFolders": folders, "processId": None}
        markdown = {"contentFormat": ["markdown"], "documentationFormat": ["markdown"]}
        shown = {"hover": markdown, "signatureHelp": {"signatureInformation": markdown}}
        self.ask(
            "initialize",
            place | {"capabilities": {"textDocument": shown, "workspace": {"configuration": True}}},
        )
        self.tell("initialized", {})
        text = {"uri": self.uri, "languageId": "python", "version": 1, "text": PROGRAM}
        self.tell("textDocument/didOpen", {"textDocument": text})

    def tell(self, method: str, params: Any, **more: Any) -> None:
        self.send({"method": method, "params": params, **more})

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.server.stdin is not None
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.server.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.server.stdout is not None
        size = 0
        while line := self.server.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        assert size, "the language server has ended"
        message: dict[str, Any] = json.loads(self.server.stdout.read(size))
        return message

    def ask(self, method: str, params: Any) -> Any:
        self.tell(method, params, id=method)
        while True:
            message = self.receive()
            if message.get("id") == method and "method" not in message:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") == "workspace/configuration":
                found = [{"pythonPath": sys.executable} for _ in message["params"]["items"]]
                self.send({"id": message["id"], "result": found})
            elif "id" in message:
                self.send({"id": message["id"], "result": None})

    def at(self, kind: str, before: str) -> Any:
        """What the editor is told of the place in the program that `before` ends at."""
        above = PROGRAM[: PROGRAM.index(before) + len(before)].split("\n")
        place = {"line": len(above) - 1, "character": len(above[-1])}
        return self.ask(
            f"textDocument/{kind}", {"textDocument": {"uri": self.uri}, "position": place}
        )

    def close(self) -> None:
        self.ask("shutdown", None)
        self.tell("exit", None)
        self.server.communicate()


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    pytest.importorskip("pyright")
    folder = tmp_path_factory.mktemp("project")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    editor = Editor(folder)
    yield editor
    editor.close()


@pytest.mark.parametrize(
    ("place", "name"),
    [("loader = Data", "DataLoader"), ("cached = Cach", "CachedDataset")],
)
def test_hovering_explains_arguments(editor: Editor, place: str, name: str) -> None:
    shown = editor.at("hover", place)["contents"]["value"].replace("\\_", "_")
    for argument, said in documented(getattr(lit_loader, name)).items():
        assert f"    {argument}: " in shown  # with its type
        assert f"{argument}: {said.split(' ``')[0][:20]}" in shown


def test_hovering_explains_methods(editor: Editor) -> None:
    shown = editor.at("hover", "loader.set_ep")["contents"]["value"]
    assert "set_epoch(epoch: int) -> None" in shown
    assert "Choose the epoch that the next iterator loads" in shown


def test_an_argument_is_explained_while_it_is_typed(editor: Editor) -> None:
    (call,) = editor.at("signatureHelp", "batch_size=")["signatures"]
    argument = call["parameters"][call["activeParameter"]]
    assert argument["label"] == "batch_size: int | None = 1"
    assert "Samples in a batch" in argument["documentation"]["value"]


@pytest.mark.parametrize(
    ("before", "values"),
    [
        ('LoaderConfig(seeding="', ["batch", "sample", "worker"]),
        ('shard_tail="', ["pad", "drop", "keep"]),
    ],
)
def test_values_are_completed(editor: Editor, before: str, values: list[str]) -> None:
    found = editor.at("completion", before)
    assert {item["label"].strip("\"'") for item in found["items"]} == {*values}


def test_arguments_are_completed(editor: Editor) -> None:
    found = editor.at("completion", 'shard_tail="", ')
    offered = {item["label"] for item in found["items"]}
    names = {*LoaderConfig.__dataclass_fields__} - {"shard_tail"}
    assert {f"{name}=" for name in names} <= offered
