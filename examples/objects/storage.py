"""Reading objects, and ranges of them, from wherever fsspec reads: files, S3, GCS, HTTP.

What is kept of a storage is its address; the client is made in each process that reads. So nothing
secret is ever pickled, logged or written into a checkpoint: credentials come to the client from
where its library looks for them (environment, ~/.aws, the machine's role), in each process.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Mapping
from typing import Any

import fsspec

SECRETS = ("key", "secret", "token", "password", "passwd", "account_key", "sas_token")


@functools.lru_cache(maxsize=256)
def _client(url: str, options: str, pid: int, thread: int) -> Any:
    """Makes a client, once in each process (and thread, see `client`); no dataset holds it."""
    return fsspec.filesystem(
        url.partition("://")[0],
        skip_instance_cache=True,
        use_listings_cache=False,
        **json.loads(options),
    )


class Storage:
    """A folder of objects.

    Args:
        url: The folder: ``s3://bucket/folder``, ``file:///data``, or any other that fsspec knows.
        **options: Of the client, as fsspec names them: ``endpoint_url``, ``anon``.

    Raises:
        ValueError: There are credentials in the address or the options.
    """

    def __init__(self, url: str, **options: Any) -> None:
        found = [name for name in options if name in SECRETS]
        if found or "@" in url.partition("://")[2].partition("/")[0]:
            raise ValueError(
                f"credentials do not belong into a dataset ({', '.join(found) or 'in the url'}): "
                "it is pickled and shown. Set them where the client's library looks for them: "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws, for s3://"
            )
        if url.partition("://")[0] in (url, "file"):  # a worker may be in another directory
            url = f"file://{os.path.abspath(url.removeprefix('file://'))}"
        if url.startswith("s3://"):  # with more, the size of each whole object is asked for before
            options.setdefault("max_concurrency", 1)
        self.url = url.rstrip("/")
        self.options = json.dumps(options, sort_keys=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def client(self) -> Any:
        """The client of this process: none survives a fork.

        One that works in an event loop of its own (s3fs, gcsfs, adlfs) serves all threads, and is
        slow to make; of the others each thread has its own.
        """
        kind = fsspec.get_filesystem_class(self.url.partition("://")[0])
        thread = 0 if kind.async_impl else threading.get_ident()
        return _client(self.url, self.options, os.getpid(), thread)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Reads an object, or its bytes from ``start`` to ``end`` (one request either way).

        Raises:
            OSError: It cannot be read (now): ``sample_retries`` tries it again.
        """
        try:
            data: bytes = self.client.cat_file(f"{self.url}/{name}", start=start, end=end)
        except OSError:
            raise
        except Exception as error:  # each library has exceptions of its own for the network
            raise OSError(f"{self.url}/{name} cannot be read: {error}") from error
        if start is not None and end is not None and len(data) != end - start:
            raise OSError(f"{name}: {len(data)} bytes instead of {end - start} came")
        return data

    def write(self, objects: Mapping[str, bytes]) -> None:
        """Writes objects, many at the same time where the client can."""
        contents = {f"{self.url}/{name}": data for name, data in objects.items()}
        for folder in {path.rpartition("/")[0] for path in contents}:
            self.client.makedirs(folder, exist_ok=True)
        self.client.pipe(contents)

    def exists(self, name: str) -> bool:
        """Says whether there is such an object."""
        return bool(self.client.exists(f"{self.url}/{name}"))
