"""Inputs and outputs at URLs: an S3 server on loopback, and other stores by fsspec."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import format_writers as writers
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import long_rollout, rollout, run, save

import rlpost
from rlpost import Options, Recipe
from rlpost.errors import ReadWriteError, UnavailableError, UsageError
from rlpost.io import paths, transfers, uploads
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.reader import ParquetReader
from rlpost.io.parquet.sink import open_sink
from rlpost.io.paths import RemotePath, parse_path

# A connection that was cut leaves its socket to the garbage collector, in the clients, too.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def local_run(source, tmp_path, *options):
    """Return the bytes that a run from disk to disk writes."""
    out = tmp_path / "expected" / "out.parquet"
    assert run("advantages", source, out, "-q", "--overwrite", *options).code == 0
    return out.read_bytes()


# The same bytes at any place


OPTIONS = [[], ["--emit-only"], ["--estimator", "reinforce_pp", "--kl-coef", "0.1"]]


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


@pytest.mark.usefixtures("small_steps")
def test_a_join_on_s3_writes_the_bytes_of_a_local_run(s3, tmp_path):
    source = save(long_rollout(60), tmp_path / "in.parquet", 17)
    url = s3.put("in.parquet", source.read_bytes())
    side, far = "s3://lab/side.parquet", "s3://lab/out.parquet"
    assert run("advantages", url, side, "-q", "--emit-only").code == 0
    assert run("join", url, side, far, "-q").code == 0
    assert s3.get("out.parquet") == local_run(source, tmp_path)
    near = tmp_path / "near.parquet"
    assert run("join", source, side, near, "-q").code == 0
    assert near.read_bytes() == s3.get("out.parquet")


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


@pytest.mark.usefixtures("small_steps")
def test_a_rewrite_on_s3_equals_one_on_disk(s3, tmp_path):
    source = save(long_rollout(60), tmp_path / "in.parquet", 17)
    url = s3.put("in.parquet", source.read_bytes())
    new = pa.record_batch({"score": pa.array(range(60), pa.int64())})
    written = []
    for one, target in (
        (source, tmp_path / "o.parquet"),
        (RemotePath(url), RemotePath("s3://lab/o")),
    ):
        sink = open_sink(one, target, new.schema, force_rewrite=True)
        for group, first in enumerate(range(0, 60, 17)):
            sink.write(group, new.slice(first, 17))
        sink.close({"by": "test"})
        written.append(s3.get("o") if isinstance(target, RemotePath) else target.read_bytes())
    assert written[0] == written[1]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("indexed", [False, True])
def test_dropped_columns_leave_no_gaps_on_s3(s3, tmp_path, indexed):
    source = tmp_path / "in.parquet"
    pq.write_table(long_rollout(), source, row_group_size=90, write_page_index=indexed)
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
    assert {chunk.has_offset_index for chunk in chunks} == {indexed}
    assert url in [str(file.path) for file in find_inputs(["s3://lab"])]


@pytest.mark.usefixtures("small_steps")
def test_memory_is_read_and_written(tmp_path, monkeypatch):
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(memory, "store", {})
    source = save(long_rollout(), tmp_path / "in.parquet", 90)
    memory.pipe_file("/d/in.parquet", source.read_bytes())
    assert run("advantages", "memory://d/in.parquet", "memory://e/out.parquet", "-q").code == 0
    assert memory.cat_file("/e/out.parquet") == local_run(source, tmp_path)
    assert run("advantages", "memory://d", "memory://f", "-q").code == 0
    assert sorted(memory.store) == ["/d/in.parquet", "/e/out.parquet", "/f/in.parquet"]


def test_a_file_url_is_a_local_path(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    assert run("advantages", f"file://{source}", f"file://{tmp_path}/out.parquet", "-q").code == 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 12
    assert parse_path("a:b/c.parquet") == Path("a:b/c.parquet")


def test_stores_that_show_incomplete_files_get_a_temporary_name(monkeypatch):
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(memory, "store", {})
    monkeypatch.setattr(transfers, "_RENAME", ("memory",))
    begun = uploads.stage_file(RemotePath("memory://d/out"))
    begun.path.write_bytes(b"all of it")
    begun.complete()
    (name,) = memory.store
    assert name.startswith("/d/.out.rlpost-")
    begun.publish()
    assert {name: file.getvalue() for name, file in memory.store.items()} == {
        "/d/out": b"all of it"
    }
    again = uploads.stage_file(RemotePath("memory://d/two"))
    again.complete()
    again.discard()
    assert [*memory.store] == ["/d/out"]


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
        assert json.loads(ran.out)["inputs"] == [f"s3://lab/in/{name}" for name in names]
        assert json.loads(ran.out)["outputs"] == [f"s3://lab/out/{name}" for name in names]
        assert [row["step"] for row in json.loads(ran.out)["steps"]] == [2, 3, 10]
    for name in names:
        assert s3.get(f"out/{name}") == (out / name).read_bytes()


# Files, directories and globs


def expand(*inputs):
    return [(str(file.path), str(file.relative)) for file in find_inputs(inputs)]


def test_globs_directories_and_files_on_s3(s3):
    keys = ["a.parquet", "d/b.parquet", "d/c.txt", "d/e/step=3/f.parquet", "d/.x/g.parquet"]
    for key in keys:
        s3.put(key, b"x")
    assert expand("s3://lab/d/c.txt") == [("s3://lab/d/c.txt", "c.txt")]
    below = [
        ("s3://lab/d/b.parquet", "b.parquet"),
        ("s3://lab/d/e/step=3/f.parquet", "e/step=3/f.parquet"),
    ]
    assert expand("s3://lab/d") == expand("s3://lab/d/", "s3://lab/d") == below
    assert expand("s3://lab/*.parquet") == [("s3://lab/a.parquet", "a.parquet")]
    assert expand("s3://lab/d/[a-c].*") == [
        ("s3://lab/d/b.parquet", "b.parquet"),
        ("s3://lab/d/c.txt", "c.txt"),
    ]
    deep = "s3://lab/d/e/step=3/f.parquet"
    assert expand("s3://lab/**/f.parquet") == [(deep, "d/e/step=3/f.parquet")]
    assert expand("s3://lab/d/e/step=*/*.parquet") == [(deep, "step=3/f.parquet")]
    assert len(expand("s3://lab")) == 3
    (file,) = find_inputs(["s3://lab/d/e/step=3/f.parquet"])
    assert file.partitions == (("step", "3"),)


def test_local_and_remote_inputs_mix(s3, tmp_path):
    table = rollout(12)
    save(table.slice(0, 6), tmp_path / "a.parquet")
    far = save(table.slice(6), tmp_path / "b" / "b.parquet")
    url = s3.put("b.parquet", far.read_bytes())
    ran = run("advantages", tmp_path / "a.parquet", url, "s3://lab/out", "-q")
    assert ran.code == 0
    whole, _ = rlpost.enrich(table)
    for name, rows in (("a", whole.slice(0, 6)), ("b", whole.slice(6))):
        assert pq.read_table(pa.BufferReader(s3.get(f"out/{name}.parquet"))).equals(rows)


def test_a_url_that_ends_in_a_slash_is_a_directory(s3, tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    assert run("advantages", source, "s3://lab/new/", "-q").code == 0
    assert s3.keys() == ["new/in.parquet"]


def test_an_output_is_replaced_only_with_overwrite(s3, tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    url = s3.put("out.parquet", b"kept")
    ran = run("advantages", source, url, "-q")
    assert (ran.code, ran.err) == (
        2, "rlpost: s3://lab/out.parquet: exists already; --overwrite replaces it\n",
    )  # fmt: skip
    ran = run("advantages", url, url, "-q", "--overwrite")
    assert ran.code == 3  # it is no Parquet file
    s3.put("out.parquet", source.read_bytes())
    assert "same file" in run("advantages", url, url, "-q", "--overwrite").err


def test_other_commands_read_urls(s3, tmp_path):
    table = rollout().append_column("log_probs", rollout()["old_log_probs"])
    source = save(table, tmp_path / "in.parquet")
    url = s3.put("in.parquet", source.read_bytes())
    for words in (["inspect"], ["loss"]):
        near, far = (json.loads(run(*words, at, "--format", "json").out) for at in (source, url))
        for one in (near, far):
            one.pop("seconds", None)
        assert json.dumps(near).replace(str(source), url) == json.dumps(far), words
    assert run("loss", url, "s3://lab/loss.parquet", "-q").code == 0
    assert run("advantages", url, "--plan").code == 0
    assert run("compare", "s3://lab/loss.parquet", "s3://lab/loss.parquet").code == 0


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
    assert ran.err.startswith("rlpost: s3://lab/d/a.jsonl")
    assert s3.keys() == ["d/a.jsonl", "e/a.parquet", "far.parquet"]


# Errors


def error_of(code, *words):
    """Return the error of a run that fails: one line."""
    ran = run("advantages", *words, "-q")
    assert ran.code == code, ran.err
    assert ran.err.count("\n") == 1
    return ran.err.removeprefix("rlpost: ").strip()


def test_missing_objects_and_buckets_are_errors(s3, tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    message = "s3://lab/no.parquet: no such object, and no objects below it"
    assert error_of(4, "s3://lab/no.parquet", out) == message
    assert error_of(4, "s3://nowhere/a", out) == "s3://nowhere/a: the bucket nowhere does not exist"
    assert error_of(4, "s3://lab/*.parquet", out).endswith("the pattern matches no file")
    message = "s3://nowhere/out.parquet: cannot be written: the bucket does not exist"
    assert error_of(4, source, "s3://nowhere/out.parquet") == message
    s3.put("d/notes.txt", b"")
    assert "s3://lab/d: the directory contains no .parquet files" in error_of(4, "s3://lab/d", out)
    s3.put("text.parquet", b"text" * 99)
    assert error_of(3, "s3://lab/text.parquet", out).startswith("s3://lab/text.parquet: not a Parq")
    s3.put("empty.parquet", b"")
    assert "is empty (0 bytes)" in error_of(3, "s3://lab/empty.parquet", out)
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_bad_data_names_the_url_and_leaves_nothing(s3, tmp_path):
    table = rollout().set_column(1, "reward", [[float("nan")] * 12])
    url = s3.put("in.parquet", save(table, tmp_path / "in.parquet").read_bytes())
    assert error_of(3, url, "s3://lab/out.parquet").startswith(f"{url}, row 0: `reward` is nan")
    assert s3.keys() == ["in.parquet"]


def test_wrong_credentials_are_an_error(s3, tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    url = s3.put("in.parquet", source.read_bytes())
    s3.check_credentials()
    for words in ((url, tmp_path / "out.parquet"), (source, "s3://lab/out.parquet")):
        message = error_of(4, *words)
        assert message.startswith(f"{next(str(w) for w in words if 's3:' in str(w))}: cannot be ")
        assert "access denied" in message
        assert "AWS_PROFILE" in message
    s3.check_credentials(after="1000000000")
    assert s3.keys() == ["in.parquet"]


@pytest.mark.usefixtures("s3")
def test_missing_credentials_are_an_error(aws, tmp_path):
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    message = error_of(4, "s3://lab/in.parquet", tmp_path / "out.parquet")
    assert "access denied: Unable to locate credentials; check the credentials" in message


def test_a_profile_sets_endpoint_and_credentials(s3, aws, tmp_path):
    aws.delenv("AWS_ENDPOINT_URL")
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    keys = "aws_access_key_id = key\naws_secret_access_key = secret\n"
    text = f"[profile cluster]\nendpoint_url = {s3.url}\nregion = eu-west-1\n{keys}"
    (tmp_path / "aws-config").write_text(text)
    aws.setenv("AWS_PROFILE", "cluster")
    url = s3.put("in.parquet", save(rollout(), tmp_path / "in.parquet").read_bytes())
    assert run("advantages", url, "s3://lab/out.parquet", "-q").code == 0
    assert s3.keys() == ["in.parquet", "out.parquet"]


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    missing = {"obstore", "huggingface_hub"}
    monkeypatch.setattr("rlpost.optional.find_spec", lambda name: None if name in missing else name)
    clouds = [(f"{scheme}://b/a", "cloud") for scheme in ("s3", "gs", "az", "abfss", "https")]
    for url, extra in (*clouds, ("hf://datasets/a/b", "hf")):
        message = error_of(5, url, tmp_path / "out.parquet")
        assert message.startswith(f"{url}: {url.partition('/')[0]}// needs ")
        assert message.endswith(f"pip install 'rlpost[{extra}]'")
    with pytest.raises(UsageError, match=r"^tape://a: Protocol not known: tape"):
        parse_path("tape://a")


def test_other_missing_clients_are_named_by_fsspec(monkeypatch):
    def missing(_):
        raise ImportError("Install ossfs to access Alibaba")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(UnavailableError, match=r"^oss://a/b: Install ossfs to access Alibaba"):
        parse_path("oss://a/b")


# Broken connections


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


@pytest.mark.usefixtures("s3")
def test_an_unreachable_server_is_an_error(aws, tmp_path):
    aws.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    aws.setenv("AWS_MAX_ATTEMPTS", "1")
    message = error_of(4, "s3://lab/in.parquet", tmp_path / "out.parquet")
    assert message.startswith("s3://lab/in.parquet: cannot be accessed: the connection failed")


@pytest.mark.parametrize("where", ["s3://lab/d", "memory://grail"])
def test_a_framework_dump_in_parquet_is_converted(s3, tmp_path, where):  # noqa: ARG001
    whole = [one for one in writers.made() if 0 not in one.mask]
    dump = writers.grail(tmp_path / "grail", whole)
    far = parse_path(f"{where}/{dump.name}")
    far.store.put(far.path, dump)
    near = tmp_path / "near.parquet"
    assert run("advantages", dump, near, "-q").code == 0
    for number, path in enumerate((f"{where}/{dump.name}", f"{where}/*.parquet", where)):
        far = tmp_path / f"far{number}.parquet"
        ran = run("advantages", path, far)
        assert ran.code == 0, ran.err
        assert f"{where}/{dump.name}: read as grail" in ran.err
        assert pq.read_table(far).equals(pq.read_table(near))
    assert run("inspect", f"{where}/{dump.name}", "-q").code == 0


def test_a_store_that_does_not_answer_causes_one_warning(aws, caplog):
    caplog.set_level("WARNING", "rlpost")
    aws.setattr("rlpost.io.paths.SLOW_LOOKUP", 0.05)
    aws.setattr(paths._LastWarning, "time", float("-inf"))
    silent = socket.create_server(("127.0.0.1", 0))  # accepts connections, never responds
    aws.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
    aws.setenv("AWS_ACCESS_KEY_ID", "key")
    aws.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    aws.setenv("AWS_MAX_ATTEMPTS", "2")
    aws.setattr("rlpost.io.cloud.READ_SECONDS", 0.5)
    with silent:
        ran = run("inspect", "s3://lab/in.parquet")
    assert ran.code == 4
    assert ran.err.startswith("rlpost: s3://lab/in.parquet: cannot be accessed: the connection")
    (line,) = [one.getMessage() for one in caplog.records if one.name == "rlpost"]
    assert line.startswith("rlpost: s3://lab/in.parquet: no answer for 0.05 s; still trying")


@pytest.mark.usefixtures("s3", "small_steps")
def test_a_failed_upload_raises_before_everything_is_written(cut, monkeypatch):
    monkeypatch.setattr(transfers, "PART_BYTES", 5000)
    cut(lambda head: (200, 1 << 60) if "partNumber" in head else None)
    begun = uploads.stage_file(RemotePath("s3://lab/out"))

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


def test_an_interrupted_run_leaves_nothing(s3, tmp_path, monkeypatch):
    url = s3.put("in.parquet", save(rollout(), tmp_path / "in.parquet").read_bytes())

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlpost.io.parquet.splice.SpliceSink.complete", interrupted)
    assert run("advantages", url, "s3://lab/out.parquet", "-q").code == 130
    assert s3.keys() == ["in.parquet"]


# Ranged reads


def test_an_error_within_arrow_keeps_its_text(s3, tmp_path):
    url = s3.put("in.parquet", save(long_rollout(), tmp_path / "in.parquet", 90).read_bytes())
    with ParquetReader(RemotePath(url)) as reader:
        s3.client.delete_object(Bucket="lab", Key="in.parquet")
        with pytest.raises(
            ReadWriteError, match=r"in\.parquet: cannot be read: the object does not exist"
        ):
            list(reader.batches(10, 0, ["reward", "old_log_probs"]))


def test_the_python_interface_takes_urls(s3, tmp_path):
    url = s3.put("in.parquet", save(rollout(), tmp_path / "in.parquet").read_bytes())
    summary = rlpost.advantages(url, "s3://lab/out.parquet", Recipe(), Options())
    assert summary["outputs"] == ["s3://lab/out.parquet"]
    rlpost.advantages(url, "s3://lab/out.parquet", Recipe(), Options(overwrite=True))
    assert "rlpost.recipe" in str(pq.read_schema(pa.BufferReader(s3.get("out.parquet"))).metadata)


def test_local_runs_import_no_client(tmp_path):
    """fsspec comes with torch; the clients of stores are imported when a URL needs them."""
    save(rollout(), tmp_path / "in.parquet")
    code = (
        "import sys, rlpost; rlpost.advantages('in.parquet', 'out.parquet');"
        "print([name for name in ('obstore', 'botocore', 'aiohttp') if name in sys.modules])"
    )
    words = [sys.executable, "-c", code]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
