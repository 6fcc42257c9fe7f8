"""Input files: paths, directories, globs and partitions, and where their outputs go."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import loads, rollout, run, save

from rlpost import enrich
from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source


@pytest.fixture
def dumps(tmp_path, monkeypatch):
    """Create empty files below the current directory."""
    monkeypatch.chdir(tmp_path)

    def make(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    return make


def expand(*inputs):
    return [str(file.path) for file in find_inputs(inputs)]


def relative(*inputs):
    return [str(file.relative) for file in find_inputs(inputs)]


EXPANDED = {
    "a file of any name": ("dump.pq", ["dump.pq"], "dump.pq"),
    "a hidden file that is named": ("a/_hidden.parquet", ["a/_hidden.parquet"], "_hidden.parquet"),
    "files in their order": ("b.parquet a.parquet", ["b.parquet", "a.parquet"], None),
    "a folder": (
        "d/b.parquet d/a.parquet d/deep/er/c.parquet d/notes.txt e.parquet", ["d"],
        "a.parquet b.parquet deep/er/c.parquet",
    ),
    "no hidden files": (
        "d/a.parquet d/.a.parquet d/_a.parquet d/.git/a.parquet d/_tmp/b.parquet d/x.parquet/y.txt",
        ["d/"], "a.parquet",
    ),
    "a hidden folder that is named": (".cache/_d/a.parquet", [".cache/_d"], "a.parquet"),
    "a glob": ("b.parquet a.parquet c.txt d/e.parquet", ["?.parquet"], "a.parquet b.parquet"),
    "a glob of everything": ("b.parquet c.txt d/e.parquet", ["*"], "b.parquet c.txt"),
    "a glob of letters": ("b.parquet a.parquet c.parquet", ["[ab].*"], "a.parquet b.parquet"),
    "a glob of folders": (
        "h/step=1/a.parquet h/step=2/a.parquet h/step=2/d/b.parquet", ["./h/**/*.parquet"],
        "step=1/a.parquet step=2/a.parquet step=2/d/b.parquet",
    ),
    "a glob with folders above": (
        "h/step=2/a.parquet h/step=2/d/b.parquet", ["*/step=2/*/b.parquet"],
        "h/step=2/d/b.parquet",
    ),
    "a name that looks like a glob": (
        "a[1].parquet a1.parquet", ["a[1].parquet"], "a[1].parquet",
    ),
    "a file named twice": (
        "d/a.parquet d/b.parquet", ["d/a.parquet", "d", "d/*.parquet", "./d/a.parquet"], None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EXPANDED)
def test_inputs_are_files_folders_and_globs(dumps, case):
    files, inputs, names = EXPANDED[case]
    dumps(*files.split())
    assert relative(*inputs) == (names.split() if names else [Path(x).name for x in files.split()])


def test_links_are_read_once(dumps):
    dumps("d/a.parquet", "real.parquet")
    Path("link.parquet").symlink_to("d/a.parquet")
    Path("d/link.parquet").symlink_to(Path("real.parquet").absolute())
    assert expand("d", "link.parquet") == ["d/a.parquet", "d/link.parquet"]


@pytest.mark.parametrize(
    ("files", "inputs", "error", "text"),
    [
        (
            "a.parquet",
            ["a.parquet", "b.parquet"],
            ReadWriteError,
            "^b.parquet: no such file or dir",
        ),
        ("a.txt d.parquet/e.txt", ["*.parquet"], ReadWriteError, "the pattern matches no file$"),
        ("d/a.txt d/_b.parquet", ["d"], ReadWriteError, "^d: the directory contains no .parquet"),
        ("d/a.parquet e/a.parquet", ["d/a.parquet", "e"], UsageError, "2 input files are named a"),
    ],
)
def test_inputs_without_files_are_errors(dumps, files, inputs, error, text):
    dumps(*files.split())
    with pytest.raises(error, match=text):
        find_inputs(inputs)


def test_hive_partitions_come_from_the_path(dumps):
    dumps(
        "run=r1/step=3/a.parquet", "run=r1/step=-4/b.parquet", "plain/c.parquet", "=x/y=/d.parquet",
        "s=%ff/e.parquet", "s=%fe/f.parquet", "s=%c3%bc/g.parquet",
    )  # fmt: skip
    partitions = {str(file.path): file.partitions for file in find_inputs(["."])}
    assert partitions == {
        "run=r1/step=3/a.parquet": (("run", "r1"), ("step", "3")),
        "run=r1/step=-4/b.parquet": (("run", "r1"), ("step", "-4")),
        "plain/c.parquet": (),
        "=x/y=/d.parquet": (("y", ""),),
        "s=%ff/e.parquet": (("s", "\\xff"),),
        "s=%fe/f.parquet": (("s", "\\xfe"),),
        "s=%c3%bc/g.parquet": (("s", "ü"),),
    }


def column(path: Path, name: str) -> tuple[pa.DataType, list]:
    """Return the type and values of a column, from all chunks of a source."""
    source = Source(find_inputs([str(path)]))
    pieces = [
        piece.table.column(name)
        for piece in source.read([name, "reward"], 1 << 20, "response_mask")
    ]
    return pieces[0].type, [value for piece in pieces for value in piece.to_pylist()]


def test_partition_values_are_integers_or_strings(tmp_path):
    save(rollout(2), tmp_path / "step=07" / "domain=math" / "a.parquet")
    save(rollout(1), tmp_path / "step=-3" / "domain=1.5" / "b.parquet")
    assert column(tmp_path, "step") == (pa.int64(), [-3, 7, 7])
    assert column(tmp_path, "domain") == (pa.string(), ["1.5", "math", "math"])


def test_partition_values_are_url_decoded(tmp_path):
    table = rollout(2).append_column("domain", pa.array(["web search/ü", "web search/ü"]))
    pq.write_to_dataset(table, tmp_path, partition_cols=["domain"])
    assert column(tmp_path, "domain")[1] == ["web search/ü"] * 2


def test_a_column_of_the_file_overrides_a_partition(tmp_path):
    table = rollout(2).append_column("step", pa.array([1, 2]))
    save(table, tmp_path / "step=3" / "a.parquet")
    assert column(tmp_path, "step") == (pa.int64(), [1, 2])
    assert Source(find_inputs([str(tmp_path)])).columns.count("step") == 1


def test_row_numbers_count_over_files_and_chunks_count_within_them(tmp_path):
    save(rollout(12), tmp_path / "a.parquet", rows=5)
    save(rollout(3), tmp_path / "b.parquet", rows=2)
    source = Source(find_inputs([str(tmp_path)]))
    assert source.rows == 15
    assert source.first_rows == [0, 12, 15]
    for tokens in (1, 7, 1 << 20):
        pieces = list(source.read(["response_mask", "reward"], tokens, "response_mask"))
        starts = [(piece.file, piece.row_group, piece.first_row) for piece in pieces]
        assert starts == sorted(starts)
        assert sum(piece.table.num_rows for piece in pieces) == 15
    assert [(p.file, p.row_group, p.first_row) for p in pieces] == [
        (0, 0, 0), (0, 1, 5), (0, 2, 10), (1, 0, 0), (1, 1, 2),
    ]  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_an_error_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "p.parquet")
    with pytest.raises(ReadWriteError, match="directory contains no"):
        find_inputs([str(tmp_path)])


# Where their outputs go

NEW = ["advantages", "returns", "response_level_rewards"]


def written(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


def test_the_output_mirrors_a_directory_and_steps_are_batches(tmp_path):
    tables = {step: rollout(step + 2, 2) for step in (2, 10, 3)}
    for step, table in tables.items():
        save(table, tmp_path / "in" / f"step={step}" / "part.parquet")
    ran = run("advantages", tmp_path / "in", tmp_path / "out", "--summary-json", "-", "-q")
    assert ran.code == 0
    assert loads(ran.out)["facts"]["kept"]["step"]["label"] == [2, 3, 10]
    assert written(tmp_path / "out") == [f"step={step}/part.parquet" for step in (10, 2, 3)]
    for step, table in tables.items():
        out = pq.ParquetFile(tmp_path / "out" / f"step={step}" / "part.parquet").read()
        assert out.column_names == [*table.column_names, *NEW]  # the partition stays in the path
        assert out.equals(enrich(table)[0])


# Damaged files, and files that are not Parquet


def error_of(path: Path) -> str:
    """Return the error of a file that cannot be read; nothing may be left beside it."""
    ran = run("advantages", path, path.with_name("out.parquet"), "--quiet")
    assert ran.code == 3
    assert ran.err.startswith(f"error: {path}: ")
    assert list(path.parent.iterdir()) == [path]
    return ran.err


@pytest.mark.parametrize("kept", [1, 4, 8, 12, 0.1, 0.5, 0.9, -9, -8, -5, -4, -1])
def test_a_truncated_file_is_an_error(tmp_path, kept):
    path = save(rollout(), tmp_path / "cut.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if 0 < kept < 1 else kept])
    assert "not a Parquet file, or damaged" in error_of(path)


def test_one_changed_byte_is_an_error_or_changes_nothing(tmp_path):
    path, out = save(rollout(), tmp_path / "bad.parquet"), tmp_path / "out.parquet"
    whole = path.read_bytes()
    for at in range(4, len(whole) - 8, 91):
        path.write_bytes(whole[:at] + b"\xfe" + whole[at + 1 :])
        ran = run("advantages", path, out, "--quiet")
        if ran.code:
            assert ran.code == 3, at
            assert str(path) in ran.err
            assert not out.exists()
        else:
            out.unlink()
        assert list(tmp_path.iterdir()) == [path]
