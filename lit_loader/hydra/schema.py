"""The dataclass by which Hydra checks the options of a loader node: ``lit_loader/schema``.

Imports neither torch nor Hydra; `hydra/searchpath_plugin.py` registers what it makes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_origin, get_type_hints

from lit_loader.core.options.loader_config import LoaderConfig

__all__ = ["hydra_schema"]


def hydra_schema() -> type:
    """Returns the dataclass that Hydra's ConfigStore holds as ``lit_loader/schema``.

    This is what ``OmegaConf.structured`` takes, or your ConfigStore: OmegaConf cannot type
    `LoaderConfig` itself. ``instantiate`` makes a `LoaderConfig` of it. It has `LoaderConfig`'s
    fields and defaults; whatever OmegaConf cannot type (callables, samplers, contexts) is Any, so
    that a ``_target_`` node fits.
    """
    hints = get_type_hints(LoaderConfig)
    simple = (bool, int, float, str, bool | None, int | None)
    target = f"lit_loader.{LoaderConfig.__name__}.{LoaderConfig.from_options.__name__}"
    fields: list[tuple[str, object, object]] = [
        ("_target_", str, dataclasses.field(default=target)),
        ("_convert_", str, dataclasses.field(default="all")),
        ("_names_", Any, dataclasses.field(default=None)),  # see `LoaderConfig.from_options`
    ]
    for field in dataclasses.fields(LoaderConfig):
        hint = hints[field.name] if hints[field.name] in simple else Any
        # OmegaConf knows no Literal; which string, the config checks.
        if hints[field.name] == int | Literal["auto"]:
            hint = int | str
        if hints[field.name] == int | Literal["auto"] | None:
            hint = int | str | None
        if get_origin(hints[field.name]) is Literal:
            hint = str
        fields.append((field.name, hint, dataclasses.field(default=field.default)))
    return dataclasses.make_dataclass("LoaderSchema", fields)
