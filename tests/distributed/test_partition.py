"""Partitions: a large file is written in parts, which are joined."""

import re
from dataclasses import replace
from unittest import mock

import pytest
from distributed_runs import (
    LOCAL,
    plan,
    same_files,
    shard,
    steps_table,
    write_files,
)

import rlpost
from rlpost.analysis.verify import verify
from rlpost.distributed import partition as partitions
from rlpost.distributed import shards
from rlpost.distributed.driver import divided_files
from rlpost.io.locks import FileLock
from rlpost.io.parquet import source
from rlpost.io.parquet.footer import ColumnMeta, FileMeta, Wire, file_end, read_footer
from rlpost.io.parquet.splice_plan import column_metas


@pytest.fixture
def divided(tmp_path, monkeypatch):
    """A folder with one file of 12 row groups, planned in parts of one, and a small file."""
    monkeypatch.setattr(partitions, "PART_BYTES", 1)
    monkeypatch.setattr(source, "_LARGE_GROUP", 1)  # or small row groups would go together
    write_files(steps_table(36), tmp_path / "in", 1)
    found = plan(tmp_path)
    assert found["partitions"] > 9
    return tmp_path


def parts_of(top):
    run = top / "state" / shards.planned(top / "state").run
    return sorted(path.name for path in (run / "blocks").glob("encoded-*"))


@pytest.mark.parametrize("options", [{}, {"emit_only": True}, {"replace": True}])
def test_a_large_file_is_written_in_parts_and_joined(tmp_path, monkeypatch, options):
    monkeypatch.setattr(partitions, "PART_BYTES", 1)
    monkeypatch.setattr(source, "_LARGE_GROUP", 1)  # or small row groups would go together
    table = steps_table(36)
    if "replace" in options:
        table = table.append_column("advantages", [[0.5]] * 36)
    write_files(table, tmp_path / "in", 1)
    recipe = rlpost.Recipe(estimator="gae", length_weight=True, **options)
    assert plan(tmp_path, recipe)["partitions"] > 9
    assert shard(tmp_path, 1, 2, replace(LOCAL, verify=True)) is None
    assert parts_of(tmp_path)
    assert shard(tmp_path, 0, 2, replace(LOCAL, verify=True))["responses"] == 36
    assert parts_of(tmp_path) == []
    rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, LOCAL)
    same_files(tmp_path / "out", tmp_path / "local")


def shared_chunks(path, one, other):
    """Let a column have its values in the chunks of another."""
    with path.open("rb") as file:
        footer, end = read_footer(file.fileno(), path.stat().st_size)
    for group in footer.structs(FileMeta.ROW_GROUPS):
        metas = {
            meta.values_of(ColumnMeta.PATH, Wire.BINARY)[0]: meta for meta in column_metas(group)
        }
        own, name = metas[one.encode()], metas[one.encode()][ColumnMeta.PATH]
        own.update(metas[other.encode()])
        own[ColumnMeta.PATH] = name
    path.write_bytes(path.read_bytes()[:end] + file_end(footer))


def test_a_file_whose_chunks_cannot_be_copied_is_not_divided(tmp_path, monkeypatch):
    monkeypatch.setattr(partitions, "PART_BYTES", 1)
    monkeypatch.setattr(source, "_LARGE_GROUP", 1)  # or small row groups would go together
    write_files(steps_table(), tmp_path / "in", 1)
    shared_chunks(tmp_path / "in" / "part-0.parquet", "format", "correctness")
    want = rlpost.advantages(tmp_path / "in", tmp_path / "local", None, LOCAL)
    assert want["rewritten"]
    assert plan(tmp_path)["partitions"] <= 2
    assert shard(tmp_path, 0, 1)["rewritten"] == want["rewritten"]
    same_files(tmp_path / "out", tmp_path / "local")


def test_bad_data_in_a_part_is_named_by_its_row_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(partitions, "PART_BYTES", 1)
    monkeypatch.setattr(source, "_LARGE_GROUP", 1)  # or small row groups would go together
    table = steps_table(36)
    values = table["values"].to_pylist()
    values[29] = values[29][:-1]
    place = table.schema.get_field_index("values")
    write_files(table.set_column(place, "values", [values]), tmp_path / "in", 1)
    recipe = rlpost.Recipe(estimator="gae")
    with pytest.raises(rlpost.errors.DataError) as caught:
        rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, LOCAL)
    told = str(caught.value)
    assert "part-0.parquet, row 29: " in told
    plan(tmp_path, recipe)
    with pytest.raises(rlpost.errors.DataError, match=re.escape(told)):
        shard(tmp_path, 0, 1)


def test_a_shard_that_ends_where_parts_are_missing_leaves_them_to_the_last(divided):
    for index in range(4):
        assert shard(divided, index, 5) is None
        assert [path.name for path in (divided / "out").glob("*.parquet")] == []
    assert shard(divided, 4, 5)["responses"] == 36
    assert verify([divided / "out"])["ok"]


def test_a_shard_that_is_killed_while_it_joins_is_gone_on_with(divided, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlpost.distributed.tasks.summary_of", killed)
    with pytest.raises(KeyboardInterrupt):
        shard(divided, 0, 1)
    monkeypatch.undo()
    assert len(parts_of(divided)) > 9
    counted = mock.Mock()
    assert shard(divided, 3, 9, replace(LOCAL, reporter=counted))["responses"] == 36
    assert counted.advance.mock_calls == []
    rlpost.advantages(divided / "in", divided / "local", None, LOCAL)
    same_files(divided / "out", divided / "local")


def test_a_file_that_is_being_joined_is_left_to_that_shard(divided):
    (own,) = divided_files(shards.planned(divided / "state").partitions)
    done = divided / "state" / shards.planned(divided / "state").run / "done"
    with FileLock([done / f"{own.start:06d}-{own.stop:06d}.json"]):
        assert shard(divided, 0, 1) is None
    assert shard(divided, 0, 1)["responses"] == 36
