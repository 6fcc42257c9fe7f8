"""Transfers: how the bytes of one remote object are sent, so that it appears whole or not at all.

`Multipart` is for S3, `Streamed` for Google Cloud Storage and Azure, `Put` for all other stores.
"""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import suppress
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rlpost.io.cloud import encryption
from rlpost.io.paths import SLOW_READ, SLOW_UPLOAD, remote_errors, warn_if_slow
from rlpost.io.stores import HTTP_SCHEMES, OBJECT_SCHEMES, S3_SCHEMES, ObjectStore, S3Objects
from rlpost.io.threads import map_ordered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rlpost.io.cloud import S3
    from rlpost.io.paths import RemotePath
    from rlpost.io.stores import ObjectInfo


PART_BYTES = 16 << 20  # S3 requires at least 5 MiB
MAX_PARTS = 10_000  # S3's limit
SMALL_BYTES = 1 << 20  # an object that is sent in one request costs as much as completing an upload
IN_FLIGHT = 3  # parts that are sent at a time
_ABORT_SECONDS = 5.0  # to wait for obstore to abort an upload
_CANNOT = "cannot be written"
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
    if target.scheme in S3_SCHEMES:
        return Multipart(target)
    if target.scheme in OBJECT_SCHEMES and target.scheme not in HTTP_SCHEMES:
        return Streamed(target)
    return Put(target)


class ObjectTransfer:
    """Sends a small object in one request at the end, and a large one in parts from the start on.

    Args:
        target: the object.
    """

    def __init__(self, target: RemotePath) -> None:
        self.target = target
        self._small: Put | None = None
        self._sent = 0
        self._before: ObjectInfo | None = None

    def send(self, blocks: Iterator[bytes], expected: int) -> None:
        """Send all parts but those of a small object, which a temporary file has until `finish`."""
        # A factor of 3: new columns may have twice the size of the kept ones.
        size = max(PART_BYTES, 3 * expected // MAX_PARTS)
        parts = self._counted(_regroup(blocks, size))
        first = next(parts)
        if len(first) <= min(SMALL_BYTES, size - 1) and not self._begun:
            self._small = Put(self.target)
            self._small.send(iter([first]), len(first))
            return
        self._before = self.target.info()
        self._send(chain([first], parts), size)

    def _counted(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        for part in parts:
            self._sent += len(part)
            yield part

    def finish(self) -> None:
        """Make the object appear."""
        if self._small is not None:
            self._small.finish()
            return
        try:
            self._complete()
        except Exception:
            if not self._is_complete():
                raise
        self.target.forget()

    def _is_complete(self) -> bool:
        """Return whether the upload is complete, and only the response was lost."""
        self.target.forget()
        with suppress(Exception):
            info, before = self.target.info(), self._before
            return info is not None and info.size == self._sent and info != before
        return False

    def abort(self) -> None:
        """Remove what was sent; never raises."""
        if self._small is not None:
            self._small.abort()
        self._abort()

    _begun = False

    def _send(self, parts: Iterator[bytes], size: int) -> None:
        """Send parts of equal size, which some stores require, the last one smaller."""
        raise NotImplementedError

    def _complete(self) -> None:
        raise NotImplementedError

    def _abort(self) -> None:
        raise NotImplementedError


class Multipart(ObjectTransfer):
    """S3's multipart upload, several parts at a time, by botocore.

    obstore can neither list nor abort uploads of other processes, and abort its own only between
    two parts. The first upload to a bucket begins at once, so that a run without permission to
    write fails early.
    """

    _writable: ClassVar[set[str]] = set()

    def __init__(self, target: RemotePath) -> None:
        super().__init__(target)
        bucket, _, key = target.path.partition("/")
        self._object = {"Bucket": bucket, "Key": key}
        self._upload: dict[str, str] | None = None
        self._parts: list[dict[str, Any]] = []
        if bucket not in self._writable:
            self._create()
            self._writable.add(bucket)

    @property
    def _begun(self) -> bool:  # type: ignore[override]
        return self._upload is not None

    def _create(self) -> None:
        request = {**self._object, **encryption()}
        created = self._call("create_multipart_upload", SLOW_READ, "UploadId", **request)
        self._upload = {**self._object, "UploadId": created["UploadId"]}

    def _call(
        self, operation: str, patience: float, needed: str = "", **request: Any
    ) -> dict[str, Any]:
        with remote_errors(self.target, _CANNOT), warn_if_slow(self.target, patience):
            return _s3(self.target).call(operation, needed, **request)

    def _send(self, parts: Iterator[bytes], size: int) -> None:  # noqa: ARG002
        if self._upload is None:
            self._create()
        self._parts = list(map_ordered(self._put, enumerate(parts, 1), IN_FLIGHT))

    def _put(self, part: tuple[int, bytes]) -> dict[str, Any]:
        number, data = part
        upload = self._upload or {}
        response = self._call(
            "upload_part", SLOW_UPLOAD, "ETag", PartNumber=number, Body=data, **upload
        )
        checksums = {name: response[name] for name in ("ChecksumSHA256",) if name in response}
        return {"PartNumber": number, "ETag": response["ETag"], **checksums}

    def _complete(self) -> None:
        parts, upload = {"Parts": self._parts}, self._upload or {}
        self._call("complete_multipart_upload", SLOW_READ, MultipartUpload=parts, **upload)
        self._upload = None

    def _is_complete(self) -> bool:
        complete = super()._is_complete()
        self._upload = None if complete else self._upload
        return complete

    def _abort(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            with suppress(Exception):
                _s3(self.target).call("abort_multipart_upload", **upload)


def _s3(path: RemotePath) -> S3:
    store = path.store
    assert isinstance(store, S3Objects)
    return store.s3


class Streamed(ObjectTransfer):
    """An upload by obstore, in parts, to Google Cloud Storage or Azure.

    obstore completes it when the iterator of its parts ends, and aborts it if the iterator raises.
    So the iterator waits at its end for `finish` or `abort`, in a thread. Azure removes parts that
    killed processes left after a week; Google does by a lifecycle rule.
    """

    def __init__(self, target: RemotePath) -> None:
        super().__init__(target)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._sent_all, self._decided = threading.Event(), threading.Event()
        self._publish = False

    def _send(self, parts: Iterator[bytes], size: int) -> None:
        self._thread = threading.Thread(target=self._run, args=(parts, size), daemon=True)
        self._thread.start()
        self._sent_all.wait()
        if self._error is not None:
            raise self._error

    def _run(self, parts: Iterator[bytes], size: int) -> None:
        import obstore  # noqa: PLC0415

        assert isinstance(self.target.store, ObjectStore)
        try:
            with remote_errors(self.target, _CANNOT):
                bucket, key = self.target.store.at(self.target.path)
                limits = {"chunk_size": size, "max_concurrency": IN_FLIGHT}
                obstore.put(bucket, key, self._until_decided(parts), use_multipart=True, **limits)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._error = error
        self._sent_all.set()

    def _until_decided(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Yield full parts, and the last one when the object may appear."""
        # obstore keeps an incomplete part in memory; here a file has it until then
        with tempfile.TemporaryFile(prefix="rlpost-") as file:
            last = b""
            for part in parts:
                if last:
                    with warn_if_slow(self.target, SLOW_UPLOAD):  # until obstore can send more
                        yield last
                last = part
            file.write(last)
            last = b""
            self._sent_all.set()
            self._decided.wait()
            if not self._publish:
                raise InterruptedError("the upload is aborted")
            file.seek(0)
            yield file.read()

    def _complete(self) -> None:
        self._publish = True
        self._decided.set()
        assert self._thread is not None
        with warn_if_slow(self.target, SLOW_UPLOAD):
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _abort(self) -> None:
        self._decided.set()
        if self._thread is not None:
            self._thread.join(_ABORT_SECONDS)


def abort_leftover_uploads(prefix: RemotePath, names: Collection[str]) -> None:
    """Abort uploads that killed processes left: their parts cost money, and no listing has them.

    Args:
        prefix: the keys' common prefix; does nothing for stores other than S3.
        names: the last segments of the keys.
    """
    if prefix.scheme not in S3_SCHEMES:
        return
    bucket, _, key = prefix.path.partition("/")
    request: dict[str, Any] | None = {"Bucket": bucket, "Prefix": key}
    with suppress(
        Exception
    ):  # without permission to list them, the bucket's lifecycle rule ends them
        while request:
            page = _s3(prefix).call("list_multipart_uploads", **request)
            for upload in page.get("Uploads", []):
                if upload["Key"].rpartition("/")[2] in names:
                    ids = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                    _s3(prefix).call("abort_multipart_upload", **ids)
            marker = page.get("IsTruncated") and {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }
            request = request | marker if marker else None


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
                self._target.store.move(self._staged, self._target.path)
                self._staged = None
            else:
                self._put(self._target.path)
        self._target.forget()
        self.abort()

    def _put(self, path: str) -> None:
        assert self._path is not None
        with warn_if_slow(self._target, SLOW_UPLOAD):
            self._target.store.put(path, self._path)

    def abort(self) -> None:
        """Remove the temporary files."""
        path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)
        if self._staged:
            staged, self._staged = self._staged, None
            with suppress(Exception):
                self._target.store.remove(staged)


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
