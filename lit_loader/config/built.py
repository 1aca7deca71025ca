"""What becomes of options once a loader is built."""

from __future__ import annotations

from typing import Final

__all__ = ["FIXED", "SHOWN_OTHERWISE"]

FIXED: Final = frozenset(
    {
        *("dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers"),
        *("remote_workers", "remote"),
    }
)
"""What cannot be changed once a loader is built."""

SHOWN_OTHERWISE: Final = frozenset({"shuffle", "sampler", "batch_sampler"})
"""Options that a loader shows, as torch's does, by the samplers that they lead to."""
