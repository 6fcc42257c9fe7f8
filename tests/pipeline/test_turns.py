"""Rows that are turns of one rollout: found by their ids, else by their turns, and warned of."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summaries import warnings_of

import rlpost
from rlpost import Recipe
from rlpost.errors import DataError
from rlpost.pipeline.turns import (
    BY_ID,
    BY_TURN,
    turn_rows,
)

TURNS = ("look like turns of a rollout", "groups have one rollout")


def reference(group, rollout, turn):
    """The rule of `turn_rows`, row by row: 0, BY_ID or BY_TURN."""
    if rollout is not None:
        if len(set(rollout)) == len(rollout):
            return [0] * len(group)
        ids = defaultdict(set)
        for g, r in zip(group, rollout, strict=True):
            ids[g].add(r)
        if any(len(own) > 1 for own in ids.values()):
            rows = Counter(zip(group, rollout, strict=True))
            return [BY_ID * (rows[pair] > 1) for pair in zip(group, rollout, strict=True)]
    if turn is None or min(turn) not in (0, 1):
        return [0] * len(group)
    turns = defaultdict(Counter)
    for g, t in zip(group, turn, strict=True):
        turns[g][t] += 1
    for counts in turns.values():
        order = sorted(counts)
        if order != list(range(min(turn), min(turn) + len(order))):
            return [0] * len(group)
        if any(counts[one] < counts[other] for one, other in pairwise(order)):
            return [0] * len(group)
    return [BY_TURN * (len(turns[g]) > 1) for g in group]


def dense(values):
    """Codes in order of first appearance."""
    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    return np.array([codes[value] for value in values], np.int64)


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(-1, 3)), min_size=1, max_size=30
)


@given(ROWS, st.booleans(), st.booleans())
def test_rows_of_turns_equal_those_of_the_rule(rows, with_ids, with_turns):
    group, rollout, turn = (list(column) for column in zip(*rows, strict=True))
    rollout, turn = rollout if with_ids else None, turn if with_turns else None
    found = turn_rows(
        dense(group), dense(rollout) if with_ids else None, np.array(turn) if with_turns else None
    )
    assert found.tolist() == reference(group, rollout, turn)


GROUPS, ROLLOUTS, STEPS = 6, 4, 3


def dialogues(**columns):
    """Four rollouts of three turns for each of six prompts, in two steps."""
    rows = [(g, r, t) for g in range(GROUPS) for r in range(ROLLOUTS) for t in range(STEPS)]
    rng = np.random.default_rng(0)
    reward = rng.random((GROUPS, ROLLOUTS)).round(2)
    table = {
        "prompt_id": [f"p{g}" for g, _, _ in rows],
        "step": [g // 3 for g, _, _ in rows],
        "reward": [float(reward[g, r]) for g, r, _ in rows],
        "response_mask": [[1, 1]] * len(rows),
        "old_log_probs": [[-1.0, -2.0]] * len(rows),
    }
    named = {
        "traj_id": [f"p{g}/{r}" for g, r, _ in rows],
        "own_id": [r for _, r, _ in rows],
        "turn": [t for _, _, t in rows],
        "step_id": [g // 3 for g, _, _ in rows],
        "prompt": [f"p{g}" for g, _, _ in rows],
        "count": [STEPS] * len(rows),
        "row": list(range(len(rows))),
    }
    return table | {name: named[of] if isinstance(of, str) else of for name, of in columns.items()}


def warned(path, table, **options):
    """The warning of turns, if there is one."""
    pq.write_table(pa.table(table), path / "in.parquet", row_group_size=10)
    (path / "out.parquet").unlink(missing_ok=True)
    summary = rlpost.advantages(path / "in.parquet", path / "out.parquet", Recipe(**options))
    return [text for text in warnings_of(summary) if any(sign in text for sign in TURNS)]


@pytest.mark.parametrize("columns", [{}, {"rollout_id": "traj_id"}])
@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_turns_are_warned_of_unless_rows_are_chosen(columns, estimator, tmp_path):
    table = dialogues(**columns, turn="turn")
    own = {"estimator": estimator, "columns": {"rollout": "none"}}
    (text,) = warned(tmp_path, table, **own)
    assert text.startswith("72 rows ")
    assert "--map rollout=COLUMN" in text
    assert warned(tmp_path, table, **own, unit="row") == []


def of_prompts(rollout_id):
    """Rows that share a reward in each prompt, as rows of one rollout do."""
    table = dialogues(rollout_id=rollout_id)
    return table | {"reward": [float(prompt[1:]) for prompt in table["prompt_id"]]}


@pytest.mark.parametrize("rollout_id", ["step_id", "prompt"])  # as in slime
def test_an_id_that_all_rows_of_a_group_have_is_warned_of_unless_a_unit_is(rollout_id, tmp_path):
    table = of_prompts(rollout_id)
    (text,) = warned(tmp_path, table, estimator="raw", emit=("group_mean",))
    assert "`rollout_id`" in text
    assert "--unit row" in text
    assert "--unit rollout" in text
    for unit in ("row", "rollout"):
        assert warned(tmp_path, table, estimator="raw", emit=("group_mean",), unit=unit) == []


@pytest.mark.parametrize(
    "columns",
    [
        {"traj_id": "row"},  # one row of each rollout
        {"traj_id": "row", "turn": "turn"},
        {"traj_id": "traj_id"},  # rollouts count
        {"traj_id": "own_id", "turn": "turn"},
        {"rollout_id": "traj_id"},
        {"traj_uid": "own_id"},
        {"turn": "count"},  # how many turns a response has
        {"turn": ["a"] * 72},
        {"turn": [None] * 72},
        {},
    ],
)
def test_rows_that_are_no_turns_are_not_warned_of(columns, tmp_path):
    assert warned(tmp_path, dialogues(**columns), estimator="grpo") == []


def test_nulls_in_the_ids_are_an_error_unless_rows_count(tmp_path):
    table = dialogues(traj_id="traj_id", turn="turn")
    odd = table | {
        "traj_id": [None, *table["traj_id"][1:]],
        "turn": [None, *map(float, table["turn"][1:])],
    }
    assert warned(tmp_path, odd, estimator="grpo", unit="row") == []
    got = pl.read_parquet(tmp_path / "out.parquet")["advantages"]
    nulls = dialogues(traj_id=[None] * 72)
    assert warned(tmp_path, nulls, estimator="grpo", unit="row") == []
    for estimator, counts in {"grpo": True, "gigpo": False}.items():  # gigpo reads ids
        scored = odd | dict.fromkeys(("step_score", "episode_score"), odd["reward"])
        scored |= {"state_id": odd["prompt_id"]}
        with pytest.raises(DataError, match="row 0: `traj_id` is null") as raised:
            warned(tmp_path, scored, estimator=estimator)
        assert ("--unit row" in raised.value.parts[0].tip) == counts
    assert warned(tmp_path, dialogues(), estimator="grpo") == []
    assert got.equals(pl.read_parquet(tmp_path / "out.parquet")["advantages"])
