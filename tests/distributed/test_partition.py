"""Partitions: a large file is written in parts, which are joined."""

import re

import pytest
from distributed_runs import LOCAL, in_tasks, same_files, steps_table, write_files

import rlpost
from rlpost.distributed import partition as partitions
from rlpost.io.parquet import source
from rlpost.io.parquet.footer import ColumnMeta, FileMeta, Wire, file_end, read_footer
from rlpost.io.parquet.splice_plan import column_metas

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Row groups are parts of their own."""
    monkeypatch.setattr(partitions, "PART_BYTES", 1)
    monkeypatch.setattr(source, "_LARGE_GROUP", 1)  # or small row groups would go together


@pytest.mark.parametrize("options", [{}, {"emit_only": True}, {"replace": True}])
def test_a_large_file_is_written_in_parts_and_joined(tmp_path, options):
    table = steps_table(36)
    if "replace" in options:
        table = table.append_column("advantages", [[0.5]] * 36)
    write_files(table, tmp_path / "in", 1)
    recipe = rlpost.Recipe(estimator="gae", length_weight=True, **options)
    summary = in_tasks(tmp_path / "in", tmp_path / "out", recipe, LOCAL)
    assert summary["engine"]["partitions"] > 9
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


def test_a_file_whose_chunks_cannot_be_copied_is_not_divided(tmp_path):
    write_files(steps_table(), tmp_path / "in", 1)
    shared_chunks(tmp_path / "in" / "part-0.parquet", "format", "correctness")
    want = rlpost.advantages(tmp_path / "in", tmp_path / "local", None, LOCAL)
    assert want["rewritten"]
    got = in_tasks(tmp_path / "in", tmp_path / "out")
    assert got["engine"]["partitions"] <= 2
    assert got["rewritten"] == want["rewritten"]
    same_files(tmp_path / "out", tmp_path / "local")


def test_bad_data_in_a_part_is_named_by_its_row_in_the_file(tmp_path):
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
    with pytest.raises(rlpost.errors.DataError, match=re.escape(told)):
        in_tasks(tmp_path / "in", tmp_path / "out", recipe)
