"""Enriched files, changed on purpose, and what `rlpost verify` finds."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
from runs import rollout, run

from rlpost.analysis import verify


def found(*paths):
    return verify.verify(list(paths))


def rewritten(path, change, metadata=None):
    """The file again with changed columns, by pyarrow: as somebody else would change it."""
    table = pq.read_table(path, partitioning=None)  # the file's own columns
    told = {**table.schema.metadata, **(metadata or {})}
    pq.write_table(change(table).replace_schema_metadata(told), path, row_group_size=10)


def with_kept(path, source, **how):
    """An enriched file that has two more columns, `kept` and `words`, in it."""
    table = rollout(48).append_column("kept", [np.arange(48) * 0.37])
    table = table.append_column("words", [[f"word {i}" for i in range(48)]])
    pq.write_table(table, source, row_group_size=10, use_dictionary=False, **how)
    assert run("advantages", source, path, "-q").code == 0
    return path


def harmed(path, column, at, group=2):
    """The file with a byte of a column's chunk turned over."""
    begin, size = chunk(path, column, group)
    with path.open("rb+") as file:
        file.seek(begin + at % size)
        byte = file.read(1)[0]
        file.seek(begin + at % size)
        file.write(bytes([byte ^ 0xFF]))


def chunk(path, column, group=2):
    """Where a column chunk lies."""
    row_group = pq.read_metadata(path).row_group(group)
    (found,) = [row_group.column(i) for i in range(row_group.num_columns)
                if row_group.column(i).path_in_schema.startswith(column)]  # fmt: skip
    at = found.dictionary_page_offset or found.data_page_offset
    return at, found.total_compressed_size
