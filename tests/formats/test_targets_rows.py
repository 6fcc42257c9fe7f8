"""Rows as an export writes them: vectors of tokens, masks, and errors that name the row."""

import numpy as np
import pyarrow as pa
from exported_rows import MASK, rollouts

import rlpost
from rlpost.formats.targets.rows import Rows, nonfinite


def test_rewards_that_are_no_numbers_and_masks_of_nothing_are_warnings(tmp_path):
    table = rollouts()
    none = pa.array([[0] * len(one) for one in table["response_mask"].to_pylist()], MASK)
    rewards = pa.array([1.0, None, float("nan"), 0, 0, 0, 0])
    table = table.set_column(3, "reward", rewards).set_column(9, "response_mask", none)
    found = rlpost.export(table, tmp_path / "o", "slime")
    assert found.warnings == [
        "`reward` is NaN, infinite or null in 2 responses",
        "no token is trained on: response_mask and sample_mask leave all out",
    ]


def rows_of(table, first=10, before=100):
    batch = table.combine_chunks().to_batches()[0]
    columns = {
        "response_token_ids": "response_token_ids", "mask": "response_mask", "group": "prompt_id",
        "sample_mask": "sample_mask", "advantages": "advantages", "reward": "reward",
    }  # fmt: skip
    places = np.arange(first, first + len(table))
    return Rows(batch, "dump.parquet", places, places + before, columns)


def test_some_rows_keep_their_numbers_in_the_file_and_in_the_input():
    rows = rows_of(rollouts()).take(np.array([1, 4]))
    assert (rows.places.tolist(), rows.numbers.tolist()) == ([11, 14], [111, 114])
    assert rows.keys("group") == ["q0", "q2"]
    assert str(rows.error(1, "is wrong")) == "dump.parquet, row 14: is wrong"


def test_what_is_trained_on_is_kept_and_of_the_policy():
    table = rollouts()
    rows, plain = rows_of(table), table.to_pylist()
    expected = [[bool(x and row["sample_mask"]) for x in row["response_mask"]] for row in plain]
    assert [own.tolist() for own in rows.trained()] == expected
    assert rows.truncated() == [False] * 7
    assert rows.values("domain") == [None] * 7


def test_numbers_that_are_not_finite_are_counted_in_lists_and_structs():
    table = pa.table({"a": [{"x": [1.0, float("nan")], "n": 1}, {"x": [None], "n": 2}]})
    assert nonfinite(table["a"].combine_chunks()) == 1
    assert nonfinite(pa.array([float("inf"), None, -float("inf")])) == 2
    assert nonfinite(pa.array(["nan"])) == 0
