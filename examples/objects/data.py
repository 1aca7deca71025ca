"""The data module: objects are written if there are none, and read in the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from digits.needs import needs
from images.files import SPLITS
from torch.utils.data import Dataset

from lit_loader import LoaderDataModule


class ObjectsData(LoaderDataModule):
    """JPEG images in object storage.

    Args:
        url: The folder: ``s3://bucket/folder`` (needs s3fs), or a folder of this machine.
        layout: "objects": one for each image; "ranges": many in one, read by their ranges.
        client: Options of fsspec's client, ``{endpoint_url: ...}``; no credentials. None of them
            is given that is None.
        **options: Of `LoaderDataModule`.
    """

    splits = SPLITS

    def __init__(
        self,
        url: str,
        layout: str = "objects",
        client: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        needs("objects", "PIL", "fsspec", *(["s3fs"] if url.startswith("s3://") else []))
        from objects.storage import Storage

        super().__init__(**options)
        given = {name: value for name, value in (client or {}).items() if value is not None}
        self.storage = Storage(url, **given)
        self.layout = layout

    def prepare_data(self) -> None:
        from objects.dataset import write

        if not self.storage.exists(f"{SPLITS[-1]}.{self.layout}.json"):
            write(self.storage, self.layout)

    def make_dataset(self, split: str) -> Dataset[Any]:
        from objects.dataset import Objects, Shown

        images = Objects(self.storage, split, self.layout)
        return Shown(images) if split == "train" else images
