"""Uploads: remote files, sent while they are written, that appear when complete.

An object appears all at once or not at all. How depends on the store: `Multipart` for S3,
`Resumable` for GCS, `Put` for all others.
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
from rlpost.io.ranges import close_file, read_at
from rlpost.io.shutdown import register_cleanup, unregister_cleanup
from rlpost.io.staged import (
    READ_BYTES,
    ByteRange,
    CopyChecksums,
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


PART_BYTES = 16 << 20  # S3 requires at least 5 MiB
MAX_PARTS = 10_000  # S3's limit
IN_FLIGHT = 3  # parts that are sent at a time
_REQUESTS = 3  # to a remote source, at a time
_BLOCK = 8 << 20  # bytes; GCS requires multiples of 256 KiB
_CANNOT = "cannot be written"
_S3 = ("s3", "s3a")
_GCS = ("gs", "gcs")
_RENAME = ("sftp", "ssh", "smb", "hdfs", "webhdfs", "ftp")  # stores that show incomplete files


class Transfer(Protocol):
    """Sends the bytes of one object; the object appears on `finish`, or never after `abort`.

    Raises:
        ReadWriteError: from `send` and `finish`, after the client's retries.
    """

    def send(self, blocks: Iterator[bytes], expected: int) -> None:
        """Send all bytes, about `expected` of them."""

    def finish(self) -> None:
        """Make the object appear."""

    def abort(self) -> None:
        """Remove what was sent; never raises."""


def transfer_to(target: RemotePath) -> Transfer:
    """Start a transfer to a URL, by the protocol of its store.

    Raises:
        ReadWriteError: access is denied, or the store cannot be reached.
    """
    if target.scheme in _S3:
        return Multipart(target)
    if target.scheme in _GCS:
        return Resumable(target)
    return Put(target)


class Multipart:
    """S3's multipart upload, several parts at a time."""

    def __init__(self, target: RemotePath) -> None:
        self._target = target
        bucket, key, _ = target.client.split_path(target.path)
        self._object = {"Bucket": bucket, "Key": key}
        self._previous_tag = _tag(target)
        self._parts: list[dict[str, Any]] = []
        self._sent = 0
        with remote_errors(target, _CANNOT), warn_if_slow(target.url, SLOW_READ):
            created = target.client.call_s3("create_multipart_upload", **self._object)
        self._upload: dict[str, str] | None = {**self._object, "UploadId": created["UploadId"]}

    def send(self, blocks: Iterator[bytes], expected: int) -> None:
        """Send parts of equal size, which some stores require."""
        # A factor of 3: new columns may have twice the size of the kept ones.
        size = max(PART_BYTES, 3 * expected // MAX_PARTS)
        parts = enumerate(_regroup(blocks, size), 1)
        self._parts = list(map_ordered(self._put, parts, IN_FLIGHT))

    def _put(self, part: tuple[int, bytes]) -> dict[str, Any]:
        number, data = part
        with remote_errors(self._target, _CANNOT), warn_if_slow(self._target.url, SLOW_UPLOAD):
            response = self._target.client.call_s3(
                "upload_part", **(self._upload or {}), PartNumber=number, Body=data
            )
        self._sent += len(data)
        checksums = {name: response[name] for name in ("ChecksumSHA256",) if name in response}
        return {"PartNumber": number, "ETag": response["ETag"], **checksums}

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
            if not self._completed():
                raise
        self._upload = None
        self._target.forget()

    def _completed(self) -> bool:
        """Return whether the upload is complete, and only the response was lost."""
        self._target.forget()
        with suppress(Exception):
            info = self._target.info() or {}
            return info.get("size") == self._sent and info.get("ETag") != self._previous_tag
        return False

    def abort(self) -> None:
        """Abort the upload, which removes its parts."""
        if self._upload is not None:
            upload, self._upload = self._upload, None
            with suppress(Exception):
                self._target.client.call_s3("abort_multipart_upload", **upload)


def abort_leftover_uploads(prefix: RemotePath, names: Collection[str]) -> None:
    """Abort uploads that killed processes left: their parts cost money, and no listing has them.

    Args:
        prefix: the keys' common prefix; does nothing for stores other than S3.
        names: the last segments of the keys.
    """
    if prefix.scheme not in _S3:
        return
    bucket, key, _ = prefix.client.split_path(prefix.path)
    request: dict[str, Any] | None = {"Bucket": bucket, "Prefix": key}
    with suppress(
        Exception
    ):  # without permission to list them, the bucket's lifecycle rule ends them
        while request:
            page = prefix.client.call_s3("list_multipart_uploads", **request)
            for upload in page.get("Uploads", []):
                if upload["Key"].rpartition("/")[2] in names:
                    ids = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                    prefix.client.call_s3("abort_multipart_upload", **ids)
            marker = page.get("IsTruncated") and {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }
            request = request | marker if marker else None


def _tag(target: RemotePath) -> str | None:
    return (target.info() or {}).get("ETag")


class Resumable:
    """A resumable upload of gcsfs, whose object appears when the stream is committed."""

    def __init__(self, target: RemotePath) -> None:
        self._target = target
        with remote_errors(target, _CANNOT):
            self._file: Any = target.client.open(
                target.path, "wb", block_size=_BLOCK, autocommit=False
            )

    def send(self, blocks: Iterator[bytes], expected: int) -> None:  # noqa: ARG002
        """Send the blocks."""
        with remote_errors(self._target, _CANNOT):
            for block in blocks:
                self._file.write(block)
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
    """An upload of a local temporary file, which the client sends in one request at the end."""

    def __init__(self, target: RemotePath) -> None:
        self._target = target
        file, name = tempfile.mkstemp(prefix="rlpost-")
        os.close(file)
        self._path: Path | None = Path(name)
        path = PurePosixPath(target.path)
        staged = path.with_name(f".{path.name}.{self._path.name}.tmp")
        self._staged = str(staged) if target.scheme in _RENAME else None

    def send(self, blocks: Iterator[bytes], expected: int) -> None:  # noqa: ARG002
        """Write the blocks to the local file; send it by a temporary name if the store renames."""
        assert self._path is not None
        with self._path.open("wb") as file:
            for block in blocks:
                file.write(block)
        if self._staged:
            with remote_errors(self._target, _CANNOT):
                self._put(self._staged)

    def finish(self) -> None:
        """Send the file, or rename the remote one."""
        with remote_errors(self._target, _CANNOT):
            if self._staged:
                self._target.client.mv(self._staged, self._target.path)
                self._staged = None
            else:
                self._put(self._target.path)
        self._target.forget()
        self.abort()

    def _put(self, path: str) -> None:
        with suppress(Exception):  # object stores have no folders; put_file reports other errors
            self._target.client.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        self._target.client.put_file(str(self._path), path)

    def abort(self) -> None:
        """Remove the temporary files."""
        path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)
        if self._staged:
            staged, self._staged = self._staged, None
            with suppress(Exception):
                self._target.client.rm_file(staged)


def _regroup(blocks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in parts of `size`, the last one smaller; at least one part."""
    buffer = bytearray()
    empty = True
    for block in blocks:
        buffer += block
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
            empty = False
    if buffer or empty:
        yield bytes(buffer)


def stage_file(target: AnyPath) -> StagedFile | Upload:
    """Open a file that appears under its target's name when it is complete."""
    return StagedFile(target) if isinstance(target, Path) else Upload(target)


class Upload:
    """The counterpart of `StagedFile`, with the same methods, for a remote target.

    A thread sends the file from its first byte on: first the copied bytes, then the written ones,
    which are in a temporary file until then.

    Raises:
        ReadWriteError: from every method: the upload failed, or the disk is full.
    """

    def __init__(self, target: RemotePath) -> None:
        self.target = target
        self.ranges: list[ByteRange] = []
        self.copied: CopyChecksums | None = None
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
        """The temporary file; callers that do not `write` or `copy` may write all bytes here."""
        self._head = b""
        self._base: int | None = None  # offset in the target of the temporary file's first byte
        self._written = 0
        self._all_copied = self._ended = self._stopped = False
        self._changed = threading.Condition()
        self._sending: Future[None] | None = None

    def write(self, at: int, data: bytes | memoryview) -> int:
        """Write bytes behind the written and copied ones; return the offset behind them."""
        assert self._file is not None
        if self._sending is not None and self._sending.done():
            self._sending.result()  # raises: the thread only ends before `complete` if it fails
        if at == 0:
            self._head = bytes(data)
            return at + len(data)
        self._base = at if self._base is None else self._base
        with file_errors(self.path, "cannot be written"):
            done = write_all(self._file, data, at - self._base)
        with self._changed:
            self._written = at - self._base + done
            self._changed.notify_all()
        self._start()
        return at + done

    def copy(
        self, source: OpenFile, ranges: list[ByteRange], copied: CopyChecksums | None = None
    ) -> None:
        """Start a thread that sends ranges of an open file; call it at most once.

        The source is closed by this object.
        """
        self._source, self.ranges, self.copied = source, ranges, copied
        self._start()

    def wait_for_copy(self) -> None:
        """Wait until all ranges of `copy` are read."""
        if self._source is None:
            return
        sending = self._start()
        with self._changed:
            self._changed.wait_for(lambda: self._all_copied or self._stopped or sending.done())
        if sending.done():
            sending.result()  # raises: the thread only ends before `complete` if it fails

    def read_source(self, span: ByteRange) -> bytes:
        """Read bytes of the file that `copy` copies from."""
        assert self._source is not None
        return read_range(self._source, span, self.target)

    def complete(self) -> None:
        """Wait until everything is sent; the object does not exist yet."""
        assert self._file is not None
        if self._base is None and self._source is None:
            self._written = os.fstat(self._file).st_size
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._start().result()
        self._release()

    def publish(self) -> None:
        """Make the object appear under the target's name."""
        self._transfer.finish()
        self._published = True
        unregister_cleanup(self)

    def discard(self) -> None:
        """Stop the thread, and remove what was sent unless it is published; never raises."""
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

    def _start(self) -> Future[None]:
        if self._sending is None:
            pool = ThreadPoolExecutor(1, thread_name_prefix="rlpost-send")
            expected = sum(span.size for span in self.ranges)
            self._sending = pool.submit(self._transfer.send, self._blocks(), expected)
            pool.shutdown(wait=False)
            self._sending.add_done_callback(lambda _: self._notify())
        return self._sending

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _blocks(self) -> Iterator[bytes]:
        """Yield all bytes, in order, as soon as they are available."""
        yield self._head
        if self._source is not None:
            for begin, data in map_ordered(self._fetch, split_ranges(self.ranges), _REQUESTS):
                if self.copied is not None:
                    self.copied.add(begin, data)
                yield data
        with self._changed:
            self._all_copied = True
            self._changed.notify_all()
        assert self._file is not None
        sent, ended = 0, False
        while not ended:
            written, ended = self._wait_for_more(sent)
            while sent < written and not self._stopped:
                yield read_at(self._file, min(READ_BYTES, written - sent), sent)
                sent = min(sent + READ_BYTES, written)

    def _wait_for_more(self, sent: int) -> tuple[int, bool]:
        """Wait for READ_BYTES more to send; return the bytes written, and whether that is all."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or self._ended or self._written >= sent + READ_BYTES
            )
            return self._written, self._ended or self._stopped

    def _fetch(self, span: ByteRange) -> tuple[int, bytes]:
        """Read bytes of the source, with their offset; none after `discard`."""
        return span.begin, b"" if self._stopped else self.read_source(span)

    def _release(self) -> None:
        if self._source is not None:
            source, self._source = self._source, None
            close_file(source)
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)
                self.path.unlink()
