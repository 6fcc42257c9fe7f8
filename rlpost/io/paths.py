"""Local paths, and URLs of object stores and other file systems.

An `AnyPath` is a `Path` or a `RemotePath`. The latter has the methods of `Path` that rlpost uses,
so little code depends on which of the two it gets. rlpost accesses stores by fsspec, with the same
client for reading and writing. Credentials, endpoints and regions come from the client's own
configuration (AWS_PROFILE, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN ...), and the
client retries failed requests. pyarrow.fs supports S3 and GCS, too, but its S3 client ignores
endpoints in profiles, and it cannot abort an upload.

Clients retry for half a minute without any output, so `warn_if_slow` logs a warning meanwhile.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from rlpost.errors import ReadWriteError, RlpostError, UnavailableError, UsageError
from rlpost.io.text import printable
from rlpost.optional import need

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


SLOW_LOOKUP = 3.0  # seconds for a request about an object, before a warning
SLOW_READ = 10.0  # seconds for a range of some megabytes
SLOW_UPLOAD = 30.0  # seconds for a part of an upload
_INTERVAL = 30.0  # seconds between two warnings: several requests may be slow at a time
_LOG = logging.getLogger("rlpost")  # warnings go to stderr unless the user configured handlers


class _LastWarning:
    """The time of the last warning, by the monotonic clock."""

    time = float("-inf")
    lock = threading.Lock()


@contextmanager
def warn_if_slow(url: str, seconds: float) -> Iterator[None]:
    """Log a warning if the block takes longer than this, but not for every slow request."""
    timer = threading.Timer(seconds, _warn, (url, seconds))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _warn(url: str, seconds: float) -> None:
    with _LastWarning.lock:
        now = time.monotonic()
        if now - _LastWarning.time < _INTERVAL:
            return
        _LastWarning.time = now
    _LOG.warning(
        "rlpost: %s: no answer for %g s; still trying, and retrying if the connection fails",
        printable(url),
        seconds,
    )


_URL = re.compile(r"[A-Za-z][\w+.-]+(::[A-Za-z][\w+.-]+)*://")  # one letter is a drive

_DRIVE = re.compile(r"/[A-Za-z]:")  # file:///C:/dumps


class _Store(NamedTuple):
    """Details of a kind of store, for errors."""

    extra: str
    module: str
    credentials: str
    buckets: bool = True


_AWS = "AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL"
_GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login`"
_STORES = {
    "s3": _Store("s3", "s3fs", _AWS),
    "s3a": _Store("s3", "s3fs", _AWS),
    "gs": _Store("gcs", "gcsfs", _GOOGLE),
    "gcs": _Store("gcs", "gcsfs", _GOOGLE),
    "hf": _Store("hf", "huggingface_hub", "HF_TOKEN, `hf auth login`", buckets=False),
}


class FileSize(NamedTuple):
    """The field of `os.stat_result` that rlpost uses."""

    st_size: int


@dataclass(frozen=True)
class RemotePath:
    """A URL, with the methods of `Path` that rlpost uses.

    Raises:
        UnavailableError: the client package of the store is not installed.
        UsageError: the URL's scheme is unknown.
        ReadWriteError: from every method that sends a request: it failed, or access is denied.
    """

    url: str

    def __post_init__(self) -> None:
        _ = self._client_and_path

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, below: str | PurePath) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{below}")

    @cached_property
    def _client_and_path(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - not needed for local files

        if store := _STORES.get(self.scheme):
            need(f"{self.url}: {self.scheme}://", store.extra, store.module)
            # Keep the client's warnings off stderr: rlpost's errors have what matters.
            logging.getLogger(store.module).addHandler(logging.NullHandler())

        try:
            client, path = url_to_fs(self.url)
        except ImportError as error:
            raise UnavailableError(f"{self.url}: {error}; install it with pip") from None
        except ValueError as error:
            raise UsageError(f"{self.url}: {error}") from None
        except Exception as error:  # noqa: BLE001 - clients raise anything
            raise ReadWriteError(f"{self.url}: {_reason(self, error)}") from None
        return client, str(path)

    @property
    def client(self) -> Any:
        """The fsspec file system."""
        return self._client_and_path[0]

    @property
    def path(self) -> str:
        """The path within the client's file system."""
        return self._client_and_path[1]

    @property
    def scheme(self) -> str:
        """The URL's scheme, in lower case."""
        return self.url.partition("://")[0].lower()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """The extension of the name, with its dot."""
        return PurePosixPath(self.path).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the path."""
        return PurePosixPath(self.path).parts

    @property
    def parents(self) -> tuple[Path, ...]:
        """The folders to create before the file: none, object stores have no folders."""
        return ()

    def sibling(self, path: str) -> RemotePath:
        """Return the URL of another path of the same client."""
        url = self.url.rstrip("/")
        prefix = url.removesuffix(self.path)
        return RemotePath(
            f"{prefix}{path}" if prefix != url else self.client.unstrip_protocol(path)
        )

    def resolve(self) -> RemotePath:
        """Return itself: there are no links to follow."""
        return self

    def exists(self) -> bool:
        """Return whether there is an object at the URL, or below it."""
        return self.info() is not None

    def is_file(self) -> bool:
        """Return whether there is an object at the URL."""
        return (self.info() or {}).get("type") == "file"

    def is_dir(self) -> bool:
        """Return whether there are objects below the URL, or it ends in a slash."""
        return self.url.endswith("/") or (self.info() or {}).get("type") == "directory"

    def stat(self) -> FileSize:
        """Return the object's size in bytes."""
        return FileSize(int((self.info() or {}).get("size") or 0))

    def info(self) -> dict[str, Any] | None:
        """Return the store's metadata of the object, None if there is no object."""
        with remote_errors(self, "cannot be accessed"), warn_if_slow(self.url, SLOW_LOOKUP):
            try:
                info: dict[str, Any] = self.client.info(self.path)
            except FileNotFoundError:
                return None
        return info

    def forget(self) -> None:
        """Drop the client's cached listings, which other processes may have changed."""
        with suppress(Exception):
            self.client.invalidate_cache()


AnyPath = Path | RemotePath


def parse_path(text: str | AnyPath) -> AnyPath:
    """Parse a local path or a URL; a file:// URL is a local path.

    Raises:
        UnavailableError, UsageError: as `RemotePath`.
    """
    if not isinstance(text, str) or not _URL.match(text):
        return Path(text) if isinstance(text, str) else text
    scheme, _, rest = text.partition("://")
    if scheme.lower() not in ("file", "local"):
        return RemotePath(text)
    return Path(rest[1:] if _DRIVE.match(rest) and os.name == "nt" else rest)


def list_files(top: AnyPath) -> list[tuple[AnyPath, Path]]:
    """List the files below a directory, sorted, each with its path relative to the directory."""
    if isinstance(top, Path):
        return [(file, file.relative_to(top)) for file in sorted(top.rglob("*")) if file.is_file()]
    with remote_errors(top, "cannot be listed"), warn_if_slow(top.url, SLOW_READ):
        paths = sorted(top.client.find(top.path))
    own = PurePosixPath(top.path)
    relatives = [Path(PurePosixPath(path).relative_to(own)) for path in paths]
    return [(top.sibling(path), relative) for path, relative in zip(paths, relatives, strict=True)]


def glob_files(pattern: AnyPath) -> list[AnyPath]:
    """List the files that a glob matches, sorted."""
    if isinstance(pattern, Path):
        matches = sorted(glob.glob(str(pattern), recursive=True))  # noqa: PTH207
        return [Path(match) for match in matches if Path(match).is_file()]
    with remote_errors(pattern, "cannot be listed"), warn_if_slow(pattern.url, SLOW_READ):
        matches = pattern.client.glob(pattern.path, detail=True)
    return [
        pattern.sibling(path)
        for path, info in sorted(matches.items())
        if info.get("type") == "file"
    ]


def relative_to_glob(pattern: AnyPath, match: AnyPath) -> Path:
    """Return a match's path relative to the glob's leading folders without wildcards.

    >>> relative_to_glob(Path("dumps/step=*/*.parquet"), Path("dumps/step=3/a.parquet"))
    PosixPath('step=3/a.parquet')
    """
    parts = pattern.parts
    fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    if match.parts[:fixed] != parts[:fixed]:  # a store may have another name for a folder
        return Path(match.name)
    return Path(*match.parts[fixed:])


def check_target(target: AnyPath, inputs: Collection[AnyPath], *, overwrite: bool) -> None:
    """Check that a file may be written.

    Args:
        target: the file.
        inputs: resolved paths of the input.
        overwrite: whether it may exist.

    Raises:
        UsageError: it is an input, or exists and may not be overwritten.
        OSError: it cannot be accessed.
    """
    if target.resolve() in inputs:
        raise UsageError(f"{target}: output and input are the same file; name another")
    if target.exists() and not overwrite:
        raise UsageError(f"{target}: exists already; --overwrite replaces it")


def why_missing(path: AnyPath) -> str:
    """Return why a path does not exist, for errors."""
    if isinstance(path, Path):
        return "no such file or directory"
    store = _STORES.get(path.scheme)
    if store and store.buckets and not path.sibling(path.parts[0]).exists():
        return f"the bucket {path.parts[0]} does not exist"
    return "no such object, and no objects below it"


@contextmanager
def remote_errors(path: RemotePath, what: str) -> Iterator[None]:
    """Convert any exception of a client to a ReadWriteError: the URL, what failed and why."""
    try:
        yield
    except RlpostError:
        raise
    except FileNotFoundError as error:
        written = "written" in what or "bucket" in str(error)
        absent = "bucket" if written else "object"
        raise ReadWriteError(f"{path.url}: {what}: the {absent} does not exist") from error
    except Exception as error:  # clients raise anything
        raise ReadWriteError(f"{path.url}: {what}: {_reason(path, error)}") from error


def _reason(path: RemotePath, error: BaseException) -> str:
    """Return the reason of a client's exception and what to do, in one line."""
    text = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    if isinstance(error, PermissionError) or _DENIED.search(f"{type(error).__name__} {text}"):
        store = _STORES.get(path.scheme)
        hint = f" ({store.credentials})" if store else ""
        return f"access denied: {text}; check the credentials in the environment{hint}"
    if isinstance(error, ConnectionError | TimeoutError) or _LOST.search(type(error).__name__):
        return f"the connection failed, also on retries: {text}; check network and endpoint"
    return text


_DENIED = re.compile(r"credential|forbidden|unauthori[sz]ed|\b40[13]\b|GatedRepo", re.IGNORECASE)
_LOST = re.compile(r"Connection|Timeout|ClientOSError|Disconnected|IncompleteRead|Payload|HTTPClie")
