"""`NumWorkers`: a loader's ``num_workers``: with "auto" the number of the moment."""

from __future__ import annotations

from typing import Any, Literal

from lit_loader.errors import OptionError

__all__ = ["NumWorkers"]

_NAME = "num_workers"


class NumWorkers:
    """The attribute, of the loader's class. Copies ask for what the loader's ``__dict__`` has."""

    def __get__(self, loader: Any, owner: type) -> int:
        if loader is None:
            return self  # type: ignore[return-value]
        auto = loader._core.auto
        return vars(loader)[_NAME] if auto is None else auto.setting.workers  # type: ignore[no-any-return]

    def __set__(self, loader: Any, value: int | Literal["auto"]) -> None:
        core = loader._core
        if value == "auto" and _NAME in vars(loader):  # else the constructor has seen to it
            reason = loader._core.why_not_resized()
            if reason is not None:
                raise OptionError(f"{reason}: set a number, got num_workers='auto'")
            loader._core.end_idle_workers()  # they measure nothing
        core.set_auto(value == "auto")
        vars(loader)[_NAME] = value
