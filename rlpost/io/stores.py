"""Object stores and other remote file systems: the operations that rlpost uses.

A `Store` has them for one scheme. S3, Google Cloud Storage, Azure and HTTP are accessed by obstore,
see `rlpost.io.cloud` for their credentials; all other schemes by fsspec. A path is the part of the
URL behind `://`: it begins with the bucket, for Azure with the container, for HTTP with the host.
"""

from __future__ import annotations

import glob
import re
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from rlpost.io.cloud import S3, attempts, open_azure, open_gcs, open_http
from rlpost.io.threads import prefetch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator


PART_BYTES = 16 << 20  # of an upload; S3 requires at least 5 MiB
MAX_PARTS = 10_000  # S3's limit
_COPY_BYTES = 5 << 30  # S3 copies no more by itself
_BLOCK = 8 << 20  # bytes in memory of an object that is fetched
_CHANGE_KEYS = ("ETag", "etag", "LastModified", "mtime", "last_modified", "updated", "created")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")


HTTP_SCHEMES = ("http", "https")


class ObjectInfo(NamedTuple):
    """What a store's listing has about an object."""

    size: int
    changed: str | None
    """A text that changes with the content: the ETag, or the time; None if the store has none."""
    is_folder: bool = False


FOLDER = ObjectInfo(0, None, is_folder=True)


class ObjectStore:
    """Objects that obstore accesses; a bucket is opened by the first request to it.

    Args:
        scheme: of the URLs.

    Raises:
        FileNotFoundError: from `read` and other methods: the object or the bucket does not exist.
        Exception: what the client raises, after its retries; see `rlpost.io.paths.remote_errors`.
    """

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self.s3 = S3() if scheme in S3_SCHEMES else None
        self._open = self.s3.open if self.s3 else _OPENERS[scheme]
        self._buckets: dict[str, Any] = {}
        self._listed: dict[str, ObjectInfo] = {}
        self._lock = threading.Lock()

    def at(self, path: str) -> tuple[Any, str]:
        """Return obstore's store of a path's bucket, and the key in it."""
        bucket, _, key = path.partition("/")
        if self._scheme in HTTP_SCHEMES:
            key, question, query = key.partition("?")
            bucket, key = f"{bucket}/{question}{query}", unquote(key)
        with self._lock:
            if bucket not in self._buckets:
                self._buckets[bucket] = self._open(self._scheme, bucket)
            return self._buckets[bucket], key

    def info(self, path: str) -> ObjectInfo | None:
        """Return an object's size and ETag, `FOLDER` if objects are below it, else None."""
        import obstore  # noqa: PLC0415

        if listed := self._listed.get(path):
            return listed
        store, key = self.at(path)
        if key:
            with suppress(FileNotFoundError):
                return _info(obstore.head(store, key))
        if self._scheme in HTTP_SCHEMES:
            return None
        try:
            first = next(iter(obstore.list(store, key or None, chunk_size=1)), None)
        except (FileNotFoundError, obstore.exceptions.BaseError) as error:
            if any(text in str(error) for text in _NO_BUCKET):
                return None
            raise
        return FOLDER if first or not key else None

    def find(self, path: str) -> list[str]:
        """Return the paths of all objects below a folder."""
        import obstore  # noqa: PLC0415

        self._check_listing()
        store, key = self.at(path)
        pages = obstore.list(store, key or None, chunk_size=1000)
        return self._remember(path, (item for page in pages for item in page))

    def glob(self, pattern: str) -> list[str]:
        """Return the paths of the objects that a glob matches."""
        import obstore  # noqa: PLC0415
        from fsspec.utils import glob_translate  # noqa: PLC0415 - with torch, but not imported yet

        self._check_listing()
        store, key = self.at(pattern)
        parts = PurePosixPath(key).parts
        fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        folder = "/".join(parts[:fixed]) or None
        if fixed == len(parts) - 1 and "**" not in parts[-1]:  # no need to list all below it
            items: Iterable[Any] = obstore.list_with_delimiter(store, folder)["objects"]
        else:
            pages = obstore.list(store, folder, chunk_size=1000)
            items = (item for page in pages for item in page)
        matches = re.compile(glob_translate(key)).match
        return self._remember(pattern, (item for item in items if matches(item["path"])))

    def _check_listing(self) -> None:
        if self._scheme in HTTP_SCHEMES:
            raise OSError("HTTP servers have no listings; pass the URLs of the files")

    def _remember(self, path: str, items: Iterable[Any]) -> list[str]:
        """Return the paths of listed objects, without empty ones that mark a folder."""
        bucket = path.partition("/")[0]
        listed = {f"{bucket}/{item['path']}": _info(item) for item in items}
        listed = {path: info for path, info in listed.items() if info.size or self._is_object(path)}
        with self._lock:
            self._listed |= listed
        return list(listed)

    def _is_object(self, path: str) -> bool:
        """Return whether an empty object has this key, and not this key and a slash."""
        import obstore  # noqa: PLC0415

        with suppress(FileNotFoundError):
            return bool(obstore.head(*self.at(path)))
        return False

    def read(self, path: str, begin: int, end: int) -> bytes:
        """Return bytes of an object; fewer if it is shorter."""
        import obstore  # noqa: PLC0415

        for attempt in range(1, attempts() + 1):
            try:
                return bytes(obstore.get_range(*self.at(path), start=begin, end=end))
            except obstore.exceptions.GenericError as error:
                if "416 " in str(error).partition("\n")[0]:  # it ends before the range
                    break
                # obstore resumes a response that breaks off, and counts that as a retry
                if attempt == attempts() or "body error" not in str(error):
                    raise
        return b""

    def fetch(self, path: str, target: Path) -> None:
        """Write an object to a local file."""
        import obstore  # noqa: PLC0415

        with target.open("wb") as file:
            for block in obstore.get(*self.at(path)).stream(min_chunk_size=_BLOCK):
                file.write(block)

    def put(self, path: str, source: Path) -> None:
        """Write a local file to an object, in one request."""
        import obstore  # noqa: PLC0415

        obstore.put(*self.at(path), source.read_bytes(), use_multipart=False)

    def put_parts(self, path: str, parts: Iterator[bytes], size: int, at_once: int) -> None:
        """Write an object from an iterator, in parts of a size; it is aborted if that raises."""
        import obstore  # noqa: PLC0415

        limits = {"chunk_size": size, "max_concurrency": at_once}
        obstore.put(*self.at(path), parts, use_multipart=True, **limits)

    def abort_uploads(self, prefix: str, names: Collection[str]) -> None:
        """Abort what S3 has of uploads in parts: they cost money, and no listing has them.

        Never raises: without permission, the bucket's lifecycle rule ends them.

        Args:
            prefix: of the keys, behind the bucket.
            names: the last segments of the keys.
        """
        if self.s3 is not None:
            bucket, _, key = prefix.partition("/")
            with suppress(Exception):
                self.s3.abort_uploads(bucket, key, names)

    def move(self, path: str, target: str) -> None:
        """Copy an object within the store, and remove it."""
        import obstore  # noqa: PLC0415

        store, key = self.at(path)
        size = obstore.head(store, key)["size"]
        self._copy(path, target, size)
        if obstore.head(*self.at(target))["size"] != size:  # the copy is not complete yet
            raise OSError("the store copied other bytes; the staged object is kept")
        obstore.delete(store, key)
        self.forget(path)

    def _copy(self, path: str, target: str, size: int) -> None:
        import obstore  # noqa: PLC0415

        store, key = self.at(path)
        if self.s3 and size > _COPY_BYTES:
            blocks = obstore.get(store, key).stream(min_chunk_size=_BLOCK)
            parts = prefetch(map(bytes, blocks), 1)  # in a thread that does not run obstore's tasks
            self.put_parts(target, parts, max(PART_BYTES, 2 * size // MAX_PARTS), 3)
        else:
            obstore.copy(store, key, self.at(target)[1])

    def remove(self, path: str) -> None:
        """Remove an object."""
        import obstore  # noqa: PLC0415

        obstore.delete(*self.at(path))

    def forget(self, prefix: str) -> None:
        """Drop what earlier listings had about paths with a prefix."""
        with self._lock:
            for path in [path for path in self._listed if path.startswith(prefix)]:
                del self._listed[path]


class FsspecStore:
    """A client of fsspec, with the methods of an `ObjectStore`; raises as that."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def info(self, path: str) -> ObjectInfo | None:
        """Return a file's size and state, `FOLDER` for a folder, None if there is neither."""
        try:
            info = self._client.info(path)
        except FileNotFoundError:
            return None
        if info.get("type") == "directory":
            return FOLDER
        changed = next((str(info[key]) for key in _CHANGE_KEYS if info.get(key)), None)
        return ObjectInfo(int(info.get("size") or 0), changed)

    def find(self, path: str) -> list[str]:
        """Return the paths of all files below a folder."""
        return [*self._client.find(path)]

    def glob(self, pattern: str) -> list[str]:
        """Return the paths of the files that a glob matches."""
        matches = self._client.glob(pattern, detail=True)
        return [path for path, info in matches.items() if info.get("type") == "file"]

    def read(self, path: str, begin: int, end: int) -> bytes:
        """Return bytes of a file; fewer if it is shorter."""
        return bytes(self._client.cat_file(path, start=begin, end=end))

    def fetch(self, path: str, target: Path) -> None:
        """Write a file to a local one."""
        self._client.get_file(path, str(target))

    def put(self, path: str, source: Path) -> None:
        """Write a local file to the store, and create its folders."""
        with suppress(Exception):  # object stores have no folders; put_file reports other errors
            self._client.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        self._client.put_file(str(source), path)

    def abort_uploads(self, prefix: str, names: Collection[str]) -> None:
        """Do nothing: files are sent whole."""

    def move(self, path: str, target: str) -> None:
        """Rename a file."""
        self._client.mv(path, target)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._client.rm_file(path)

    def forget(self, prefix: str) -> None:  # noqa: ARG002
        """Drop the client's cached listings."""
        with suppress(Exception):
            self._client.invalidate_cache()


Store = ObjectStore | FsspecStore
"""The objects of a scheme."""
_OPENERS: dict[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(("gs", "gcs"), open_gcs),
    **dict.fromkeys(("az", "abfs", "abfss", "adl", "azure"), open_azure),
    **dict.fromkeys(HTTP_SCHEMES, open_http),
}
S3_SCHEMES = ("s3", "s3a")
OBJECT_SCHEMES = (*S3_SCHEMES, *_OPENERS)
"""Schemes that obstore accesses."""


@cache
def object_store(scheme: str) -> ObjectStore:
    """Return the store of a scheme, one per process."""
    return ObjectStore(scheme)


def _info(item: Any) -> ObjectInfo:
    """Convert obstore's metadata of an object."""
    tag = (item["e_tag"] or "").strip('"')
    return ObjectInfo(int(item["size"]), tag or str(item["last_modified"]))
