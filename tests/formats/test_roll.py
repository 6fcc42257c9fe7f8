"""Dumps of ROLL: columns become rows, texts and scores."""

from __future__ import annotations

import format_writers as writers
import numpy as np
import pyarrow.parquet as pq
import pytest
from runs import run
from token_dumps import (
    converted,
    partition,
)


@pytest.mark.parametrize("writer", ["roll_rollout", "roll_agentic"])
def test_roll_columns_become_rows(writer, tmp_path):
    given, table = writers.made(), converted(writer, tmp_path)
    assert table["reward"].to_pylist() == [one.reward for one in given]
    assert table["step"].to_pylist() == [7] * len(given)
    assert partition(table["prompt_id"].to_pylist()) == partition([one.group for one in given])
    if writer == "roll_rollout":
        assert table["response"].to_pylist() == [f"answer {one.index}" for one in given]
        assert table["difficulty"].to_pylist() == [0.5 if one.group else None for one in given]


def test_roll_text_dumps_get_one_advantage_per_response(tmp_path):
    given = writers.made()
    dump = writers.roll_rollout(tmp_path / "in", given)
    ran = run("advantages", dump, tmp_path / "out.parquet", "--estimator", "dr_grpo")
    assert ran.code == 0, ran.err
    assert "responses, without columns of tokens" in ran.err
    table = pq.read_table(tmp_path / "out.parquet")
    rewards = np.array([one.reward for one in given])
    groups = np.array([one.group for one in given])
    expected = [one.reward - rewards[groups == one.group].mean() for one in given]
    np.testing.assert_allclose(table["response_advantage"], expected, rtol=1e-5, atol=1e-6)
