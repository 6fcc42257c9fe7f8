"""Statistics of responses count rollouts once, whatever their number of rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import rlpost
from rlpost.errors import DataError

IDS = {"rollout": "id"}
ROWS = {
    # two prompts; a rollout of three turns, others of one or two
    "prompt_id": ["p"] * 6 + ["q"] * 3,
    "id": ["a", "a", "a", "b", "b", "c", "d", "d", "e"],
    "turn": [0, 1, 2, 0, 1, 0, 0, 1, 0],
    "reward": [1.0, 1.0, 1.0, 0.0, 0.0, 0.5, 2.0, 2.0, 0.0],
    "finish_reason": ["stop", "stop", "length", "length", "stop", "stop", "stop", "stop", "length"],
    "response_mask": [[1, 1], [1, 0, 1], [1], [1], [1, 1, 1], [1, 1], [1], [1, 1], [1, 1, 1]],
}


def table(**columns):
    return pa.table(ROWS | columns)


def shuffled(rows, seed=0):
    return rows.take(np.random.default_rng(seed).permutation(len(rows)))


def enriched(rows, **options):
    return rlpost.enrich(rows, rlpost.Recipe(columns=IDS, **options))[0]


def numbers(rows, **options):
    """The number of each rollout, the same in all of its rows."""
    got = enriched(rows, **options).to_pydict()
    column = next(n for n in ("response_advantage", "sample_weight", "sample_mask") if n in got)
    found = {}
    for name, value in zip(got["id"], got[column], strict=True):
        assert found.setdefault(name, value) == value
    return found


def joined(rows):
    """The same rollouts in one row each: the tokens of all turns, the rest of the last turn."""
    taken = {}
    for row in sorted(rows.to_pylist(), key=lambda row: row["turn"]):
        before = taken.get(row["id"], row | {"response_mask": []})["response_mask"]
        taken[row["id"]] = row | {"response_mask": before + row["response_mask"]}
    return pa.Table.from_pylist([*taken.values()], schema=rows.schema)


def test_gdpo_normalises_over_rollouts():
    rows = table(x=ROWS["reward"], y=[0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 3.0])
    options = {"estimator": "gdpo", "reward_components": ("x", "y")}
    options["emit"] = ("response_advantage",)
    assert numbers(rows, **options) == numbers(joined(rows), **options)


@pytest.mark.parametrize("rule", ["equal", "last", "sum", "mean"])
@pytest.mark.parametrize("seed", range(3))
def test_null_before_the_last_turn_is_no_reward(rule, seed):
    rewards = [None, None, 1.0, None, 0.0, 0.5, None, 2.0, 0.0]
    rows = shuffled(table(reward=pa.array(rewards)), seed)
    options = {"rollout_reward": rule, "emit": ("response_advantage",)}
    assert numbers(rows, **options) == numbers(joined(rows), **options)


def test_components_that_are_null_before_the_last_turn_are_no_reward():
    x, y = [None, None, 1.0, None, 0.0, 0.5, None, 2.0, 0.0], [None, None, 0.0, None, *[3.0] * 5]
    y[6] = None
    options = {"reward_components": ("x", "y"), "emit": ("response_advantage",)}
    rows = table(x=pa.array(x), y=pa.array(y))
    every_row = table(x=[1.0, 1, 1, 0, 0, 0.5, 2, 2, 0], y=[0.0] * 3 + [3.0] * 6)
    assert numbers(rows, **options) == numbers(every_row, **options)
    some = table(x=pa.array(x), y=[1.0] * 9)
    with pytest.raises(DataError, match="row 0: `x` is null"):
        numbers(some, **options)
    x[2] = y[2] = None
    with pytest.raises(DataError, match="row 2: all of `x`, `y` are null in the last turn"):
        numbers(table(x=pa.array(x), y=pa.array(y)), **options)


def test_null_in_the_last_turn_is_an_error_and_a_mask_leaves_the_rollout_out():
    rows = table(reward=pa.array([1.0, 1.0, None, 0.0, 0.0, 0.5, 2.0, 2.0, 0.0]))
    with pytest.raises(DataError, match="row 2: `reward` is null"):
        enriched(rows)
    got = enriched(rows, nonfinite="mask", estimator="dr_grpo")
    kept = dict(zip(got["id"].to_pylist(), got["sample_mask"].to_pylist(), strict=True))
    assert kept == {"a": False, "b": True, "c": True, "d": True, "e": True}
    assert got["response_level_rewards"].to_pylist()[3:6] == [0.0, 0.0, 0.5]


def rollout_of_two_rows(**columns):
    """A rollout of two rows, of one and of three tokens, and one of a row, of a prompt."""
    masks = [[1], [1, 1, 1], [1]]
    rows = {"prompt_id": ["p"] * 3, "id": ["a", "a", "b"], "turn": [0, 1, 0], "reward": [1.0] * 3}
    return pa.table(rows | {"response_mask": masks} | columns)


def test_an_adaptive_coefficient_reads_the_kl_of_all_tokens_of_a_rollout():
    rows = rollout_of_two_rows(
        old_log_probs=[[-1.0], [-1.0, -1.0, -1.0], [-1.0]],
        ref_log_probs=[[-2.0], [-3.0, -3.0, -3.0], [-1.0]],
    )
    rows = pa.concat_tables([rows, rows.set_column(1, "id", [["c", "c", "d"]])])
    rows = rows.append_column("step", [[0, 0, 0, 1, 1, 1]])
    adapted = {"kl_estimator": "k1", "kl_coef": 0.1, "kl_target": "0.8:10"}
    recipe = rlpost.Recipe(columns=IDS, **adapted)
    _, summary = rlpost.enrich(rows, recipe)
    kl = (7 / 4 + 0) / 2
    found = [step["coefficient"] for step in summary["kl"]["coefficients"]]
    assert found == pytest.approx([0.1, 0.1 * (1 + (kl / 0.8 - 1) * 2 / 10)])
