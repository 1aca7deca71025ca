"""Hydra's plugin: every application of the environment finds lit_loader's ``conf`` and its schema.

Installed as ``hydra_plugins/lit_loader_searchpath.py``. That is a *copy*, also in an editable
installation, so this file stays tiny and everything that may change lives in the package.
"""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin

from lit_loader.hydra.conf_folder import conf_folder
from lit_loader.hydra.schema import hydra_schema


class LitLoaderSearchPath(SearchPathPlugin):
    """Appends the package's ``conf`` to the search path and registers ``lit_loader/schema``."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Hydra's hook, called before it composes a configuration."""
        search_path.append("lit_loader", f"file://{conf_folder()}")
        store = ConfigStore.instance()
        if "schema.yaml" not in store.repo.get("lit_loader", {}):  # which is kept, unlike the path
            store.store(
                group="lit_loader", name="schema", node=hydra_schema(), provider="lit_loader"
            )
