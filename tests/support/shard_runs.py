"""Runs in shards, compared with a run in one process."""

import tempfile
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
from distributed_runs import LOCAL, facts, same_files, write_files

import rlpost
from rlpost.distributed import driver, shards
from rlpost.distributed import partition as partitions
from rlpost.errors import RlpostError


def in_shards(top, recipe, count, options=LOCAL):
    """The summary of a run in shards, the last first."""
    shards.plan([top / "in"], top / "shards", top / "state", recipe, options)
    for index in reversed(range(count)):
        assert not list((top / "shards").glob("*.parquet"))
        summary = shards.shard(top / "state", index, count, options)
        assert (summary is None) == (index > 0)
    return summary


def attempt(run):
    """The summary of a run, or its error."""
    try:
        return run()
    except RlpostError as error:
        return type(error), str(error)


def check(table, recipe, files, count, rows_a_bucket, *, divide=False, indexed=False):
    """A run in shards leaves the bytes that a run in one process leaves, or fails as it does."""
    least = 1 if divide else partitions.PART_BYTES
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        write_files(table, top / "in", files, write_page_index=indexed)
        want = attempt(lambda: rlpost.advantages(top / "in", top / "local", recipe, LOCAL))
        with (
            mock.patch.object(driver, "ROWS_A_BUCKET", rows_a_bucket),
            mock.patch.object(partitions, "PART_BYTES", least),
        ):
            got = attempt(lambda: in_shards(top, recipe, count))
        if isinstance(want, tuple):
            assert got == want
            return
        assert facts(got) == facts(want)
        same_files(top / "shards", top / "local")
        for path in (top / "local").iterdir():
            assert have_indexes(path) == (indexed and pq.read_metadata(path).num_rows > 0)


def have_indexes(path):
    """Whether all columns have page indexes."""
    metadata = pq.read_metadata(path)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = [group.column(place) for group in groups for place in range(metadata.num_columns)]
    known = {
        chunk.has_offset_index and chunk.has_column_index for chunk in chunks if chunk.num_values
    }
    assert len(known) < 2
    return known == {True}
