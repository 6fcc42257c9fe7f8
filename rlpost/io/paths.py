"""Local paths, and URLs of object stores and other file systems.

An `AnyPath` is a `Path` or a `RemotePath`. The latter has the methods of `Path` that rlpost uses,
so little code depends on which of the two it gets. A `Store` (`rlpost.io.stores`) makes requests.
Clients retry for half a minute.
"""

from __future__ import annotations

import glob
import logging
import re
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from rlpost.errors import ReadWriteError, RlpostError, UnavailableError, UsageError, closest
from rlpost.io.stores import FOLDER, HTTP_SCHEMES, OBJECT_SCHEMES, FsspecStore, object_store
from rlpost.optional import need
from rlpost.redaction import HIDDEN, public_url

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rlpost.io.stores import ObjectInfo, Store


_URL = re.compile(r"[A-Za-z][\w+.-]+(::[A-Za-z][\w+.-]+)*://")  # one letter is a drive

_SHORTEST_SECRET = 4  # characters: shorter ones are parts of words


class _Client(NamedTuple):
    """What the client of a scheme needs, for errors."""

    extra: str
    modules: tuple[str, ...]
    credentials: str
    buckets: bool = True


_AWS = "AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL"
_GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login`"
_AZURE = "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
_CLIENTS = {
    **dict.fromkeys(("s3", "s3a"), _Client("cloud", ("obstore", "botocore"), _AWS)),
    **dict.fromkeys(("gs", "gcs"), _Client("cloud", ("obstore",), _GOOGLE)),
    **dict.fromkeys(
        ("az", "abfs", "abfss", "adl", "azure"), _Client("cloud", ("obstore",), _AZURE)
    ),
    **dict.fromkeys(HTTP_SCHEMES, _Client("cloud", ("obstore",), "the URL", buckets=False)),
    "hf": _Client("hf", ("huggingface_hub",), "HF_TOKEN, `hf auth login`", buckets=False),
}


class FileSize(NamedTuple):
    """The field of `os.stat_result` that rlpost uses."""

    st_size: int


@dataclass(frozen=True)
class RemotePath:
    """A URL, with the methods of `Path` that rlpost uses.

    It is printed and stored without its secrets (`str`): with scheme, host and path. `url` has
    them, and is for requests alone.

    Raises:
        UnavailableError: the client package of the store is not installed.
        UsageError: the URL's scheme is unknown.
        ReadWriteError: from every method that sends a request: it failed, or access is denied.
    """

    url: str

    def __post_init__(self) -> None:
        _ = self._store_and_path

    def __str__(self) -> str:
        return public_url(self.url)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    @property
    def has_secrets(self) -> bool:
        """Whether the URL has a user name, a password or a query, which is not printed."""
        return str(self) != self.url

    def without_secrets(self, text: str) -> str:
        """Return a text of a client without the URL's user name, password and query."""
        rest = self.url.partition("://")[2]
        query, authority = re.split(r"[?#]", rest, maxsplit=1)[1:], rest.partition("/")[0]
        user = authority.rpartition("@")[0]
        secrets = [*query, user, user.partition(":")[2]] if self.has_secrets else []
        for secret in [one for one in secrets if len(one) >= _SHORTEST_SECRET]:
            for form in (secret, unquote(secret), quote(secret)):
                text = text.replace(form, HIDDEN)
        return text

    def __truediv__(self, below: str | PurePath) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{below}")

    @cached_property
    def _store_and_path(self) -> tuple[Store, str]:
        if client := _CLIENTS.get(self.scheme):
            need(f"{self}: {self.scheme}://", client.extra, *client.modules)
        if self.scheme in OBJECT_SCHEMES:
            return object_store(self.scheme), self.url.partition("://")[2].rstrip("/")
        return self._by_fsspec()

    def _by_fsspec(self) -> tuple[Store, str]:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - not needed for local files

        # Keep clients' warnings off stderr: rlpost's errors have what matters.
        logging.getLogger("huggingface_hub").addHandler(logging.NullHandler())
        try:
            client, path = url_to_fs(self.url)
        except ImportError as error:
            raise UnavailableError(f"{self}: {error}; install it with pip") from None
        except ValueError as error:
            raise UsageError(f"{self}: {error}") from None
        except Exception as error:  # noqa: BLE001 - clients raise anything
            raise ReadWriteError(f"{self}: {_reason(self, error)}") from None
        return FsspecStore(client), str(path)

    def __reduce__(self) -> tuple[type[RemotePath], tuple[str]]:
        return RemotePath, (self.url,)  # other processes open the store themselves

    @property
    def store(self) -> Store:
        """The store of the URL's scheme."""
        return self._store_and_path[0]

    @property
    def path(self) -> str:
        """The path in the store."""
        return self._store_and_path[1]

    @property
    def scheme(self) -> str:
        """The URL's scheme, in lower case."""
        return self.url.partition("://")[0].lower()

    @property
    def _pure(self) -> PurePosixPath:
        """The path, without the query of a URL of an HTTP server."""
        is_http = self.scheme in HTTP_SCHEMES
        return PurePosixPath(self.path.partition("?")[0] if is_http else self.path)

    @property
    def is_pattern(self) -> bool:
        """Whether the path is a glob."""
        return glob.has_magic(str(self._pure))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._pure.name

    @property
    def suffix(self) -> str:
        """The extension of the name, with its dot."""
        return self._pure.suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the path."""
        return self._pure.parts

    @property
    def parents(self) -> tuple[Path, ...]:
        """The folders to create before the file: none, object stores have no folders."""
        return ()

    def sibling(self, path: str) -> RemotePath:
        """Return the URL of another path of the same store."""
        url = self.url.rstrip("/")
        prefix = url.removesuffix(self.path) if self.path != url else f"{self.scheme}://"
        return RemotePath(f"{prefix}{path}" if prefix != url else path)

    def resolve(self) -> RemotePath:
        """Return itself: there are no links to follow."""
        return self

    def exists(self) -> bool:
        """Return whether there is an object at the URL, or below it."""
        return self.info() is not None

    def is_file(self) -> bool:
        """Return whether there is an object at the URL."""
        return not (self.info() or FOLDER).is_folder

    def is_dir(self) -> bool:
        """Return whether there are objects below the URL, or it ends in a slash."""
        info = None if self.url.endswith("/") else self.info()
        return self.url.endswith("/") or (info is not None and info.is_folder)

    def stat(self) -> FileSize:
        """Return the object's size in bytes."""
        return FileSize((self.info() or FOLDER).size)

    def info(self) -> ObjectInfo | None:
        """Return the store's metadata of the object; `FOLDER` for objects below it, else None."""
        with remote_errors(self, "cannot be accessed"):
            return self.store.info(self.path)

    def forget(self) -> None:
        """Drop cached listings of paths that begin with this one; other processes change them."""
        self.store.forget(self.path)


AnyPath = Path | RemotePath


def is_url(text: str) -> bool:
    """Return whether a text is a URL; `C:/dumps` is a path."""
    return _URL.match(text) is not None


PathText = str | AnyPath
"""A path as the user typed it, or parsed."""


def parse_path(text: PathText) -> AnyPath:
    """Parse a local path or a URL; a file:// URL is a local path.

    Raises:
        UnavailableError, UsageError: as `RemotePath`.
    """
    if not isinstance(text, str):
        return text
    if not text:
        raise UsageError("a path is empty: name a file or directory")
    if not is_url(text):
        scheme, colon, _ = text.partition(":/")
        if colon and scheme.lower() in (*OBJECT_SCHEMES, *HTTP_SCHEMES, *_CLIENTS):
            raise UsageError(f"{text}: a URL has two slashes after its scheme: {scheme}://...")
        return Path(text)
    scheme, _, rest = text.partition("://")
    if scheme.lower() not in ("file", "local"):
        return RemotePath(text)
    return Path(rest)


def is_output_folder(output: AnyPath) -> bool:
    """Return whether OUT is a directory: one that exists, or a name without a suffix.

    Raises:
        UsageError: another suffix than .parquet.
    """
    is_folder = not output.suffix or output.is_dir()
    if not is_folder and output.suffix != ".parquet":
        tip = "name OUT.parquet, or a directory that exists"
        raise UsageError(f"{output}: OUT is a .parquet file or a directory", tip=tip)
    return is_folder


def location_of(path: PathText) -> str | RemotePath:
    """Return a local path as it was typed, and a URL as a location that prints without secrets.

    Raises:
        UnavailableError, UsageError: as `RemotePath`.
    """
    location = parse_path(path)
    return location if isinstance(location, RemotePath) else str(path)


def list_files(top: AnyPath) -> list[tuple[AnyPath, Path]]:
    """List the files below a directory, sorted, each with its path relative to the directory."""
    if isinstance(top, Path):
        return [(file, file.relative_to(top)) for file in sorted(top.rglob("*")) if file.is_file()]
    with remote_errors(top, "cannot be listed"):
        paths = sorted(top.store.find(top.path))
    own = PurePosixPath(top.path)
    relatives = [Path(PurePosixPath(path).relative_to(own)) for path in paths]
    return [(top.sibling(path), relative) for path, relative in zip(paths, relatives, strict=True)]


def glob_files(pattern: AnyPath) -> list[AnyPath]:
    """List the files that a glob matches, sorted."""
    if isinstance(pattern, Path):
        matches = sorted(glob.glob(str(pattern), recursive=True))  # noqa: PTH207
        return [Path(match) for match in matches if Path(match).is_file()]
    with remote_errors(pattern, "cannot be listed"):
        return [pattern.sibling(path) for path in sorted(pattern.store.glob(pattern.path))]


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


def resolved(path: AnyPath) -> AnyPath:
    """Return the path without symbolic links; raise UsageError if they lead to each other."""
    try:
        return path.resolve()
    except RuntimeError:
        raise UsageError(
            f"{path}: a symbolic link that leads back to itself; name another path"
        ) from None


_beside: ContextVar[tuple[tuple[str, Path, RlpostError | None], ...]] = ContextVar(
    "beside", default=()
)


@contextmanager
def written_beside(
    flag: str, path: Path | None, refused: RlpostError | None = None
) -> Iterator[None]:
    """Reserve the path of an output beside OUT, in the block: `check_beside` rejects others there.

    Args:
        flag: the option that names it.
        path: the output; None if the option is not set.
        refused: why what exists there is not replaced, for `check_replaceable`.

    Raises:
        UsageError: another option has reserved it.
    """
    check_beside(path, f"the output of {flag}, too")
    token = _beside.set((*_beside.get(), *([] if path is None else [(flag, path, refused)])))
    try:
        yield
    finally:
        _beside.reset(token)


def check_beside(path: AnyPath | None, what: str) -> None:
    """Raise UsageError if a path, of an input or of another output, is a reserved one."""
    if not isinstance(path, Path):
        return
    for flag, other, _ in _beside.get():
        same = resolved(path) == resolved(other)
        with suppress(OSError):  # one of them does not exist
            same = same or path.samefile(other)
        if same:
            raise UsageError(f"{flag} {other}: is {what}", tip="name another file")


def check_replaceable() -> None:
    """Raise the error of a reserved path that is neither an input nor OUT, but not replaced."""
    for _, _, refused in _beside.get():
        if refused is not None:
            raise refused


def check_target(
    target: AnyPath,
    inputs: Collection[AnyPath],
    *,
    overwrite: bool,
    existing: Collection[str] | None = None,
) -> None:
    """Check that a file may be written.

    Args:
        target: the file.
        inputs: resolved paths of the input.
        overwrite: whether it may exist.
        existing: what exists, if that is listed already; None to look it up.

    Raises:
        UsageError: it is an input or reserved, or exists and may not be overwritten.
        OSError: it cannot be accessed.
    """
    check_beside(target, "OUT, too")
    if resolved(target) in inputs:
        raise UsageError(f"{target}: output and input are the same file", tip="name another output")
    exists = target.exists() if existing is None else str(target) in existing
    if exists and not overwrite:
        raise UsageError(f"{target}: exists already", tip="--overwrite  # replaces it")


_SIMILAR_FILE = 0.8  # similarity of a file's name, of which the suffix is a part, to another


def missing_error(path: AnyPath, text: str) -> ReadWriteError:
    """Return the error for a path that does not exist, with files of similar names beside it.

    Args:
        path: the path.
        text: how it was typed.
    """
    if isinstance(path, Path):
        return ReadWriteError(f"{text}: no such file or directory", candidates=_similar(path))
    client = _CLIENTS.get(path.scheme)
    if client and client.buckets and not path.sibling(path.parts[0]).exists():
        return ReadWriteError(f"{text}: the bucket {path.parts[0]} does not exist")
    return ReadWriteError(f"{text}: no such object, and no objects below it")


def _similar(path: Path) -> list[str]:
    """Return the paths beside a path whose names are similar to its name."""
    try:
        names = [one.name for one in path.parent.iterdir()]
    except (OSError, ValueError):
        return []
    return [str(path.parent / name) for name in closest(path.name, names, least=_SIMILAR_FILE)]


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
        raise ReadWriteError(f"{path}: {what}: the {absent} does not exist") from error
    except Exception as error:  # clients raise anything
        raise ReadWriteError(f"{path}: {what}: {_reason(path, error)}") from error


def _reason(path: RemotePath, error: BaseException) -> str:
    """Return the reason of a client's exception and what to do, in one line."""
    text = path.without_secrets(_plain(str(error))) or type(error).__name__
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    if _DENIED.search(f"{kinds} {text}"):
        client = _CLIENTS.get(path.scheme)
        hint = f" ({client.credentials})" if client else ""
        return f"access denied: {text}; check the credentials in the environment{hint}"
    if _LOST.search(f"{kinds} {text}"):
        return f"the connection failed, also on retries: {text}; check network and endpoint"
    return text


def _plain(text: str) -> str:
    """Return the reason in an exception's text: of obstore's, the store's message or the system's.

    obstore's texts have the request, the server's response and a dump of the error's fields.
    """
    first, dump, details = text.strip().partition("\n\nDebug source:")
    if not dump:
        line, colon, rest = first.partition(":\n")  # botocore lists what is wrong below
        return f"{line}: {rest.partition(chr(10))[0]}" if colon else first.partition("\n")[0]
    if message := _MESSAGE.search(first):
        return ": ".join(filter(None, (message["code"], message["text"].strip())))
    reason = _SYSTEM.findall(details)
    status = first.partition("status code: ")[2].partition("\n")[0].strip(": ")
    return status or (reason[-1] if reason else first.partition("\n")[0].rpartition(" - ")[2])


_MESSAGE = re.compile(
    r"(?:<Code>(?P<code>[^<]*)</Code>.*?)?<Message>(?P<text>[^<\n]*)", re.DOTALL | re.IGNORECASE
)
_SYSTEM = re.compile(r'(?:message: |error: )"([^"]+)"')  # of the operating system, in the dump
_DENIED = re.compile(
    r"credential|forbidden|unauthori[sz]ed|Unauthenticated|Permission|\b40[13]\b|GatedRepo",
    re.IGNORECASE,
)
_LOST = re.compile(
    r"Connection|Timeout|ClientOSError|Disconnected|IncompleteRead|Payload|HTTPClie|HTTP error"
)
