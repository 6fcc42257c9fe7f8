"""Values behind the end of truncated responses: where they enter a scan, and what is reported."""

import numpy as np
import pyarrow as pa
import pytest
from summaries import warnings_of

from rlpost import Recipe, enrich
from rlpost.errors import DataError, UsageError

MASK, VALUES = [1, 0, 1, 0], [1.0, 2.0, 4.0, 8.0]


def table(*, reasons=("length", "stop"), **columns):
    """Responses of four tokens with the reward 3; the last value of a row is 8."""
    count = len(reasons)
    return pa.table(
        {
            "reward": [3.0] * count,
            "response_mask": [MASK] * count,
            "values": [VALUES] * count,
            "finish_reason": list(reasons),
            **columns,
        }
    )


def advantages(rows, **options):
    written, summary = enrich(rows, Recipe(gamma=0.5, **options))
    return np.array(written["advantages"].to_pylist()), summary


ENDS = {
    "skip": [3.5, 0, 7, 0],
    "states": [1.25, 0, 5, 0],
    "zero_states": [1.25, 0, 5, 0],
    "policy": [1.25, 0, 5, 0],
    "restart": [0, 0, 7, 0],
    "cut": [0, 0, 7, 0],
}
"""Returns-to-go with γ = 0.5, the reward 3 on the last policy token, and 8 behind the end."""


@pytest.mark.parametrize("observations", ENDS)
def test_the_value_enters_at_the_last_token_of_the_scan(observations):
    numerics = {"observations": observations}
    options = {"estimator": "reinforce", "numerics": numerics}
    found, _ = advantages(table(), bootstrap="last", **options)
    ended, _ = advantages(table(), **options)
    assert found[0].tolist() == ENDS[observations]
    assert found[1].tolist() == ended[1].tolist() == ended[0].tolist()


def test_an_end_without_a_value_is_reported_with_its_count():
    _, summary = advantages(table(reasons=["length", "length", "stop"]), estimator="gae")
    (warning,) = warnings_of(summary)
    assert "2 truncated" in warning
    assert "--bootstrap" in warning


def test_a_choice_without_effect_is_reported():
    rows = table(reasons=["stop", "stop"])
    _, summary = advantages(rows, estimator="gae", bootstrap="last")
    assert any("--bootstrap last" in text for text in warnings_of(summary))


def test_a_column_of_values_needs_them_for_truncated_responses_alone():
    """The reward 3 on the last policy token, and 0.5·8 of the column."""
    rows = table(next_value=[8.0, None])
    found, _ = advantages(rows, estimator="reinforce", bootstrap="column")
    assert found.tolist() == [[3.5, 0, 7, 0], [1.5, 0, 3, 0]]
    rows = table(reasons=["length", "length"], next_value=[8.0, None])
    with pytest.raises(DataError, match="row 1: `next_value`"):
        advantages(rows, estimator="reinforce", bootstrap="column")
    found, _ = advantages(
        rows, estimator="reinforce_pp", bootstrap="column", nonfinite="mask", advantage_clip=9.0
    )
    assert np.isfinite(found).all()
    assert found[1].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("lacking", "bootstrap"),
    [("values", "last"), ("finish_reason", "last"), ("next_value", "column"),
     ("finish_reason", "column")],
)  # fmt: skip
def test_the_columns_that_it_reads_are_needed(lacking, bootstrap):
    rows = table(next_value=[8.0, 8.0]).drop_columns([lacking])
    with pytest.raises(DataError, match=f"--bootstrap {bootstrap}"):
        advantages(rows, estimator="reinforce", bootstrap=bootstrap)


@pytest.mark.parametrize(
    "options", [{"drop_truncated": True}, {"estimator": "grpo"}, {"norm_mean": "batch"}]
)
def test_options_that_leave_no_use_for_it_are_errors(options):
    with pytest.raises(UsageError, match="--bootstrap"):
        advantages(table(), **{"estimator": "reinforce", **options}, bootstrap="last")
