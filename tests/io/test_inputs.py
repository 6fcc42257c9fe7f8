"""Input files: paths, directories, globs and partitions, and where their outputs go."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import rollout, run, save

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


def test_a_file_is_an_input_whatever_its_name(dumps):
    dumps("dump.pq", "a/_hidden.parquet")
    assert expand("dump.pq") == ["dump.pq"]
    assert expand("a/_hidden.parquet") == ["a/_hidden.parquet"]
    assert relative("a/_hidden.parquet") == ["_hidden.parquet"]


def test_several_files_keep_their_order(dumps):
    dumps("b.parquet", "a.parquet")
    assert expand("b.parquet", "a.parquet") == ["b.parquet", "a.parquet"]


def test_a_directory_is_expanded_to_its_parquet_files_in_sorted_order(dumps):
    dumps("d/b.parquet", "d/a.parquet", "d/deep/er/c.parquet", "d/notes.txt", "e.parquet")
    assert expand("d") == ["d/a.parquet", "d/b.parquet", "d/deep/er/c.parquet"]
    assert relative("d") == ["a.parquet", "b.parquet", "deep/er/c.parquet"]
    assert expand("d/") == expand("d")
    assert relative(".") == ["d/a.parquet", "d/b.parquet", "d/deep/er/c.parquet", "e.parquet"]


def test_hidden_files_and_directories_of_a_directory_are_skipped(dumps):
    dumps("d/a.parquet", "d/.a.parquet", "d/_a.parquet", "d/.git/a.parquet", "d/_tmp/b.parquet")
    dumps("d/.a.parquet.rlpost-1-2.tmp", "d/x.parquet/inner.txt")
    assert expand("d") == ["d/a.parquet"]


def test_a_hidden_directory_is_read_if_it_is_named(dumps):
    dumps(".cache/_d/a.parquet")
    assert expand(".cache/_d") == [".cache/_d/a.parquet"]


def test_a_glob_is_expanded_in_sorted_order(dumps):
    dumps("b.parquet", "a.parquet", "c.txt", "d/e.parquet", "d/f/g.parquet")
    assert expand("*.parquet") == ["a.parquet", "b.parquet"]
    assert expand("?.parquet") == ["a.parquet", "b.parquet"]
    assert expand("[ab].*") == ["a.parquet", "b.parquet"]
    assert expand("**/[eg].parquet") == ["d/e.parquet", "d/f/g.parquet"]
    assert expand("*") == ["a.parquet", "b.parquet", "c.txt"]


def test_a_glob_keeps_the_folders_that_its_wildcards_match(dumps):
    dumps("h/step=1/a.parquet", "h/step=2/a.parquet", "h/step=2/d/b.parquet")
    for glob, kept in [
        ("h/step=*/a.parquet", ["step=1/a.parquet", "step=2/a.parquet"]),
        ("./h/**/*.parquet", ["step=1/a.parquet", "step=2/a.parquet", "step=2/d/b.parquet"]),
        ("h/step=2/*.parquet", ["a.parquet"]),
        ("*/step=2/*/b.parquet", ["h/step=2/d/b.parquet"]),
        (str(Path("h/step=[1]/*").absolute()), ["step=1/a.parquet"]),
    ]:
        assert [str(file.relative) for file in find_inputs([glob])] == kept
        assert all(file.partitions for file in find_inputs([glob]))


def test_a_file_whose_name_looks_like_a_glob_is_that_file(dumps):
    dumps("a[1].parquet", "a1.parquet")
    assert expand("a[1].parquet") == ["a[1].parquet"]


def test_a_file_named_twice_is_read_once(dumps):
    dumps("d/a.parquet", "d/b.parquet")
    Path("link.parquet").symlink_to("d/a.parquet")
    inputs = ["d/a.parquet", "d", "d/*.parquet", "./d/a.parquet", "link.parquet"]
    assert expand(*inputs) == ["d/a.parquet", "d/b.parquet"]


def test_a_linked_file_is_found_in_a_directory(dumps):
    dumps("real.parquet")
    Path("d").mkdir()
    Path("d/link.parquet").symlink_to(Path("real.parquet").absolute())
    assert expand("d") == ["d/link.parquet"]


def test_a_path_that_does_not_exist_is_a_reading_error(dumps):
    dumps("a.parquet")
    with pytest.raises(ReadWriteError, match=r"^b\.parquet: no such file or directory"):
        find_inputs(["a.parquet", "b.parquet"])


def test_a_glob_that_matches_nothing_is_an_error(dumps):
    dumps("a.txt", "d.parquet/e.txt")
    with pytest.raises(ReadWriteError, match=r"^\*\.parquet: the pattern matches no file$"):
        find_inputs(["*.parquet"])


def test_a_directory_without_parquet_is_an_error(dumps):
    dumps("d/a.txt", "d/_b.parquet")
    with pytest.raises(
        ReadWriteError, match=r"^d: the directory contains no \.parquet files; convert"
    ):
        find_inputs(["d"])


def test_two_files_with_one_name_are_an_error(dumps):
    dumps("d/a.parquet", "e/a.parquet", "e/b.parquet")
    with pytest.raises(UsageError, match=r"2 input files are named a\.parquet"):
        find_inputs(["d/a.parquet", "e"])


def test_hive_partitions_come_from_the_path(dumps):
    dumps(
        "run=r1/step=3/a.parquet", "run=r1/step=-4/b.parquet", "plain/c.parquet", "=x/y=/d.parquet"
    )
    partitions = {str(file.path): file.partitions for file in find_inputs(["."])}
    assert partitions == {
        "run=r1/step=3/a.parquet": (("run", "r1"), ("step", "3")),
        "run=r1/step=-4/b.parquet": (("run", "r1"), ("step", "-4")),
        "plain/c.parquet": (),
        "=x/y=/d.parquet": (("y", ""),),
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


def test_the_columns_of_several_files_are_their_common_columns(tmp_path):
    save(rollout(2), tmp_path / "a.parquet")
    save(rollout(2).drop_columns(["ref_log_probs"]).append_column("x", [[1, 2]]), tmp_path / "b.pq")
    files = find_inputs([str(tmp_path / "a.parquet"), str(tmp_path / "b.pq")])
    names = ["prompt_id", "reward", "response_mask", "old_log_probs"]
    assert Source(files).columns == names
    assert Source(files).name == f"{tmp_path}/a.parquet and 1 more"


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
    assert [row["step"] for row in json.loads(ran.out)["steps"]] == [2, 3, 10]
    assert written(tmp_path / "out") == [f"step={step}/part.parquet" for step in (10, 2, 3)]
    for step, table in tables.items():
        out = pq.ParquetFile(tmp_path / "out" / f"step={step}" / "part.parquet").read()
        assert out.column_names == [*table.column_names, *NEW]  # the partition stays in the path
        assert out.equals(enrich(table)[0])


def test_a_group_may_be_in_several_files(tmp_path):
    table = rollout(12)
    save(table.slice(0, 6), tmp_path / "a.parquet")
    save(table.slice(6), tmp_path / "b.parquet")
    whole, _ = enrich(table)
    for words in (["a.parquet", "b.parquet"], ["[ab].parquet"], ["b.parquet", "*.parquet"]):
        out = tmp_path / f"out {len(words)} {words[0][0]}"
        ran = run("advantages", *(tmp_path / word for word in words), out, "-q")
        assert ran.code == 0
        assert written(out) == ["a.parquet", "b.parquet"]
        assert pq.read_table(out / "a.parquet").equals(whole.slice(0, 6))
        assert pq.read_table(out / "b.parquet").equals(whole.slice(6))


def test_a_file_without_rows_among_others_is_written_without_rows(tmp_path):
    save(rollout(8), tmp_path / "in" / "a.parquet")
    save(rollout(8).slice(0, 0), tmp_path / "in" / "b.parquet")
    assert run("advantages", tmp_path / "in", tmp_path / "out", "-q").code == 0
    assert pq.read_table(tmp_path / "out" / "a.parquet").equals(enrich(rollout(8))[0])
    assert pq.read_table(tmp_path / "out" / "b.parquet").num_rows == 0


def test_one_file_goes_to_a_file_or_into_an_existing_directory(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    (tmp_path / "d").mkdir()
    assert run("advantages", source, tmp_path / "new" / "out.parquet", "-q").code == 0
    assert run("advantages", source, tmp_path / "d", "-q").code == 0
    assert written(tmp_path) == ["d/in.parquet", "in.parquet", "new/out.parquet"]


def test_every_file_has_the_summary_of_its_own_rows(tmp_path):
    save(rollout(8), tmp_path / "in" / "a.parquet")
    save(rollout(4), tmp_path / "in" / "b.parquet")
    ran = run("advantages", tmp_path / "in", tmp_path / "out", "--summary-json", "-", "-q")
    summary = json.loads(ran.out)
    assert summary["responses"] == 12
    assert summary["outputs"] == [
        str(tmp_path / "out" / name) for name in ("a.parquet", "b.parquet")
    ]
    for name, rows in (("a.parquet", 8), ("b.parquet", 4)):
        metadata = pq.read_schema(tmp_path / "out" / name).metadata
        assert json.loads(metadata[b"rlpost.summary"])["responses"] == rows
        assert metadata[b"rlpost.input"].decode() == name


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


def test_an_empty_file_is_an_error(tmp_path):
    (tmp_path / "empty.parquet").touch()
    assert "the file is empty (0 bytes)" in error_of(tmp_path / "empty.parquet")


@pytest.mark.parametrize("content", ["text\n" * 99, "PAR1" * 99, "PAR1" + "\0" * 99 + "PAR1"])
def test_a_file_in_another_format_is_an_error(tmp_path, content):
    (tmp_path / "other.parquet").write_text(content)
    assert "not a Parquet file, or damaged" in error_of(tmp_path / "other.parquet")


def test_one_changed_byte_is_an_error_or_changes_nothing(tmp_path):
    path, out = save(rollout(), tmp_path / "bad.parquet"), tmp_path / "out.parquet"
    whole = path.read_bytes()
    for at in range(4, len(whole) - 8, 37):
        path.write_bytes(whole[:at] + b"\xfe" + whole[at + 1 :])
        ran = run("advantages", path, out, "--quiet")
        if ran.code:
            assert ran.code == 3, at
            assert str(path) in ran.err
            assert not out.exists()
        else:
            out.unlink()
        assert list(tmp_path.iterdir()) == [path]
