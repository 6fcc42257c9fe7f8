"""Transfers: how the bytes of one remote object are sent, so that it appears whole or not at all.

`Multipart` is for S3, `Streamed` for Google Cloud Storage and Azure, `Transfer` for other stores.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from rlpost.io.cloud import encryption
from rlpost.io.locks import temporary_name
from rlpost.io.paths import SLOW_READ, SLOW_UPLOAD, remote_errors, warn_if_slow
from rlpost.io.stores import HTTP_SCHEMES, OBJECT_SCHEMES, S3_SCHEMES, ObjectStore, S3Objects
from rlpost.io.threads import map_ordered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

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
Read = Callable[[int, int], bytes]
"""Returns bytes from an offset on when they are written; fewer at the end of the file."""


def transfer_to(target: RemotePath, path: Path) -> Transfer:
    """Start a transfer of a local file to a URL, by the protocol of its store.

    Raises:
        ReadWriteError: access is denied, or the store cannot be reached.
    """
    if target.scheme in S3_SCHEMES:
        return Multipart(target, path)
    if target.scheme in OBJECT_SCHEMES and target.scheme not in HTTP_SCHEMES:
        return Streamed(target, path)
    return Transfer(target, path)


class Transfer:
    """Sends a file in one request; the object appears on `finish`, or never after `abort`.

    Args:
        target: the object.
        path: the file, which is complete on `send`.

    Raises:
        ReadWriteError: from `send` and `finish`, after the client's retries.
    """

    def __init__(self, target: RemotePath, path: Path) -> None:
        self.target = target
        self._path = path
        name = temporary_name(target.name, secrets.token_hex(4))
        self._staged = str(PurePosixPath(target.path).with_name(name))
        self._renames = target.scheme in _RENAME

    def send(self, read: Read, expected: int) -> bool:  # noqa: ARG002
        """Send the file under a temporary name if the store shows incomplete files.

        Args:
            read: returns its bytes.
            expected: about how many there will be.

        Returns:
            Whether `finish` needs the file.
        """
        if self._renames:
            self._put(self._staged)
        return not self._renames

    def finish(self) -> None:
        """Make the object appear."""
        if self._renames:
            with remote_errors(self.target, _CANNOT):
                self.target.store.move(self._staged, self.target.path)
        else:
            self._put(self.target.path)
        self.target.forget()

    def _put(self, path: str) -> None:
        with remote_errors(self.target, _CANNOT), warn_if_slow(self.target, SLOW_UPLOAD):
            self.target.store.put(path, self._path)

    def abort(self) -> None:
        """Remove what was sent; never raises."""
        if self._renames:
            with suppress(Exception):
                self.target.store.remove(self._staged)


class PartTransfer(Transfer):
    """Sends a small file in one request at the end, a large one in parts while it is written."""

    _begun = False

    def __init__(self, target: RemotePath, path: Path) -> None:
        super().__init__(target, path)
        self._in_parts = False
        self._sent = 0
        self._before: ObjectInfo | None = None

    def send(self, read: Read, expected: int) -> bool:
        """Send all parts, which have one size; a small file is left to `finish`."""
        # A factor of 3: new columns may have twice the size of the kept ones.
        size = max(PART_BYTES, 3 * expected // MAX_PARTS)
        first = read(0, size)
        if len(first) <= min(SMALL_BYTES, size - 1) and not self._begun:
            return True
        self._in_parts, self._before = True, self.target.info()
        self._send(self._parts(first, read, size), size)
        return False

    def _parts(self, part: bytes, read: Read, size: int) -> Iterator[bytes]:
        """Yield the parts of a file from its first on; an empty file has one."""
        yield part
        self._sent = len(part)
        while len(part) == size and (part := read(self._sent, size)):
            yield part
            self._sent += len(part)

    def finish(self) -> None:
        """Make the object appear."""
        if not self._in_parts:
            super().finish()
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

    def _send(self, parts: Iterator[bytes], size: int) -> None:
        """Send parts of equal size, which some stores require, the last one smaller."""
        raise NotImplementedError

    def _complete(self) -> None:
        raise NotImplementedError


class Multipart(PartTransfer):
    """S3's multipart upload, several parts at a time, by botocore; it ends others of the object.

    obstore can neither list nor abort uploads of other processes, and abort its own only between
    two parts. The first upload to a bucket begins at once, so that a run without permission to
    write fails early.
    """

    _writable: ClassVar[set[str]] = set()

    def __init__(self, target: RemotePath, path: Path) -> None:
        super().__init__(target, path)
        bucket, _, key = target.path.partition("/")
        self._object = {"Bucket": bucket, "Key": key}
        self._upload: dict[str, str] | None = None
        self._tags: list[dict[str, Any]] = []
        if bucket not in self._writable:
            self._create()
            self._writable.add(bucket)

    @property
    def _begun(self) -> bool:  # type: ignore[override]
        return self._upload is not None

    def _create(self) -> None:
        abort_leftover_uploads(self.target, {self.target.name})
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
        self._tags = list(map_ordered(self._send_part, enumerate(parts, 1), IN_FLIGHT))

    def _send_part(self, part: tuple[int, bytes]) -> dict[str, Any]:
        number, data = part
        upload = self._upload or {}
        response = self._call(
            "upload_part", SLOW_UPLOAD, "ETag", PartNumber=number, Body=data, **upload
        )
        checksums = {name: response[name] for name in ("ChecksumSHA256",) if name in response}
        return {"PartNumber": number, "ETag": response["ETag"], **checksums}

    def _complete(self) -> None:
        parts, upload = {"Parts": self._tags}, self._upload or {}
        self._call("complete_multipart_upload", SLOW_READ, MultipartUpload=parts, **upload)
        self._upload = None

    def _is_complete(self) -> bool:
        complete = super()._is_complete()
        self._upload = None if complete else self._upload
        return complete

    def abort(self) -> None:
        """Abort the upload; never raises."""
        upload, self._upload = self._upload, None
        if upload is not None:
            with suppress(Exception):
                _s3(self.target).call("abort_multipart_upload", **upload)


def _s3(path: RemotePath) -> S3:
    store = path.store
    assert isinstance(store, S3Objects)
    return store.s3


class Streamed(PartTransfer):
    """An upload by obstore, in parts, to Google Cloud Storage or Azure.

    obstore completes it when the iterator of its parts ends, and aborts it if the iterator raises.
    So the iterator waits at its end for `finish` or `abort`, in a thread. Azure removes parts that
    killed processes left after a week; Google does by a lifecycle rule.
    """

    def __init__(self, target: RemotePath, path: Path) -> None:
        super().__init__(target, path)
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

    def abort(self) -> None:
        """Let obstore abort the upload; never raises."""
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
    with suppress(Exception):  # without permission, the bucket's lifecycle rule ends them
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
