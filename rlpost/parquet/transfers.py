"""Ways to send a file to a store, so that it appears all at once or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from rlpost.parallel import in_order
from rlpost.parquet.patience import LONG, SLOW, waiting
from rlpost.parquet.places import reaching

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rlpost.parquet.places import Remote

PART = 16 << 20  # bytes of a part; S3 takes 5 MiB and more
MOST_PARTS = 10_000  # that S3 takes
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


def transfer_to(target: Remote) -> Transfer:
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

    def __init__(self, target: Remote) -> None:
        self._target = target
        bucket, key, _ = target.client.split_path(target.path)
        self._where = {"Bucket": bucket, "Key": key}
        self._before = _tag(target)
        self._parts: list[dict[str, Any]] = []
        self._sent = 0
        with reaching(target, _CANNOT), waiting(target.url, LONG):
            begun = target.client.call_s3("create_multipart_upload", **self._where)
        self._upload: dict[str, str] | None = {**self._where, "UploadId": begun["UploadId"]}

    def send(self, pieces: Iterator[bytes], expected: int) -> None:
        """Send bytes in parts of one size: some stores want that."""
        # New columns may be twice what is kept before the parts run out.
        size = max(PART, 3 * expected // MOST_PARTS)
        parts = enumerate(_regrouped(pieces, size), 1)
        self._parts = list(in_order(self._put, parts, IN_FLIGHT))

    def _put(self, part: tuple[int, bytes]) -> dict[str, Any]:
        number, data = part
        with reaching(self._target, _CANNOT), waiting(self._target.url, SLOW):
            put = self._target.client.call_s3(
                "upload_part", **(self._upload or {}), PartNumber=number, Body=data
            )
        self._sent += len(data)
        sums = {name: put[name] for name in ("ChecksumSHA256",) if name in put}
        return {"PartNumber": number, "ETag": put["ETag"], **sums}

    def finish(self) -> None:
        """Complete the upload."""
        try:
            with reaching(self._target, _CANNOT), waiting(self._target.url, LONG):
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


def abandon(prefix: Remote, names: Collection[str]) -> None:
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


def _tag(target: Remote) -> str | None:
    return (target.info() or {}).get("ETag")


class Resumable:
    """A stream whose object appears when it is committed, as gcsfs's resumable uploads are."""

    def __init__(self, target: Remote) -> None:
        self._target = target
        with reaching(target, _CANNOT):
            self._file: Any = target.client.open(
                target.path, "wb", block_size=_BLOCK, autocommit=False
            )

    def send(self, pieces: Iterator[bytes], expected: int) -> None:  # noqa: ARG002
        """Send bytes, block by block."""
        with reaching(self._target, _CANNOT):
            for piece in pieces:
                self._file.write(piece)
            self._file.close()

    def finish(self) -> None:
        """Commit the stream."""
        with reaching(self._target, _CANNOT):
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

    def __init__(self, target: Remote) -> None:
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
            with reaching(self._target, _CANNOT):
                self._put(self._staged)

    def finish(self) -> None:
        """Send the file, or give it its name."""
        with reaching(self._target, _CANNOT):
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
