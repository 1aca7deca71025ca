"""The package itself: lazy imports, public names, and what the distributions hold."""

import email.message
import inspect
import pickle
import re
import subprocess
import sys
import tarfile
import typing
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import lit_loader
from lit_loader import errors
from tests.project.readmes import documented

ROOT = Path(__file__).parents[2]


def test_public_names_are_sorted_and_found() -> None:
    assert lit_loader.__all__ == sorted(lit_loader.__all__)
    assert set(lit_loader._MODULE_OF) == set(lit_loader.__all__) - {"__version__"}
    for name in lit_loader.__all__:
        assert getattr(lit_loader, name) is not None
        assert name in dir(lit_loader)
    assert set(errors.__all__) <= set(lit_loader.__all__)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", target],
        cwd=ROOT, check=True, timeout=200, capture_output=True,
    )  # fmt: skip
    return target


def test_wheel_holds_conf_plugin_and_type_marker(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    conf = {f"lit_loader/{p.relative_to(ROOT)}" for p in (ROOT / "conf").rglob("*.yaml")}
    assert conf
    plugins = {"hydra_plugins/lit_loader_searchpath.py", "lit_loader_trainer_plugin.py"}
    assert names >= conf | plugins | {"lit_loader/py.typed"}
    roots = {name.split("/")[0] for name in names if ".dist-info" not in name}
    # Lightning's plugin lies outside of the package: loading it does not import lit_loader.
    assert roots == {"lit_loader", "hydra_plugins", "lit_loader_trainer_plugin.py"}
    (points,) = (name for name in names if name.endswith("dist-info/entry_points.txt"))
    with zipfile.ZipFile(wheel) as archive:
        assert "lit_loader = lit_loader_trainer_plugin:callbacks" in archive.read(points).decode()


def test_sdist_builds_and_tests_anywhere(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert names >= {".ci/run", "LICENSE", "conf/lit_loader/loader/default.yaml", "constraints.txt"}
    assert names >= {"examples/train.py", "pyproject.toml", "tests/project/test_package.py"}


@pytest.fixture(scope="module")
def metadata(distributions: Path) -> email.message.Message:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_metadata_are_of_use_to_a_package_index(metadata: email.message.Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    assert isinstance(text, str) and (lit_loader.__doc__ or "").splitlines()[0].rstrip(".") in text
    links = re.findall(r"\]\((.*?)\)", text)
    assert all(link.startswith("#") or "://" in link for link in links)


def test_the_pins_admit_the_dependencies_with_every_python(metadata: email.message.Message) -> None:
    """README's commands install with ``-c constraints.txt``, whatever the Python."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    needs = [Requirement(line) for line in metadata.get_all("Requires-Dist", ())]
    kinds = [kind.split(" :: ")[-1] for kind in metadata.get_all("Classifier", ())]
    pythons = [kind for kind in kinds if re.fullmatch(r"3\.\d+", kind)]
    assert "3.10" in pythons
    for python in pythons:
        for extra in ("", "examples", "dev"):
            environment = {"python_version": python, "extra": extra}
            versions = {
                pin.name: str(pin.specifier).removeprefix("==")
                for pin in pins
                if pin.marker is None or pin.marker.evaluate(environment)
            }
            for need in needs:
                if need.name in versions and (
                    need.marker is None or need.marker.evaluate(environment)
                ):
                    version = versions[need.name]
                    assert need.specifier.contains(version, prereleases=True), (python, str(need))


NAMES = sorted(set(lit_loader.__all__) - {"__version__"})


def test_public_names_belong_to_the_package() -> None:
    """Pickles and tracebacks name the package, and type hints of classes are found all the same."""
    for name in NAMES:
        value = getattr(lit_loader, name)
        if name in ("default_convert", "get_worker_info"):
            assert value.__module__.startswith("torch.")
            continue
        assert value.__module__ == "lit_loader"
        assert pickle.loads(pickle.dumps(value)) is value
        if isinstance(value, type):
            own = vars(value).get("__annotations__", {})
            assert not [hint for hint in own.values() if isinstance(hint, (str, typing.ForwardRef))]
        if name != "DataLoader":  # torch's own class, its base, has a hint that cannot be resolved
            typing.get_type_hints(value)


def test_every_argument_is_explained() -> None:
    for name in NAMES:
        thing = getattr(lit_loader, name)
        assert inspect.getdoc(thing), name
        # LoaderConfig names the loader's.
        ours = thing.__module__ == "lit_loader" and name != "LoaderConfig"
        if ours and not (isinstance(thing, type) and issubclass(thing, Exception)):
            assert [*documented(thing)] == [*inspect.signature(thing).parameters], name
