"""Ways to send a file to a store, so that it appears all at once or not at all.

A remote file that is sent while it is made and appears when it is complete.
"""

from __future__ import annotations

import os
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from rlpost.io.paths import SLOW_READ, SLOW_UPLOAD, remote_errors, warn_if_slow
from rlpost.io.ranges import close_file
from rlpost.io.shutdown import register_cleanup, unregister_cleanup
from rlpost.io.staged import (
    READ_BYTES,
    ByteRange,
    StagedFile,
    file_errors,
    read_range,
    split_ranges,
    write_all,
)
from rlpost.io.threads import map_ordered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rlpost.io.paths import AnyPath, RemotePath
    from rlpost.io.ranges import OpenFile


PART_BYTES = 16 << 20  # bytes of a part; S3 takes 5 MiB and more
MAX_PARTS = 10_000  # that S3 takes
IN_FLIGHT = 3  # parts
_BLOCK = 8 << 20  # bytes of a block; GCS takes multiples of 256 KiB
_CANNOT = "cannot be written"
_S3 = ("s3", "s3a")
_GCS = ("gs", "gcs")
_RENAME = ("sftp", "ssh", "smb", "hdfs", "webhdfs", "ftp")  # where a file is seen as it grows


class Transfer(Protocol):
    """Sends bytes; what was sent appears by `finish`, and goes by `abort`.

    Raises:
        ReadWriteError: from `send` and `finish`, after the client has retried.
    """

    def send(self, pieces: Iterator[bytes], expected: int) -> None:
        """Send bytes, of which about `expected` are to come."""

    def finish(self) -> None:
        """Let the object appear."""

    def abort(self) -> None:
        """Remove what was sent; never raises."""


def transfer_to(target: RemotePath) -> Transfer:
    """A way to send to a place.

    Raises:
        ReadWriteError: the store denies or can't be reached, as far as that is known before.
    """
    if target.scheme in _S3:
        return Multipart(target)
    if target.scheme in _GCS:
        return Resumable(target)
    return Put(target)


class Multipart:
    """S3's multipart upload, some parts at a time."""

    def __init__(self, target: RemotePath) -> None:
        self._target = target
        bucket, key, _ = target.client.split_path(target.path)
        self._where = {"Bucket": bucket, "Key": key}
        self._before = _tag(target)
        self._parts: list[dict[str, Any]] = []
        self._sent = 0
        with remote_errors(target, _CANNOT), warn_if_slow(target.url, SLOW_READ):
            begun = target.client.call_s3("create_multipart_upload", **self._where)
        self._upload: dict[str, str] | None = {**self._where, "UploadId": begun["UploadId"]}

    def send(self, pieces: Iterator[bytes], expected: int) -> None:
        """Send bytes in parts of one size: some stores want that."""
        # New columns may be twice what is kept before the parts run out.
        size = max(PART_BYTES, 3 * expected // MAX_PARTS)
        parts = enumerate(_regrouped(pieces, size), 1)
        self._parts = list(map_ordered(self._put, parts, IN_FLIGHT))

    def _put(self, part: tuple[int, bytes]) -> dict[str, Any]:
        number, data = part
        with remote_errors(self._target, _CANNOT), warn_if_slow(self._target.url, SLOW_UPLOAD):
            put = self._target.client.call_s3(
                "upload_part", **(self._upload or {}), PartNumber=number, Body=data
            )
        self._sent += len(data)
        sums = {name: put[name] for name in ("ChecksumSHA256",) if name in put}
        return {"PartNumber": number, "ETag": put["ETag"], **sums}

    def finish(self) -> None:
        """Complete the upload."""
        try:
            with remote_errors(self._target, _CANNOT), warn_if_slow(self._target.url, SLOW_READ):
                self._target.client.call_s3(
                    "complete_multipart_upload",
                    **(self._upload or {}),
                    MultipartUpload={"Parts": self._parts},
                )
        except Exception:
            if not self._arrived():
                raise
        self._upload = None
        self._target.forget()

    def _arrived(self) -> bool:
        """Whether the upload was completed, and only the answer was lost."""
        self._target.forget()
        with suppress(Exception):
            info = self._target.info() or {}
            return info.get("size") == self._sent and info.get("ETag") != self._before
        return False

    def abort(self) -> None:
        """Abort the upload, so that no part of it stays."""
        if self._upload is not None:
            upload, self._upload = self._upload, None
            with suppress(Exception):
                self._target.client.call_s3("abort_multipart_upload", **upload)


def abort_leftover_uploads(prefix: RemotePath, names: Collection[str]) -> None:
    """Abort uploads that killed processes left: their parts cost, and no listing shows them.

    Args:
        prefix: what the keys begin with; nothing is done for stores other than S3.
        names: the last parts of their keys.
    """
    if prefix.scheme not in _S3:
        return
    bucket, key, _ = prefix.client.split_path(prefix.path)
    asked: dict[str, Any] | None = {"Bucket": bucket, "Prefix": key}
    with suppress(Exception):  # not everybody may list them; a rule of the bucket ends them then
        while asked:
            told = prefix.client.call_s3("list_multipart_uploads", **asked)
            for one in told.get("Uploads", []):
                if one["Key"].rpartition("/")[2] in names:
                    upload = {"Bucket": bucket, "Key": one["Key"], "UploadId": one["UploadId"]}
                    prefix.client.call_s3("abort_multipart_upload", **upload)
            marker = told.get("IsTruncated") and {
                "KeyMarker": told["NextKeyMarker"],
                "UploadIdMarker": told["NextUploadIdMarker"],
            }
            asked = asked | marker if marker else None


def _tag(target: RemotePath) -> str | None:
    return (target.info() or {}).get("ETag")


class Resumable:
    """A stream whose object appears when it is committed, as gcsfs's resumable uploads are."""

    def __init__(self, target: RemotePath) -> None:
        self._target = target
        with remote_errors(target, _CANNOT):
            self._file: Any = target.client.open(
                target.path, "wb", block_size=_BLOCK, autocommit=False
            )

    def send(self, pieces: Iterator[bytes], expected: int) -> None:  # noqa: ARG002
        """Send bytes, block by block."""
        with remote_errors(self._target, _CANNOT):
            for piece in pieces:
                self._file.write(piece)
            self._file.close()

    def finish(self) -> None:
        """Commit the stream."""
        with remote_errors(self._target, _CANNOT):
            self._file.commit()
        self._file = None
        self._target.forget()

    def abort(self) -> None:
        """Cancel the upload."""
        file, self._file = self._file, None
        with suppress(Exception):
            file.discard()


class Put:
    """Everything is kept in a local file, which the client sends as a whole at the end."""

    def __init__(self, target: RemotePath) -> None:
        self._target = target
        file, name = tempfile.mkstemp(prefix="rlpost-")
        os.close(file)
        self._path: Path | None = Path(name)
        own = PurePosixPath(target.path)
        staged = own.with_name(f".{own.name}.{self._path.name}.tmp")
        self._staged = str(staged) if target.scheme in _RENAME else None

    def send(self, pieces: Iterator[bytes], expected: int) -> None:  # noqa: ARG002
        """Keep bytes; where a file would be seen as it grows, send it under another name."""
        assert self._path is not None
        with self._path.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        if self._staged:
            with remote_errors(self._target, _CANNOT):
                self._put(self._staged)

    def finish(self) -> None:
        """Send the file, or give it its name."""
        with remote_errors(self._target, _CANNOT):
            if self._staged:
                self._target.client.mv(self._staged, self._target.path)
                self._staged = None
            else:
                self._put(self._target.path)
        self._target.forget()
        self.abort()

    def _put(self, path: str) -> None:
        with suppress(Exception):  # object stores have no folders; the next line says the rest
            self._target.client.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        self._target.client.put_file(str(self._path), path)

    def abort(self) -> None:
        """Remove the files."""
        path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)
        if self._staged:
            staged, self._staged = self._staged, None
            with suppress(Exception):
                self._target.client.rm_file(staged)


def _regrouped(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in parts of `size`, and a smaller last one; at least one part."""
    waiting = bytearray()
    some = False
    for piece in pieces:
        waiting += piece
        while len(waiting) >= size:
            yield bytes(waiting[:size])
            del waiting[:size]
            some = True
    if waiting or not some:
        yield bytes(waiting)


_READERS = 3  # ranges of the source that are fetched at a time


def stage_file(target: AnyPath) -> StagedFile | Upload:
    """Begin a file that takes its target's name when it is complete; raises as those two."""
    return StagedFile(target) if isinstance(target, Path) else Upload(target)


class Upload:
    """What `StagedFile` is for a local target: the same methods, for a remote one.

    A thread sends the file from its first byte on: what is copied first, and then what is written.
    Until it gets to that, it lies in a temporary file.

    Raises:
        ReadWriteError: from every method: the store does not take the file, or the disk is full.
    """

    def __init__(self, target: RemotePath) -> None:
        self.target = target
        self.runs: list[ByteRange] = []
        self._source: OpenFile | None = None
        self._transfer = transfer_to(target)
        self._published = False
        register_cleanup(self, self._remove)
        try:
            file, name = tempfile.mkstemp(prefix="rlpost-")
        except OSError as error:
            self._transfer.abort()
            unregister_cleanup(self)
            with file_errors(Path(tempfile.gettempdir()), "cannot be written"):
                raise error from None
        self._file: int | None = file
        self.path = Path(name)
        """Where the waiting bytes lie; who neither writes nor copies may write all of it there."""
        self._head = b""
        self._base: int | None = None  # offset, in the target, of the first waiting byte
        self._written = 0
        self._ended = self._stopped = False
        self._changed = threading.Condition()
        self._sending: Future[None] | None = None

    def write(self, at: int, data: bytes | memoryview) -> int:
        """Write bytes behind what was written or copied, and return the offset behind them."""
        assert self._file is not None
        if self._sending is not None and self._sending.done():
            self._sending.result()  # it failed: there is more to send
        if at == 0:
            self._head = bytes(data)
            return at + len(data)
        self._base = at if self._base is None else self._base
        with file_errors(self.path, "cannot be written"):
            done = write_all(self._file, data, at - self._base)
        with self._changed:
            self._written = at - self._base + done
            self._changed.notify_all()
        self._begin()
        return at + done

    def copy(self, source: OpenFile, runs: list[ByteRange]) -> None:
        """Begin to send bytes of an open file, in a thread, once; the file is closed here."""
        self._source, self.runs = source, runs
        self._begin()

    def original(self, run: ByteRange) -> bytes:
        """Bytes of the file that is copied from."""
        assert self._source is not None
        return read_range(self._source, run, self.target)

    def complete(self) -> None:
        """Wait until everything is sent; nothing has the target's name yet."""
        assert self._file is not None
        if self._base is None and self._source is None:
            self._written = os.fstat(self._file).st_size
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._begin().result()
        self._release()

    def publish(self) -> None:
        """Let the file appear under the target's name."""
        self._transfer.finish()
        self._published = True
        unregister_cleanup(self)

    def discard(self) -> None:
        """Stop sending, and remove what was sent unless it is published; never raises."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._sending is not None:
            self._sending.exception()
        self._remove()
        unregister_cleanup(self)

    def _remove(self) -> None:
        if not self._published:
            self._transfer.abort()
        self._release()

    def _begin(self) -> Future[None]:
        if self._sending is None:
            pool = ThreadPoolExecutor(1, thread_name_prefix="rlpost-send")
            expected = sum(run.size for run in self.runs)
            self._sending = pool.submit(self._transfer.send, self._pieces(), expected)
            pool.shutdown(wait=False)
        return self._sending

    def _pieces(self) -> Iterator[bytes]:
        """All bytes, in order, as they come to be known."""
        yield self._head
        if self._source is not None:
            yield from map_ordered(self._fetched, split_ranges(self.runs), _READERS)
        assert self._file is not None
        sent, ended = 0, False
        while not ended:
            written, ended = self._more_than(sent)
            while sent < written and not self._stopped:
                yield os.pread(self._file, min(READ_BYTES, written - sent), sent)
                sent = min(sent + READ_BYTES, written)

    def _more_than(self, sent: int) -> tuple[int, bool]:
        """Wait until there is a step more to send; how much is written, and whether that is all."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or self._ended or self._written >= sent + READ_BYTES
            )
            return self._written, self._ended or self._stopped

    def _fetched(self, step: ByteRange) -> bytes:
        """Some bytes of the source; none once nobody wants them."""
        if self._stopped:
            return b""
        return self.original(step)

    def _release(self) -> None:
        if self._source is not None:
            source, self._source = self._source, None
            close_file(source)
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)
                self.path.unlink()
