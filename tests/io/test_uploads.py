"""Uploads: requests that fail once are sent again; what fails or is stopped leaves nothing."""

from __future__ import annotations

import tempfile
import time

import pytest
from runs import long_rollout, run, save
from store_runs import error_of, local_run

from rlpost.errors import ReadWriteError
from rlpost.io import locks, transfers
from rlpost.io.outputs import OutputFile
from rlpost.io.paths import RemotePath

# A connection that was cut leaves its socket to the garbage collector, in the clients, too.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


def first_times(what, up, down):
    """Cut the first attempt of each request that contains `what`."""
    seen = set()

    def rule(head):
        lines = head.splitlines()
        request = (lines[0], *(line for line in lines if line.lower().startswith("range:")))
        if what not in head or request in seen:
            return None
        seen.add(request)
        return up, down

    return rule


@pytest.mark.parametrize(
    ("what", "up", "down"),
    [
        ("GET /lab/in.parquet", 1 << 60, 1500),  # in the middle of a response
        ("HEAD ", 10, 1 << 60),  # in the middle of a request
        ("partNumber", 9000, 1 << 60),  # in the middle of a part
        ("partNumber", 1 << 60, 20),  # after the part, before its response
        ("POST /lab/out.parquet?uploadId", 1 << 60, 20),  # after the upload, before its response
    ],
)
@pytest.mark.usefixtures("small_steps")
def test_requests_that_fail_once_are_retried(s3, cut, tmp_path, what, up, down):
    source = save(long_rollout(), tmp_path / "in.parquet", 90)
    expected = local_run(source, tmp_path)
    url = s3.put("in.parquet", source.read_bytes())
    proxy = cut(first_times(what, up, down))
    ran = run("advantages", url, "s3://lab/out.parquet", "-q")
    assert ran.code == 0, ran.err
    assert proxy.cuts > 0
    assert s3.get("out.parquet") == expected


@pytest.mark.parametrize(
    ("what", "up", "down"),
    [
        ("GET /lab/in.parquet", 1 << 60, 1500),
        ("partNumber", 9000, 1 << 60),
        ("POST /lab/out.parquet?uploadId", 20, 1 << 60),
    ],
)
@pytest.mark.usefixtures("small_steps")
def test_requests_that_always_fail_are_an_error_and_leave_nothing(
    s3, cut, tmp_path, what, up, down
):
    source = save(long_rollout(), tmp_path / "in.parquet", 90)
    url = s3.put("in.parquet", source.read_bytes())
    proxy = cut(lambda head: (up, down) if what in head else None)
    message = error_of(4, url, "s3://lab/out.parquet")
    assert message.startswith("s3://lab/")
    assert proxy.cuts > 0
    assert s3.keys() == ["in.parquet"]


@pytest.mark.usefixtures("s3", "small_steps")
def test_a_failed_upload_raises_before_everything_is_written(cut, monkeypatch):
    monkeypatch.setattr(transfers, "PART_BYTES", 5000)
    cut(lambda head: (200, 1 << 60) if "partNumber" in head else None)
    begun = OutputFile(RemotePath("s3://lab/out"))

    def write_on():
        at = 4
        while at < 10_000_000:
            at = begun.write(at, bytes(5000))
            time.sleep(0.01)

    with pytest.raises(ReadWriteError, match=r"^s3://lab/out: cannot be written: the connection"):
        write_on()
    begun.discard()
    begun.discard()
    assert not begun.path.exists()


def test_what_a_killed_upload_left_goes_with_the_next_one(s3, tmp_path, monkeypatch):
    """Parts in the store, which no listing has, and the temporary file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(transfers, "SMALL_BYTES", 100)
    locks.remove_uploads.cache_clear()
    for key in ("out", "out2"):
        s3.client.create_multipart_upload(Bucket="lab", Key=key)
    (tmp_path / locks.temporary_name(locks.UPLOAD, "0" * 8)).touch()
    (tmp_path / locks.temporary_name("other", "0" * 8)).touch()
    with OutputFile(RemotePath("s3://lab/out")) as file:
        other = tmp_path / locks.temporary_name("other", "0" * 8)
        assert {*tmp_path.iterdir()} == {other, file.path}
        file.write(0, bytes(1000))
        file.complete()
        assert len([*tmp_path.iterdir()]) == 1
        assert sorted(upload["Key"] for upload in s3.uploads()) == ["out", "out2"]
        file.publish()
    assert len(s3.get("out")) == 1000
    (upload,) = s3.uploads()
    s3.client.abort_multipart_upload(Bucket="lab", Key="out2", UploadId=upload["UploadId"])
