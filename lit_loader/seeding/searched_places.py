"""`SearchedPlaces`: where a search for generators has looked, so that another one can be spared.

The search (`seeding/reachable.py`) notes each container, namespace and slot that it looks into.
Whether something new is in there is then cheap to see: 30 to 60 ns a place, against 1 to 5 us for
each object of a search.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from lit_loader.seeding.plain_data import PLAIN, may_lead

__all__ = ["SearchedPlaces"]


class SearchedPlaces:
    """The places that a search has looked at, and which objects were in them."""

    def __init__(self) -> None:
        self.places: list[Iterable[Any]] = []
        """Lists, and dicts' views of their values, all of which were looked at."""
        self.names: dict[int, tuple[Mapping[str, Any], set[str]]] = {}
        """Namespaces of modules, of which some names were."""
        self.readers: list[Callable[[], Any]] = []
        """Give what is in places of other kinds."""
        self._seen: Collection[int] | None = None

    def note_names(self, namespace: Mapping[str, Any], names: Iterable[str]) -> None:
        """Note that names of a module were looked at."""
        self.names.setdefault(id(namespace), (namespace, set()))[1].update(names)

    def take(self) -> None:
        """Note what is in the places now, by identity: what the dataset drops must be free."""
        values = self._values()
        self._seen = values and {id(value) for value in values if type(value) not in PLAIN}

    def changed(self) -> bool:
        """Whether an object that leads to something is in one of the places that was not then."""
        seen, values = self._seen, self._values()
        if seen is None or values is None:
            return True
        return any(
            type(value) not in PLAIN and id(value) not in seen and may_lead(value)
            for value in values
        )

    def _values(self) -> list[Any] | None:
        try:
            return [
                *itertools.chain.from_iterable(self.places),
                *itertools.chain.from_iterable(
                    map(namespace.get, sorted(names)) for namespace, names in self.names.values()
                ),
                *(read() for read in self.readers),
            ]
        except RuntimeError:  # another thread has changed one of them meanwhile
            return None
