"""Object stores: globs, credentials, clients that are missing, and servers that do not answer."""

from __future__ import annotations

import subprocess
import sys

import format_writers_text as text_writers
import fsspec
import pytest
from runs import long_rollout, rollout, run, save
from store_runs import error_of, local_run

from rlpost.errors import UsageError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.paths import parse_path

# A connection that was cut leaves its socket to the garbage collector, in the clients, too.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


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


def expand(*inputs):
    return [(str(file.path), str(file.relative)) for file in find_inputs(inputs)]


def test_dumps_of_a_store_are_recognised_and_fetched_with_their_folders(tmp_path, monkeypatch):
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(memory, "store", {})
    table = text_writers.trl(tmp_path / "t.parquet", text_writers.rollouts()).read_bytes()
    line = b'{"prompt_id": "a", "reward": 1.0}\n' * 2
    for name, data in (("d/s=1/a.jsonl", line), ("d/s=2/a.jsonl", line), ("t.parquet", table),
                       ("one/a.json", line[:34]), ("one/b.json", line[:34])):  # fmt: skip
        memory.pipe(f"/lab/{name}", data)
    for number, (name, files, said) in enumerate((
        ("d", ["s=1/a", "s=2/a"], "d/s=1/a.jsonl to memory://lab/d/s=2/a.jsonl: 2 dumps, "),
        ("d/*/*.jsonl", ["s=1/a", "s=2/a"], "s=2/a.jsonl: 2 dumps, read as jsonl"),
        ("d/s=1/a.jsonl", ["a"], "memory://lab/d/s=1/a.jsonl: read as jsonl, 2 responses"),
        ("t.parquet", ["t"], "memory://lab/t.parquet: read as trl"),
        ("one", ["one"], "memory://lab/one: read as jsonl, 2 responses"),
    )):  # fmt: skip
        ran = run("advantages", f"memory://lab/{name}", out := tmp_path / str(number),
                  "--estimator", "raw")  # fmt: skip
        assert (ran.code, said in ran.err) == (0, True), ran.err
        assert sorted(str(file.relative_to(out)) for file in out.rglob("*.parquet")) == [
            f"{file}.parquet" for file in files
        ]


@pytest.mark.nightly
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


@pytest.mark.nightly
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
    assert "s3://lab/d: contains no file of a known format" in error_of(4, "s3://lab/d", out)
    s3.put("text.parquet", b"text" * 99)
    assert error_of(3, "s3://lab/text.parquet", out).startswith("s3://lab/text.parquet: not a Parq")
    s3.put("empty.parquet", b"")
    assert "is empty (0 bytes)" in error_of(3, "s3://lab/empty.parquet", out)
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


@pytest.mark.nightly
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


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    missing = {"obstore", "huggingface_hub"}
    monkeypatch.setattr("rlpost.optional.find_spec", lambda name: None if name in missing else name)
    clouds = [f"{scheme}://b/a" for scheme in ("s3", "gs", "az", "abfss", "https")]
    for url in (*clouds, "hf://datasets/a/b"):
        message = error_of(5, url, tmp_path / "out.parquet")
        assert message.startswith(f"{url}: {url.partition('/')[0]}// needs ")
        assert message.endswith("not installed")
    with pytest.raises(UsageError, match=r"^tape://a: Protocol not known: tape"):
        parse_path("tape://a")


@pytest.mark.nightly
@pytest.mark.usefixtures("s3")
def test_an_unreachable_server_is_an_error(aws, tmp_path):
    aws.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    aws.setenv("AWS_MAX_ATTEMPTS", "1")
    message = error_of(4, "s3://lab/in.parquet", tmp_path / "out.parquet")
    assert message.startswith("s3://lab/in.parquet: cannot be accessed: the connection failed")


@pytest.mark.nightly
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
