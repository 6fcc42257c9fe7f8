"""Inputs and outputs at URLs: an S3 server on loopback, and other stores by fsspec."""

from __future__ import annotations

import json

import format_writers_text as texts
import pyarrow.parquet as pq
import pytest
from runs import long_rollout, rollout, run, save

from rlpost.errors import ReadWriteError
from rlpost.io.parquet.reader import ParquetReader
from rlpost.io.paths import RemotePath, parse_path

# A connection that was cut leaves its socket to the garbage collector, in the clients, too.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

# The same bytes at any place


@pytest.mark.usefixtures("s3")
def test_a_file_goes_from_disk_to_s3_and_back(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    assert run("advantages", source, "s3://lab/a.parquet", "-q").code == 0
    words = ["--estimator", "gpg", "--replace", "-q"]
    assert run("advantages", "s3://lab/a.parquet", tmp_path / "b.parquet", *words).code == 0
    one = tmp_path / "one.parquet"
    assert run("advantages", source, one, "-q").code == 0
    assert run("advantages", one, tmp_path / "two.parquet", *words).code == 0
    table, expected = (pq.read_table(tmp_path / name) for name in ("b.parquet", "two.parquet"))
    assert table.equals(expected)


@pytest.mark.nightly
def test_dumps_at_urls_are_converted_to_urls(s3, tmp_path):
    rows = [
        {"prompt_id": f"p{i // 2}", "reward": i % 3, "response_mask": [1] * 3} for i in range(8)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.jsonl").write_bytes(text)
    url = s3.put("d/a.jsonl", text)
    near = tmp_path / "near.parquet"
    assert run("convert", tmp_path / "d" / "a.jsonl", near, "--from", "jsonl", "-q").code == 0
    s3.put("g/run1/a.jsonl", text)
    for given, out, key in (
        (url, "far.parquet", "far.parquet"),
        ("s3://lab/d", "e/", "e/a.parquet"),
        ("s3://lab/g/run*/a.jsonl", "h/", "h/run1/a.parquet"),
    ):
        assert run("convert", given, f"s3://lab/{out}", "--from", "jsonl", "-q").code == 0
        assert s3.get(key) == near.read_bytes()
    s3.put("d/a.jsonl", b'{"reward": "much"}\n')
    ran = run("convert", url, "s3://lab/bad.parquet", "--from", "jsonl")
    assert ran.code == 3
    assert ran.err.startswith("error: s3://lab/d/a.jsonl")
    assert max(s3.keys()) == "h/run1/a.parquet"


@pytest.mark.nightly
@pytest.mark.parametrize("where", ["s3://lab/d", "memory://trl"])
def test_a_framework_dump_in_parquet_is_converted(s3, tmp_path, where):  # noqa: ARG001
    dump = texts.trl(tmp_path / "completions_00001.parquet", texts.rollouts(seed=3))
    far = parse_path(f"{where}/{dump.name}")
    far.store.put(far.path, dump)
    near = tmp_path / "near.parquet"
    assert run("advantages", dump, near, "-q").code == 0
    for number, path in enumerate((f"{where}/{dump.name}", f"{where}/*.parquet", where)):
        far = tmp_path / f"far{number}.parquet"
        ran = run("advantages", path, far)
        assert ran.code == 0, ran.err
        assert f"{where}/{dump.name}: read as trl" in ran.err
        assert pq.read_table(far).equals(pq.read_table(near))
    assert run("inspect", f"{where}/{dump.name}", "-q").code == 0


# Ranged reads


@pytest.mark.nightly
def test_an_error_within_arrow_keeps_its_text(s3, tmp_path):
    url = s3.put("in.parquet", save(long_rollout(), tmp_path / "in.parquet", 90).read_bytes())
    with ParquetReader(RemotePath(url)) as reader:
        s3.client.delete_object(Bucket="lab", Key="in.parquet")
        with pytest.raises(
            ReadWriteError, match=r"in\.parquet: cannot be read: the object does not exist"
        ):
            list(reader.batches(10, 0, ["reward", "old_log_probs"]))
