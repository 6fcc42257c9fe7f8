"""Inputs and outputs at URLs: an S3 server on loopback, and other stores by fsspec."""

from __future__ import annotations

import json
from pathlib import Path

import format_writers_text as texts
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import loads, long_rollout, rollout, run, save
from store_runs import local_run

from rlpost.errors import ReadWriteError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.reader import ParquetReader
from rlpost.io.paths import RemotePath, parse_path

# A connection that was cut leaves its socket to the garbage collector, in the clients, too.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

# The same bytes at any place


OPTIONS = [[], ["--emit-only"], ["--estimator", "reinforce_pp", "--kl-coef", "0.1"]]


@pytest.mark.nightly
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rows", [400, 90])
@pytest.mark.usefixtures("small_steps")
def test_a_run_on_s3_writes_the_bytes_of_a_local_run(s3, tmp_path, options, rows):
    source = save(long_rollout(), tmp_path / "in.parquet", rows)
    expected = local_run(source, tmp_path, *options)
    url = s3.put("in/in.parquet", source.read_bytes())
    near, far = tmp_path / "near.parquet", "s3://lab/out/far.parquet"
    assert run("advantages", url, near, "-q", *options).code == 0
    assert run("advantages", url, far, "-q", *options).code == 0
    assert near.read_bytes() == expected
    assert s3.get("out/far.parquet") == expected
    assert run("advantages", source, far, "-q", "--overwrite", *options).code == 0
    assert s3.get("out/far.parquet") == expected
    assert s3.keys() == ["in/in.parquet", "out/far.parquet"]


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
@pytest.mark.usefixtures("small_steps")
def test_dropped_columns_leave_no_gaps_on_s3(s3, tmp_path):
    source = tmp_path / "in.parquet"
    pq.write_table(long_rollout(), source, row_group_size=90, write_page_index=True)
    url = s3.put("in.parquet", source.read_bytes())
    words = ["-q", "--replace"]
    first = tmp_path / "first.parquet"
    assert run("advantages", source, first, "-q").code == 0
    s3.put("first.parquet", first.read_bytes())
    expected = local_run(first, tmp_path, "--replace")
    assert run("advantages", "s3://lab/first.parquet", "s3://lab/again.parquet", *words).code == 0
    assert s3.get("again.parquet") == expected
    assert run("advantages", url, "s3://lab/whole.parquet", "-q").code == 0
    assert s3.get("whole.parquet") == first.read_bytes()
    footer = pq.read_metadata(pa.BufferReader(expected))
    groups = map(footer.row_group, range(footer.num_row_groups))
    chunks = [group.column(place) for group in groups for place in range(footer.num_columns)]
    assert {chunk.has_offset_index for chunk in chunks} == {False}
    assert url in [str(file.path) for file in find_inputs(["s3://lab"])]


def test_a_file_url_is_a_local_path(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    assert run("advantages", f"file://{source}", f"file://{tmp_path}/out.parquet", "-q").code == 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 12
    assert parse_path("a:b/c.parquet") == Path("a:b/c.parquet")


@pytest.mark.nightly
def test_the_output_of_several_files_mirrors_their_directory(s3, tmp_path):
    tables = {step: rollout(step + 2, 2) for step in (2, 10, 3)}
    for step, table in tables.items():
        path = save(table, tmp_path / "in" / f"step={step}" / "part.parquet")
        s3.put(f"in/step={step}/part.parquet", path.read_bytes())
    s3.put("in/_tmp/part.parquet", b"hidden")
    s3.put("in/notes.txt", b"no Parquet")
    out = tmp_path / "near"
    assert run("advantages", tmp_path / "in", out, "-q").code == 0
    names = [f"step={step}/part.parquet" for step in (10, 2, 3)]
    for given in ("s3://lab/in", "s3://lab/in/"):
        words = [given, "s3://lab/out", "-q", "--overwrite", "--summary-json", "-"]
        ran = run("advantages", *words)
        assert ran.code == 0
        assert loads(ran.out)["inputs"] == [f"s3://lab/in/{name}" for name in names]
        assert loads(ran.out)["outputs"] == [f"s3://lab/out/{name}" for name in names]
        assert loads(ran.out)["facts"]["kept"]["step"]["label"] == [2, 3, 10]
    for name in names:
        assert s3.get(f"out/{name}") == (out / name).read_bytes()


@pytest.mark.nightly
def test_an_output_is_replaced_only_with_overwrite(s3, tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    url = s3.put("out.parquet", b"kept")
    ran = run("advantages", source, url, "-q")
    assert (ran.code, ran.err) == (
        2, "error: s3://lab/out.parquet: exists already\n  tip: --overwrite  # replaces it\n",
    )  # fmt: skip
    ran = run("advantages", url, url, "-q", "--overwrite")
    assert ran.code == 3  # it is no Parquet file
    s3.put("out.parquet", source.read_bytes())
    assert "same file" in run("advantages", url, url, "-q", "--overwrite").err


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
    ran = run("convert", url, "s3://lab/far.parquet", "--from", "jsonl")
    assert ran.code == 0
    assert s3.get("far.parquet") == near.read_bytes()
    assert run("convert", "s3://lab/d", "s3://lab/e/", "--from", "jsonl", "-q").code == 0
    assert s3.get("e/a.parquet") == near.read_bytes()
    s3.put("g/run1/a.jsonl", text)
    s3.put("g/run2/a.jsonl", text)
    assert run("convert", "s3://lab/g/run*/a.jsonl", tmp_path / "g", "--from", "jsonl").code == 0
    assert [(tmp_path / "g" / f"run{n}" / "a.parquet").is_file() for n in (1, 2)] == [True, True]
    for n in (1, 2):
        s3.client.delete_object(Bucket="lab", Key=f"g/run{n}/a.jsonl")
    s3.put("d/a.jsonl", b'{"reward": "much"}\n')
    ran = run("convert", url, "s3://lab/bad.parquet", "--from", "jsonl")
    assert ran.code == 3
    assert ran.err.startswith("error: s3://lab/d/a.jsonl")
    assert s3.keys() == ["d/a.jsonl", "e/a.parquet", "far.parquet"]


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
