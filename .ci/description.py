"""The README as a package index shows it, away from the files that it links to.

Links to files become their text, and images go; links to addresses and to headings stay.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)[^)\s]*\)")


class Description(MetadataHookInterface):
    """Gives hatchling the field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the text into the metadata."""
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        text = LINK.sub(lambda link: "" if link[1] else link[2], text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
