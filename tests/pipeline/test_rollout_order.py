"""The order of a rollout's rows: by turn and branch, ending with the main agent, a row a turn."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlpost
from rlpost.errors import DataError
from rlpost.kernels.rollouts import RolloutOrder, rollout_ranks


def slow_order(rows):
    """Rows (rollout, turn, branch, agent, tie) in order, by plain loops over each rollout."""
    ordered = []
    for rollout in sorted({row[0] for row in rows}):
        own = sorted((row for row in rows if row[0] == rollout), key=lambda row: row[1:3] + row[4:])
        main = own[0][3]
        end = max(turn for _, turn, _, agent, _ in own if agent == main)
        for turn in sorted({min(row[1], end) for row in own}):
            now = [row for row in own if min(row[1], end) == turn]
            ordered += [row for row in now if row[3] != main]
            ordered += [row for row in now if row[3] == main]
    return ordered


ROWS = st.lists(
    st.tuples(*(st.integers(0, top) for top in (2, 3, 2, 2, 3))), min_size=1, max_size=25,
    unique_by=lambda row: (row[:3], row[4]),
)  # fmt: skip


@given(ROWS, st.randoms(use_true_random=False))
def test_ranks_are_the_order_of_the_loop(rows, random):
    rows = [(sorted({r for r, *_ in rows}).index(row[0]), *row[1:]) for row in rows]
    random.shuffle(rows)
    ranks = rollout_ranks(*(np.array(column) for column in zip(*rows, strict=True)))
    assert [row for _, row in sorted(zip(ranks, rows, strict=True))] == slow_order(rows)
    order = RolloutOrder.of(np.array([row[0] for row in rows]), ranks)
    assert [rows[i] for i in order.order] == slow_order(rows)


# The main agent ends a rollout: `search` is called by `main`, and its row sorts behind.
CALLED = {
    "prompt_id": ["p"] * 6,
    "rollout_id": ["a", "a", "a", "b", "b", "b"],
    "turn": [0, 1, 1, 0, 1, 2],
    "branch": ["0", "0", "s-0", "0", "0", "s-0"],
    "agent_role": ["main", "main", "search", "main", "main", "search"],
    "reward": [0.0, 1.0, 7.0, 0.0, 0.5, 9.0],
    "response_mask": [[1]] * 6,
}


def credit(rows=CALLED, **options):
    options = {"unit": "rollout", "rollout_reward": "last", "estimator": "raw", **options}
    got, summary = rlpost.enrich(pa.table(rows), rlpost.Recipe(**options))
    return [row[0] for row in got["advantages"].to_pylist()], summary


def test_the_last_turn_is_that_of_the_main_agent():
    assert credit()[0] == [1.0] * 3 + [0.5] * 3
    assert credit(columns={"agent_role": "none"})[0] == [7.0] * 3 + [9.0] * 3


def test_a_called_agent_that_fails_is_no_failure_of_the_rollout():
    rows = CALLED | {"failure": [None, None, "timeout", None, "crash", None]}
    found, summary = credit(rows)
    assert found == [1.0] * 3 + [0.0] * 3
    assert summary["failures"]["reasons"] == {"crash": 1}
    assert summary["failures"]["survived"] == 1


def test_a_scan_ends_with_the_main_agent():
    """The reward reaches the rows before it, also those of an agent with a greater turn."""
    options = {"estimator": "reinforce", "scan": "rollout", "gamma": 0.5}
    assert credit(**options)[0] == [0.25, 1, 0.5, 0.125, 0.5, 0.25]
    kinds = {"finish_reason": ["stop", "length", "stop", "stop", "length", "stop"]}
    values = {"values": [[0.0]] * 6, "next_value": [8.0] * 6}
    options = {"estimator": "gae", "scan": "rollout", "gamma": 0.5, "bootstrap": "column"}
    assert credit(CALLED | kinds | values, **options)[0][1] == 1 + 0.5 * 8


# A turn is one row.
COPIED = {
    "prompt_id": ["p"] * 5,
    "rollout_id": ["a", "a", "a", "b", "b"],
    "turn": [0, 1, 1, 0, 1],
    "reward": [1.0, 1.0, 1.0, 0.0, 0.0],
    "turn_reward": [0.0, 1.0, 1.0, 0.0, 0.0],
    "step_score": [0.0, 1.0, 1.0, 0.0, 0.0],
    "values": [[0.0]] * 5,
    "response_mask": [[1]] * 5,
}
CHAINED = {
    "mt_grpo": {},
    "turn_credit": {},
    "step_reinforce": {},
    "gae": {"scan": "rollout"},
}


@pytest.mark.parametrize(("estimator", "options"), CHAINED.items())
def test_a_row_that_is_there_twice_is_no_turn_more(estimator, options):
    options = {"estimator": estimator, "unit": None, "rollout_reward": "equal", **options}
    with pytest.raises(DataError, match=r"row 1, has `turn` 1, and table, row 2.*--map branch"):
        credit(COPIED, **options)
    attempts = {"run_attempt": [2, 1, 2, 2, 2]}
    found = credit(COPIED | attempts, **options)[0]
    rows = [0, 2, 3, 4]
    want = credit({name: [x[i] for i in rows] for name, x in COPIED.items()}, **options)[0]
    assert [found[i] for i in rows] == want
    branches = {"branch": ["x", "x", "y", "x", "x"]}
    assert len(credit(COPIED | branches, **options)[0]) == 5
