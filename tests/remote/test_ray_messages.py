"""What is said of Ray's own exceptions, without a cluster. Skipped without Ray."""

from __future__ import annotations

from typing import Any

import pytest

import lit_loader
from lit_loader.remote.engine import Fate, UnreachableError
from lit_loader.remote.ray_engine import RayEngine

ray: Any = pytest.importorskip("ray.exceptions", exc_type=ImportError)
protocol: Any = pytest.importorskip("ray.core.generated.common_pb2", exc_type=ImportError)


def died(message: str) -> Exception:
    """The exception of an actor that has died."""
    cause = protocol.ActorDiedErrorContext(
        error_message=message, class_name="RemoteWorker", actor_id=b"a" * 16, pid=7
    )
    error: Exception = ray.ActorDiedError(cause)
    return error


UNINSTALLED = """\
The actor died because of an error raised in its creation task, ray::RemoteWorker.__init__()
  File "python/ray/_raylet.pyx", line 1, in ray._raylet.execute_task
ModuleNotFoundError: No module named 'lit_loader'
"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            died("The actor died because its node has died. Node Id: 12"),
            ("ActorDiedError: The actor died because its node has died. Node Id: 12", True, False),
        ),
        (
            died(
                "Its worker process has died. End of file. There are some potential root causes. "
                "(1) The process is killed by SIGKILL"
            ),
            ("ActorDiedError: Its worker process has died. End of file.", True, True),
        ),
        (
            ray.ActorUnavailableError("connection reset", b"a" * 16),
            ("ActorUnavailableError: it cannot be reached", True, False),
        ),
        (
            ray.RayActorError(error_msg=UNINSTALLED, actor_init_failed=True),
            (
                "RayActorError: ModuleNotFoundError: No module named 'lit_loader': is lit_loader "
                "there, in this version (remote.runtime_env)?",
                True,
                True,
            ),
        ),
        (
            ray.RuntimeEnvSetupError("Traceback (most recent call last):\n  long\nOSError: no"),
            (
                "RuntimeEnvSetupError: Failed to set up runtime environment. OSError: no",
                False,
                True,
            ),
        ),
        (
            ray.RuntimeEnvSetupError("no package\ncalled this"),
            (
                "RuntimeEnvSetupError: Failed to set up runtime environment. no package called "
                "this",
                False,
                True,
            ),
        ),
    ],
)
def test_an_exception_is_said_in_a_line(error: Exception, expected: tuple[str, bool, bool]) -> None:
    assert RayEngine(lit_loader.RayWorkers()).explain(error) == Fate(*expected)


def test_a_lost_object_is_not_the_orders_fault() -> None:
    fate = RayEngine(lit_loader.RayWorkers()).explain(ray.ObjectLostError("00" * 28, None, ""))
    assert not fate.gone and not fate.blamed


def test_a_runtime_environment_that_is_refused_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def refuse(**_: Any) -> None:
        raise ValueError("working_dir must be\na valid path")

    monkeypatch.setattr("ray.init", refuse)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    engine = RayEngine(lit_loader.RayWorkers(runtime_env={"working_dir": "/no/where"}))
    said = r"cannot provide this remote.runtime_env \(ValueError: working_dir must be a valid path"
    with pytest.raises(UnreachableError, match=said):
        engine.join(memoryview(b""))
