"""Columns of the Arrow type null: what pandas and polars write if every value is None."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_left_out import close, flat

import rlpost
from rlpost.errors import DataError

SKIP = {"missing_components": "skip"}


def table(**columns):
    data = {
        "prompt_id": ["a", "a", "b", "b"],
        "right": [0.0, 1.0, 1.0, 0.0],
        "response_mask": [[1, 1], [1, 0, 1], [1], [1, 1]],
    }
    return pa.table({**data, **columns})


@pytest.mark.parametrize("estimator", ["grpo", "gdpo", "raw"])
def test_a_component_that_is_never_scored_is_skipped(estimator):
    empty = pa.nulls(4)
    recipe = rlpost.Recipe(estimator=estimator, reward_components=("right", "form"), numerics=SKIP)
    got, _ = rlpost.enrich(table(form=empty), recipe)
    typed, _ = rlpost.enrich(table(form=empty.cast(pa.float64())), recipe)
    assert got["advantages"].to_pylist() == typed["advantages"].to_pylist()
    alone = rlpost.Recipe(estimator="grpo" if estimator == "gdpo" else estimator,
                          columns={"reward": "right"})  # fmt: skip
    want, _ = rlpost.enrich(table(), alone)
    signs = [[x > 0 for x in flat(one["advantages"].to_pylist())] for one in (got, want)]
    assert signs[0] == signs[1]
    if estimator != "gdpo":
        close(flat(got["advantages"].to_pylist()), flat(want["advantages"].to_pylist()))


@pytest.mark.parametrize("name", ["reward", "form"])
def test_without_skip_the_first_null_is_named(name):
    options = {"reward_components": ("right", "form")} if name == "form" else {}
    with pytest.raises(DataError, match=f"row 0: `{name}` is null; a finite number is needed") as e:
        rlpost.enrich(table(**{name: pa.nulls(4)}), rlpost.Recipe(**options))
    assert ("--numerics missing_components=skip" in str(e.value)) == (name == "form")


def test_a_file_is_read_like_a_table(tmp_path):
    recipe = rlpost.Recipe(reward_components=("right", "form"), numerics=SKIP)
    data = table(form=pa.nulls(4))
    pq.write_table(data, tmp_path / "in.parquet")
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "out.parquet", recipe)
    want, _ = rlpost.enrich(data, recipe)
    got = pq.read_table(tmp_path / "out.parquet")
    assert got["advantages"].to_pylist() == want["advantages"].to_pylist()
    assert got.schema.field("form").type == pa.null()


def test_no_finish_reason_at_all_is_no_truncation():
    recipe = rlpost.Recipe(drop_truncated=True, columns={"reward": "right"})
    _, summary = rlpost.enrich(table(finish_reason=pa.nulls(4)), recipe)
    assert summary["masked"]["truncated"]["responses"] == 0


def test_lists_without_a_type_are_empty_or_null():
    mask = pa.array([[], [], [], []], pa.list_(pa.null()))
    recipe = rlpost.Recipe(columns={"reward": "right"})
    _, summary = rlpost.enrich(table(response_mask=mask), recipe)
    assert summary["tokens"]["all"] == 0
    mask = pa.array([[], [None], [], []], pa.list_(pa.null()))
    with pytest.raises(DataError, match="row 1: `response_mask` has null at token 0"):
        rlpost.enrich(table(response_mask=mask), recipe)
