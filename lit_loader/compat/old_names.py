"""Names that were given up, and what takes their place; loaded where one of them is met.

Each works for one more version, with a `DeprecationWarning`. The tables are all there is to it: the
checks of options, the attributes of public objects, Hydra's files and the reading of states ask
here.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any, Final

from lit_loader.describe import callers, program_stacklevel, short_repr
from lit_loader.errors import OptionError

__all__ = [
    *("NAMES", "OLD_OPTIONS", "PRESETS", "attribute", "current_name", "current_value", "renamed"),
    *("saved", "warn"),
]

OLD_OPTIONS: Final = {
    "check_exactness": "check_determinism",
    "reads": "concurrent_reads",
    "remote_workers": "num_remote_workers",
    "shard_tail": "uneven_ranks",
    "share": "share_lists",
}
"""Of a loader, of its config, and of Hydra's nodes."""

NAMES: Final = {
    **OLD_OPTIONS,
    # of a loader
    "copy_ahead": "_copy_ahead",
    # of PadCollate and PackCollate
    "pad_value": "padding_value",
    # of a MixtureStream
    "exhausted": "stopping_strategy",
}
"""Options, arguments and attributes. One counts where the thing has the new name."""

VALUES: Final = {
    "stopping_strategy": {"stop": "first_exhausted", "drop": "all_exhausted_without_replacement"}
}
"""Of options that are called otherwise now."""

PRESETS: Final = {
    "cluster": "ray",
    "fragile_data": "fault_tolerant",
    "inherit": "_inherit",
    "with_replacement": "random",
}
"""Files in ``conf/lit_loader``; what says so when they are used is in `hydra/targets.py`."""

UNTIL: Final = "0.5"


def warn(names: Mapping[str, str], what: str = "") -> None:
    """Say what is called otherwise now, at the program's line; ``what`` goes before the names.

    Of a configuration that Hydra instantiates, that is the main script's line: whoever typed the
    name is to see it, and Python shows a `DeprecationWarning` of no other module.
    """
    said = ", ".join(f"{what}{old} is called {new} now" for old, new in names.items())
    plural, level = len(names) > 1, program_stacklevel()
    modules = [module for module, _ in callers()]  # from level 2 on
    if modules[level - 2].startswith("hydra.") and "__main__" in modules:
        level = modules.index("__main__") + 2
    warnings.warn(
        f"lit_loader: {said}: use the new {'names' if plural else 'name'}; the old "
        f"{'ones work' if plural else 'one works'} until version {UNTIL} [LL609]",
        DeprecationWarning,
        stacklevel=level,
    )


def renamed(
    options: Mapping[str, Any], known: Collection[str], unset: Mapping[str, Any]
) -> dict[str, Any]:
    """Give options under the names that they have now; an old one that is None is left out.

    ``unset`` holds values at which a new name counts as not given.

    Raises:
        OptionError: One is given by both names.
    """
    current = dict(options)
    met = {}
    for old in [name for name in options if name not in known and NAMES.get(name) in known]:
        new, value = NAMES[old], current.pop(old)
        if value is None:
            continue  # of a file of Hydra's, which has both
        if new in current and not (new in unset and current[new] == unset[new]):
            raise OptionError(
                f"{old} is the old name of {new}, and both are given: leave {old} out, got "
                f"{old}={short_repr(value)} and {new}={short_repr(current[new])} [LL610]"
            )
        now = VALUES.get(new, {}).get(value, value) if isinstance(value, str) else value
        current[new] = now
        if now == value:
            met[old] = new
        else:  # both at once
            met[f"{old}={value!r}"] = f"{new}={now!r}"
    if met:
        warn(met)
    return current


def attribute(thing: Any, name: str) -> Any:
    """Give an attribute that is asked for by its old name, to a ``__getattr__``."""
    new = NAMES.get(name)
    if new is None or not hasattr(thing, new):
        return object.__getattribute__(thing, name)  # raises, with the error of a property's own
    warn({name: new}, f"{type(thing).__name__}.")
    return getattr(thing, new)


def current_name(thing: Any, name: str) -> str:
    """Give the name under which an attribute is to be set."""
    new = NAMES.get(name)
    if new is None or hasattr(type(thing), name) or not hasattr(thing, new):
        return name
    warn({name: new}, f"{type(thing).__name__}.")
    return new


def current_value(name: str, value: str) -> str:
    """Give what an option's old value is called now; anything else as it is."""
    new = VALUES.get(name, {}).get(value)
    if new is None:
        return value
    warn({repr(value): repr(new)}, f"{name}=")
    return new


def saved(theirs: Mapping[str, Any], ours: Collection[str]) -> dict[str, Any]:
    """Give a fingerprint that was saved under old names, as far as the loader's has new ones."""
    current = {}
    for name, value in theirs.items():
        owner, dot, field = name.rpartition(".")
        new = NAMES.get(field, field)
        if name not in ours and owner + dot + new in ours:
            name, value = owner + dot + new, VALUES.get(new, {}).get(value, value)
        current[name] = value
    return current
