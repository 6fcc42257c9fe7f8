"""Local paths, and URLs of object stores and other file systems.

An `AnyPath` is a `Path` or a `RemotePath`, which has the methods of `Path` that rlpost uses, so
little code checks which of the two it has. fsspec and its clients speak to the stores, one client
for reading and writing: credentials, endpoints and regions come from that client's own chain
(AWS_PROFILE, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN ...), and it retries what
fails. pyarrow.fs, which knows S3 and GCS, too, serves for neither: its S3 client passes over
endpoints in profiles, and nothing aborts an upload that it has begun.

Says that a store has not answered: clients try again for half a minute, without a word.
"""

from __future__ import annotations

import glob
import logging
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
    from collections.abc import Iterator


SLOW_LOOKUP = 3.0  # seconds that a question about an object may take
SLOW_READ = 10.0  # seconds that a range of some megabytes may take
SLOW_UPLOAD = 30.0  # seconds that sending a part of an upload may take
_APART = 30.0  # seconds between two such lines, for ranges are read several at a time
_LOG = logging.getLogger("rlpost")  # without handlers of the user's, warnings go to stderr


class _Last:
    """When something was said last, by the monotonic clock."""

    time = float("-inf")
    lock = threading.Lock()


@contextmanager
def warn_if_slow(url: str, seconds: float) -> Iterator[None]:
    """Log a warning where the block takes longer than so many seconds, at most one in a while."""
    timer = threading.Timer(seconds, _say, (url, seconds))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(url: str, seconds: float) -> None:
    with _Last.lock:
        now = time.monotonic()
        if now - _Last.time < _APART:
            return
        _Last.time = now
    _LOG.warning(
        "rlpost: %s: no answer for %g s; waiting, and trying again where the connection fails",
        printable(url),
        seconds,
    )


_URL = re.compile(r"[A-Za-z][\w+.-]*(::[A-Za-z][\w+.-]*)*://")


class _Store(NamedTuple):
    """What errors say of a kind of store."""

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
    """What is asked of `os.stat_result`."""

    st_size: int


@dataclass(frozen=True)
class RemotePath:
    """A URL, with the methods of `Path` that serve for one.

    Raises:
        UnavailableError: the package that speaks to the store is not installed.
        UsageError: the URL is of no known kind.
        ReadWriteError: from every method that asks the store: it can't be reached, or denies.
    """

    url: str

    def __post_init__(self) -> None:
        _ = self._place

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, below: str | PurePath) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{below}")

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """The client and the path that it takes."""
        from fsspec.core import url_to_fs  # noqa: PLC0415 - local files need none of it

        if store := _STORES.get(self.scheme):
            need(f"{self.url}: {self.scheme}://", store.extra, store.module)
            # Its warnings are for logs, if somebody keeps one; errors say what matters.
            logging.getLogger(store.module).addHandler(logging.NullHandler())

        try:
            client, path = url_to_fs(self.url)
        except ImportError as error:
            raise UnavailableError(f"{self.url}: {error}; pip installs it") from None
        except ValueError as error:
            raise UsageError(f"{self.url}: {error}") from None
        except Exception as error:  # noqa: BLE001 - clients raise what they like
            raise ReadWriteError(f"{self.url}: {_why(self, error)}") from None
        return client, str(path)

    @property
    def client(self) -> Any:
        """The fsspec file system."""
        return self._place[0]

    @property
    def path(self) -> str:
        """Where the client finds it."""
        return self._place[1]

    @property
    def scheme(self) -> str:
        """What the URL begins with."""
        return self.url.partition("://")[0].lower()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """The name's ending, from its last dot on."""
        return PurePosixPath(self.path).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the path."""
        return PurePosixPath(self.path).parts

    @property
    def parents(self) -> tuple[Path, ...]:
        """The folders that have to be made before a file is: none, objects lie in no folders."""
        return ()

    def sibling(self, path: str) -> RemotePath:
        """The place of another path of the same client."""
        url = self.url.rstrip("/")
        prefix = url.removesuffix(self.path)
        return RemotePath(
            f"{prefix}{path}" if prefix != url else self.client.unstrip_protocol(path)
        )

    def resolve(self) -> RemotePath:
        """Itself: there are no links to follow."""
        return self

    def exists(self) -> bool:
        """Whether there is an object, or one below it."""
        return self.info() is not None

    def is_file(self) -> bool:
        """Whether it is an object."""
        return (self.info() or {}).get("type") == "file"

    def is_dir(self) -> bool:
        """Whether there are objects below it; or its URL ends in a slash."""
        return self.url.endswith("/") or (self.info() or {}).get("type") == "directory"

    def stat(self) -> FileSize:
        """Its size in bytes."""
        return FileSize(int((self.info() or {}).get("size") or 0))

    def info(self) -> dict[str, Any] | None:
        """What the store tells of it; None where there is nothing."""
        with remote_errors(self, "cannot be looked at"), warn_if_slow(self.url, SLOW_LOOKUP):
            try:
                found: dict[str, Any] = self.client.info(self.path)
            except FileNotFoundError:
                return None
        return found

    def forget(self) -> None:
        """Let the client forget listings, which others may have changed."""
        with suppress(Exception):
            self.client.invalidate_cache()


AnyPath = Path | RemotePath


def parse_path(text: str | AnyPath) -> AnyPath:
    """The place that a path or a URL means; file:// is a local path.

    Raises:
        UnavailableError, UsageError: as `RemotePath`.
    """
    if not isinstance(text, str) or not _URL.match(text):
        return Path(text) if isinstance(text, str) else text
    scheme, _, rest = text.partition("://")
    return Path(rest) if scheme.lower() in ("file", "local") else RemotePath(text)


def list_files(top: AnyPath) -> list[tuple[AnyPath, Path]]:
    """The files of a directory and of those below it, sorted; and where they lie in it."""
    if isinstance(top, Path):
        return [(file, file.relative_to(top)) for file in sorted(top.rglob("*")) if file.is_file()]
    with remote_errors(top, "cannot be listed"), warn_if_slow(top.url, SLOW_READ):
        paths = sorted(top.client.find(top.path))
    own = PurePosixPath(top.path)
    relatives = [Path(PurePosixPath(path).relative_to(own)) for path in paths]
    return [(top.sibling(path), relative) for path, relative in zip(paths, relatives, strict=True)]


def glob_files(pattern: AnyPath) -> list[AnyPath]:
    """The files that a glob means, sorted."""
    if isinstance(pattern, Path):
        matches = sorted(glob.glob(str(pattern), recursive=True))  # noqa: PTH207
        return [Path(match) for match in matches if Path(match).is_file()]
    with remote_errors(pattern, "cannot be listed"), warn_if_slow(pattern.url, SLOW_READ):
        found = pattern.client.glob(pattern.path, detail=True)
    return [
        pattern.sibling(path) for path, info in sorted(found.items()) if info.get("type") == "file"
    ]


def relative_to_glob(pattern: AnyPath, match: AnyPath) -> Path:
    """Where a glob's match lies below the folder that the glob names without wildcards.

    >>> below(Path("dumps/step=*/*.parquet"), Path("dumps/step=3/a.parquet"))
    PosixPath('step=3/a.parquet')
    """
    parts = pattern.parts
    named = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    if match.parts[:named] != parts[:named]:  # a store may call a folder otherwise
        return Path(match.name)
    return Path(*match.parts[named:])


def why_missing(place: AnyPath) -> str:
    """Why there is nothing at a place."""
    if isinstance(place, Path):
        return "no such file or directory"
    store = _STORES.get(place.scheme)
    if store and store.buckets and not place.sibling(place.parts[0]).exists():
        return f"there is no bucket {place.parts[0]}"
    return "no such object, and none below it"


@contextmanager
def remote_errors(place: RemotePath, what: str) -> Iterator[None]:
    """Turn whatever a client raises into an error that says which URL, what failed and why."""
    try:
        yield
    except RlpostError:
        raise
    except FileNotFoundError as error:
        written = "written" in what or "bucket" in str(error)
        absent = "bucket" if written else "object"
        raise ReadWriteError(f"{place.url}: {what}: there is no such {absent}") from error
    except Exception as error:  # clients raise what they like
        raise ReadWriteError(f"{place.url}: {what}: {_why(place, error)}") from error


def _why(place: RemotePath, error: BaseException) -> str:
    """One line on what a client complains of, and what to do."""
    text = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    if isinstance(error, PermissionError) or _DENIED.search(f"{type(error).__name__} {text}"):
        store = _STORES.get(place.scheme)
        hint = f" ({store.credentials})" if store else ""
        return f"access denied: {text}; check the credentials in the environment{hint}"
    if isinstance(error, ConnectionError | TimeoutError) or _LOST.search(type(error).__name__):
        return f"the connection failed, and failed again when it was retried: {text}"
    return text


_DENIED = re.compile(r"credential|forbidden|unauthori[sz]ed|\b40[13]\b|GatedRepo", re.IGNORECASE)
_LOST = re.compile(r"Connection|Timeout|ClientOSError|Disconnected|IncompleteRead|Payload|HTTPClie")
