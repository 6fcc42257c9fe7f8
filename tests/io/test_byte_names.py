"""File names that are not UTF-8: read, written, and printed with `\\xff` for each such byte."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pyarrow.parquet as pq
import pytest
from runs import rollout, run, save

from rlpost.io.ranges import arrow_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux")
LINES = [json.dumps({"input": "a", "output": "b", "score": i % 2, "step": 1}) for i in range(4)]


def named(folder, name):
    return folder / os.fsdecode(name)


@pytest.fixture
def folder(tmp_path):
    """Rollouts and dumps, of which some have such names, in a folder with such a name."""
    top = named(tmp_path, b"all\xe9")
    for name in ("in", "dumps"):
        (top / name).mkdir(parents=True)
    shutil.copy(save(rollout(), tmp_path / "a.parquet"), top / "in" / "a.parquet")
    partition = named(top, b"parts") / os.fsdecode(b"step=\xff")
    partition.mkdir(parents=True)
    for target in (named(top / "in", b"b\xff\xfe.parquet"), partition / "x.parquet"):
        shutil.copy(top / "in" / "a.parquet", target)
    for target in (named(top / "dumps", b"e\xff.jsonl"), top / "dumps" / "f.jsonl"):
        target.write_text("\n".join(LINES))
    return top


def commands(top):
    rows, dumps, out = top / "in", top / "dumps", top / "out"
    one = named(rows, b"b\xff\xfe.parquet")
    loss, as_json = ("--map", "log_probs=ref_log_probs"), ("--format", "json")
    return [
        ("inspect", rows), ("inspect", one, *as_json),
        ("inspect", one, "--row", "1"), ("inspect", top / "parts", "--format", "markdown"),
        ("advantages", rows, "--plan"), ("advantages", rows, out, "--summary-json", "-"),
        ("advantages", rows, out, "--overwrite", "--summary-json", named(top, b"\xff")),
        ("advantages", top / "parts", top / "p"),
        ("advantages", one, named(top, b"one\xff.parquet")),
        ("advantages", dumps, top / "d.parquet"),
        ("advantages", rows, top / "s", "--skip-existing", "--estimator", "raw"),
        ("verify", out, *as_json), ("verify", top / "p"), ("compare", out, out, *as_json),
        ("replay", out), ("report", out, named(top, b"r\xff.html")),
        ("loss", rows, top / "loss", *loss), ("loss", one, *loss, *as_json),
        ("convert", dumps, top / "converted"), ("inspect", named(dumps, b"e\xff.jsonl")),
        ("export", one, named(top, b"e\xff.jsonl"), "--to", "jsonl", *as_json),
    ]  # fmt: skip


def test_every_command_reads_and_writes_such_names(folder):
    for words in commands(folder):
        ran = run(*words)
        assert ran.code == 0, (words, ran.err)
        (ran.out + ran.err).encode()  # no lone surrogates
    written = named(folder / "out", b"b\xff\xfe.parquet")
    metadata = pq.read_metadata(arrow_file(written)).metadata
    assert metadata[b"rlpost.input"] == rb"b\xff\xfe.parquet"
    for name in ("out", "s", "loss"):
        assert named(folder / name, b"b\xff\xfe.parquet").is_file()
    rows = folder / "rows.jsonl"
    assert run("export", folder / "parts", rows, "--to", "jsonl", "-q").code == 0
    assert json.loads(rows.read_text().splitlines()[0])["step"] == r"\xff"


def test_such_names_are_printed_with_their_bytes(folder):
    one = named(folder / "in", b"b\xff\xfe.parquet")
    for words in (("inspect", one), ("advantages", one, named(folder, b"b\xff\xfe.parquet"))):
        ran = run(*words)
        assert r"b\xff\xfe.parquet" in ran.out + ran.err
    page = named(folder, b"r.html")
    run("report", one, page)
    assert rb"b\xff\xfe" in page.read_bytes() or b"b\xef\xbf\xbd" in page.read_bytes()
    names = json.loads(run("inspect", one, "--format", "json").out)["inputs"]
    assert os.fsencode(names[0]) == os.fsencode(one)


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "gone\udcff.parquet"), ("\udcff",), ("inspect", "--\udcff"), ("help", "\udcff"),
        ("list", "estimators", "\udcff"), ("config", "show", "--preset", "\udcff"),
        ("advantages", "a", "b", "--config", "\udcff"),
    ],
    ids=ascii,
)  # fmt: skip
def test_arguments_that_are_not_utf_8_are_named_in_errors(words):
    ran = run(*words)
    assert ran.code in (2, 4)
    assert "\\xff" in ran.err or "\\udcff" in ran.err
