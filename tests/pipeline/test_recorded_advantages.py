"""Advantages that a trainer recorded are compared with the computed ones, in one line."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from summaries import parts, warnings_of, whole

import rlpost
from rlpost import Options, Recipe
from rlpost.recipe.roles import RECORDED_ADVANTAGES

ROWS, GRPO = 48, Recipe(estimator="grpo")
LENGTHS = 1 + np.arange(ROWS) % 5


def lists(values):
    return pa.array([np.float32(value) for value in values], pa.list_(pa.float32()))


def rollouts(*, tokens=True):
    """Two steps, six prompts of eight, two domains; the second token of longer ones is masked."""
    rng, index = np.random.default_rng(5), np.arange(ROWS)
    masks = [[1] * n if n < 3 else [1, 0, *[1] * (n - 2)] for n in LENGTHS]
    columns = {
        "step": index // 24,
        "prompt_id": [f"p{i // 8}" for i in index],
        "data_source": ["math" if i % 8 < 4 else "code" for i in index],
        "reward": rng.normal(size=ROWS).round(1),
        **({"response_mask": masks} if tokens else {}),
    }
    return pa.table(columns)


def recorded(table, recipe=GRPO):
    """Return the advantages of a recipe, as a file has them."""
    name = "advantages" if "response_mask" in table.column_names else "response_advantage"
    return rlpost.enrich(table, recipe)[0][name]


def summary_of(table, recipe=GRPO, **options):
    return rlpost.enrich(table, recipe, Options(**options))[1]


def flipped(column, *rows):
    values = column.to_pylist()
    for row in rows:
        values[row] = [-x for x in values[row]] if isinstance(values[row], list) else -values[row]
    return pa.array(values, column.type)


@pytest.mark.parametrize("name", RECORDED_ADVANTAGES)
@pytest.mark.parametrize("tokens", [True, False])
def test_equal_ones_are_equal_under_each_name(name, tokens):
    table = rollouts(tokens=tokens)
    table = table.append_column(name, recorded(table))
    summary = rlpost.enrich(table, GRPO.model_copy(update={"replace": True}))[1]
    policy = sum(n - (n > 2) for n in LENGTHS.tolist()) if tokens else ROWS
    assert summary["recorded"] == f"recorded advantages (`{name}`): equal"
    for measure in ("recorded_differs", "recorded_sign_differs"):
        assert whole(summary, measure) == {"count": policy, "total": 0, "mean": 0.0}
    assert whole(summary, "recorded_difference")["max"] < 1e-6
    assert warnings_of(summary) == [x for x in warnings_of(summary) if "recorded" not in x]


@pytest.mark.parametrize("tokens", [True, False])
def test_two_signs_that_are_flipped_are_a_warning(tokens):
    table = rollouts(tokens=tokens)
    right = recorded(table)
    table = table.append_column("dumped_advantages", flipped(right, 2, 30))
    summary = summary_of(table)
    flat = [np.abs(right[row].as_py()) for row in (2, 30)]
    size = [n - (n > 2) if tokens else 1 for n in LENGTHS[[2, 30]].tolist()]
    largest = whole(summary, "recorded_difference")["max"]
    counts = [whole(summary, f"recorded_{name}")["total"] for name in ("differs", "sign_differs")]
    assert counts == [sum(size)] * 2
    assert largest == pytest.approx(2 * max(np.max(x) for x in flat))
    assert warnings_of(summary)[-1] == summary["recorded"]
    assert f"in sign in {sum(size)} (largest difference " in summary["recorded"]
    for by in ("step", "domain"):
        rows = parts(summary, by)
        for name in ("recorded_differs", "recorded_sign_differs"):
            for number in ("count", "total"):
                assert sum(row[name][number] for row in rows) == whole(summary, name)[number]
        assert max(row["recorded_difference"]["max"] for row in rows) == largest
    steps = summary["facts"]["recorded_differs"]["step"]
    assert steps["total"] == size


def test_those_of_another_group_key_differ_and_other_numbers_are_named():
    table = rollouts()
    other = recorded(table, Recipe(estimator="grpo", columns={"group": "data_source"}))
    table = table.append_column("advantage", other).append_column("seconds", table["reward"])
    summary = summary_of(table)
    text = summary["recorded"]
    assert text in warnings_of(summary)
    assert "rlpost replay finds the recipe; other numbers than `reward`: `seconds`" in text
    assert whole(summary, "recorded_sign_differs")["total"] > 3


def test_a_sign_that_is_lost_is_another_sign_but_rounding_is_none():
    """Equal rewards of float32 have advantages near 0 in place of 0."""
    table = rollouts()
    rewards = table["reward"].to_numpy().copy()
    rewards[:8] = 0.9
    table = table.set_column(3, "reward", pa.array(rewards))
    values = recorded(table).to_pylist()
    values[:8] = [[0.01] * len(value) for value in values[:8]]
    values[16] = [0.0] * len(values[16])
    summary = summary_of(table.append_column("dumped_advantages", lists(values)))
    policy = [n - (n > 2) for n in LENGTHS.tolist()]
    assert whole(summary, "recorded_differs")["total"] == sum(policy[:8]) + policy[16]
    assert whole(summary, "recorded_sign_differs")["total"] == policy[16]


def test_numbers_that_are_missing_are_not_compared_and_no_error():
    table = rollouts()
    values = recorded(table).to_pylist()
    values[0], values[1], values[2] = None, [1.0] * 9, [float("nan")] * LENGTHS[2]
    values[3][0] = float("inf")
    summary = summary_of(table.append_column("dumped_advantages", pa.array(values)))
    policy = [n - (n > 2) for n in LENGTHS.tolist()]
    assert whole(summary, "recorded_differs")["count"] == sum(policy[3:]) - 1
    assert whole(summary, "recorded_differs")["total"] == 0
    assert whole(summary, "kept")["mean"] == 1
    values = recorded(rollouts(tokens=False)).to_pylist()
    values[5], values[6] = None, float("inf")
    rows = rollouts(tokens=False).append_column("advantage", pa.array(values))
    assert whole(summary_of(rows), "recorded_differs")["count"] == ROWS - 2
    nothing = table.append_column("dumped_advantages", lists([[]] * ROWS))
    assert summary_of(nothing)["recorded"].endswith("not compared: no number for a kept token")


def test_a_number_a_response_is_that_of_its_tokens():
    table = rollouts()
    rows = recorded(rollouts(tokens=False))
    summary = summary_of(table.append_column("dumped_advantage", rows))
    assert summary["recorded"].endswith("equal")
    assert whole(summary, "recorded_differs")["count"] == summary["tokens"]["policy"]


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("choice", ["none", "adv"])
def test_a_choice_of_the_column(choice, tokens):
    table = rollouts(tokens=tokens)
    right = recorded(table)
    table = table.append_column("dumped_advantages", flipped(right, *range(ROWS)))
    table = table.append_column("adv", right)
    summary = summary_of(table, recipe=Recipe(estimator="grpo", columns={"advantages": choice}))
    text = summary.get("recorded")
    assert text == {"none": None, "adv": "recorded advantages (`adv`): equal"}[choice]


@pytest.mark.parametrize(
    ("name", "column"), [("returns", "right"), ("advantages", "text"), ("advantage", "reward")]
)
def test_other_columns_are_no_recorded_advantages(name, column):
    table = rollouts()
    kinds = {"right": recorded(table), "text": pa.array(["a"] * ROWS), "reward": table["reward"]}
    table = table.append_column(name, kinds[column])
    columns = {"reward": "advantage"} if column == "reward" else {}
    assert "recorded" not in summary_of(
        table, recipe=Recipe(estimator="grpo", columns=columns, replace=True)
    )


def test_what_rlpost_wrote_is_none_and_verify_accepts_what_it_replaced(tmp_path):
    """The output has no longer the column that the run compared."""
    table = rollouts()
    path, out, again = (tmp_path / f"{name}.parquet" for name in ("in", "out", "again"))
    wrong = flipped(recorded(table), *range(ROWS))
    pq.write_table(table.append_column("advantages", wrong), path)
    replacing = GRPO.model_copy(update={"replace": True})
    first = rlpost.advantages(path, out, replacing)
    assert whole(first, "recorded_differs")["total"] > ROWS
    assert rlpost.verify(out).ok
    assert "recorded" not in rlpost.advantages(out, again, replacing)
    kept = tmp_path / "kept.parquet"
    pq.write_table(table.append_column("dumped_advantages", wrong), path)
    rlpost.advantages(path, kept, GRPO)
    assert rlpost.verify(kept).ok
    assert "recorded" in rlpost.advantages(kept, again, replacing, Options(overwrite=True))
