"""Sources: row groups that are processed together."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source, join_chunks

SAMPLE = Path(__file__).parents[3] / "sample_data" / "calculator.parquet"


GRPO = rlpost.Recipe(rollout_reward="last")
GAE = rlpost.Recipe(estimator="gae", kl_coef=0.1, whiten_advantages=True, rollout_reward="last")
COLUMNS = ["response_mask", "reward"]


class Steps(SilentReporter):
    """A reporter that notes how many rows were worked on at a time, pass by pass."""

    def __init__(self):
        super().__init__()
        self.passes = []

    def start(self, purpose, rows):
        assert purpose
        assert rows > 0
        self.passes.append([])

    def advance(self, rows):
        self.passes[-1].append(rows)


def grouped(path, rows):
    pq.write_table(pq.read_table(SAMPLE), path, row_group_size=rows)
    return path


def runs(path, tokens):
    """The row groups that are worked on together."""
    chunks = Source(find_inputs([str(path)])).read(COLUMNS, tokens, "response_mask")
    return [[piece.row_group for piece in run] for run in join_chunks(chunks)]


def test_all_row_groups_that_a_chunk_may_have_are_worked_on_together(tmp_path):
    joined = runs(grouped(tmp_path / "in.parquet", 20), 1 << 20)
    groups = math.ceil(pq.read_metadata(SAMPLE).num_rows / 20)
    assert joined == [[*range(groups)]]


def test_they_have_no_more_tokens_than_a_chunk(tmp_path):
    path = grouped(tmp_path / "in.parquet", 20)
    lengths = np.array([len(mask) for mask in pq.read_table(path)["response_mask"].to_pylist()])
    several = 0
    for run in runs(path, 3000):
        tokens = sum(lengths[20 * group : 20 * group + 20].sum() for group in run)
        assert tokens <= 3000 + 8 or len(set(run)) == 1  # each group's are rounded
        several += len(set(run)) > 1
    assert several


def test_an_error_names_the_row_of_the_file(tmp_path):
    table = pq.read_table(SAMPLE)
    lists = table["old_log_probs"].to_pylist()
    row = next(n for n in range(45, len(lists)) if len(lists[n]) > 2 and n % 10)
    policy = next(t for t, one in enumerate(table["response_mask"][row].as_py()) if one)
    lists[row][policy] = math.nan
    place = table.schema.get_field_index("old_log_probs")
    broken = table.set_column(
        place, table.schema.field(place), pa.array(lists, pa.list_(pa.float32()))
    )
    pq.write_table(broken, tmp_path / "in.parquet", row_group_size=10)
    with pytest.raises(DataError, match=rf"in.parquet, row {row}: `old_log_probs` has nan"):
        rlpost.advantages(tmp_path / "in.parquet", tmp_path / "out.parquet", GAE)


def test_a_table_of_many_chunks_is_worked_on_together():
    table = pq.read_table(SAMPLE)
    chunks = pa.concat_tables([table.slice(first, 5) for first in range(0, len(table), 5)])
    steps = Steps()
    got, _ = rlpost.enrich(chunks, GRPO, rlpost.Options(reporter=steps))
    want, _ = rlpost.enrich(table, GRPO)
    assert got.combine_chunks().equals(want.combine_chunks())
    assert [len(done) for done in steps.passes] == [1, 1]
