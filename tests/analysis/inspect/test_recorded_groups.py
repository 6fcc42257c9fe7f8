"""Advantages that a trainer recorded: their statistics, and the groups or reward they are of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost import Recipe
from rlpost.analysis.inspect.facts import inspect

NAME, ROWS = "recorded_advantages", 96
INDEX = np.arange(ROWS)
AT = 8  # the place of `dumped_advantages`


def rollouts(**columns):
    """Two steps of six prompts of eight responses; samples 0 to 3 are of one domain."""
    rng = np.random.default_rng(8)
    accuracy, style = rng.integers(0, 2, ROWS).astype(float), rng.normal(size=ROWS).round(1)
    table = {
        "step": INDEX // 48,
        "prompt_id": [f"p{i // 8 % 6}" for i in INDEX],
        "prompt": [f"task {i // 8 % 6} of {i % 8 // 4}" for i in INDEX],
        "data_source": ["math" if i % 3 else "code" for i in INDEX],
        "accuracy": accuracy,
        "style": style,
        "reward": accuracy + style,
        "response_mask": [[1] * (1 + i % 4) for i in INDEX],
    }
    return pa.table({**table, **columns})


def with_advantages(table, **recipe):
    """Return the table with advantages of a recipe as a trainer records them."""
    recipe = Recipe(**{"estimator": "grpo", **recipe})
    return table.append_column("dumped_advantages", rlpost.enrich(table, recipe)[0]["advantages"])


def checked(table, tmp_path, **options):
    """Return the facts, the finding or None, and why the check did not run or None."""
    pq.write_table(table, tmp_path / "in.parquet")
    facts = inspect(tmp_path / "in.parquet", **options)
    (run,) = (run for run in facts.checks if run.name == NAME)
    return facts, next((x for x in facts.findings if x.check == NAME), None), run.not_run


def test_those_of_the_groups_are_no_finding(tmp_path):
    facts, finding, not_run = checked(with_advantages(rollouts()), tmp_path)
    assert (finding, not_run) == (None, None)
    assert (facts.advantages["column"], facts.advantages["recorded"]) == ("dumped_advantages", True)
    assert facts.whole("advantage")["count"] == 240


@pytest.mark.parametrize(
    ("recipe", "key", "option"),
    [
        ({"columns": {"group": "prompt"}}, "groups by `prompt`", "--map group=prompt"),
        (
            {"columns": {"group": "data_source"}},
            "groups by `data_source`",
            "--map group=data_source",
        ),
        ({"numerics": {"batch": "all"}}, "groups over all steps", "--map batch=none"),
    ],
)
@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_those_of_another_key_name_it(recipe, key, option, estimator, tmp_path):
    table = with_advantages(rollouts(), estimator=estimator, **recipe)
    _, finding, _ = checked(table, tmp_path)
    means = "have other means than 0 in groups by `prompt_id`"
    order = " of 12 groups by `prompt_id` ("
    assert (means if "steps" in key else order) in finding.text
    assert finding.text.endswith(f"; {key} fit")
    assert (finding.option, finding.level) == (option, "warning")
    assert finding.columns == ("prompt_id", "reward", "dumped_advantages")


@pytest.mark.parametrize(
    ("rows", "off", "finds"),
    [(ROWS, 0.0099, True), (ROWS, 0.0101, False), (8, 1.0, True), (12, 1.0, False)],
)
def test_groups_fit_if_nearly_all_have_a_mean_of_nearly_0(rows, off, finds, tmp_path):
    """Each of the 24 groups by `prompt` has four rows, next to each other."""
    table = with_advantages(rollouts(), columns={"group": "prompt"})
    values = table["dumped_advantages"].combine_chunks()
    moved = values.values.to_numpy() + np.repeat(
        np.where(rows > INDEX, off * np.std([x[0] for x in values.to_pylist()]), 0),
        [1 + i % 4 for i in INDEX],
    )
    lists = pa.ListArray.from_arrays(values.offsets, pa.array(moved))
    table = table.drop_columns(["dumped_advantages"]).append_column("dumped_advantages", lists)
    _, finding, _ = checked(table, tmp_path)
    assert (finding is not None) == finds


def test_those_of_other_rows_are_a_finding(tmp_path):
    table = with_advantages(rollouts(response_mask=[[1, 1]] * ROWS))
    right = table["dumped_advantages"].combine_chunks()
    for order in (np.roll(INDEX, 1), np.roll(INDEX, 8), np.random.default_rng(3).permutation(ROWS)):
        other = table.set_column(AT, "dumped_advantages", right.take(pa.array(order)))
        _, finding, _ = checked(other, tmp_path)
        assert "correlation within groups is" in finding.text
        assert len(finding.rows) == 5


def test_one_flipped_sign_is_no_finding(tmp_path):
    table = with_advantages(rollouts())
    values = table["dumped_advantages"].to_pylist()
    values[5] = [-x for x in values[5]]
    flipped = table.set_column(AT, "dumped_advantages", pa.array(values))
    assert checked(flipped, tmp_path)[1] is None


def test_a_reward_of_the_other_sign_is_a_finding(tmp_path):
    table = with_advantages(rollouts())
    at = table.schema.get_field_index("reward")
    table = table.set_column(at, "reward", pa.array(-table["reward"].to_numpy()))
    _, finding, _ = checked(table, tmp_path)
    assert "correlation within groups is -0.97: they are of other rows" in finding.text
    assert "in 12 of 12 groups" in finding.text


def test_penalties_in_the_reward_contradict_no_key(tmp_path):
    """Equal rewards have other advantages then, but of no other group."""
    rng = np.random.default_rng(1)
    old = [list(-rng.exponential(1.0, 1 + i % 4)) for i in INDEX]
    ref = [list(-rng.exponential(1.0, 1 + i % 4)) for i in INDEX]
    accuracy = rng.integers(0, 2, ROWS).astype(float)
    table = rollouts(old_log_probs=old, ref_log_probs=ref, reward=accuracy)
    table = with_advantages(table, kl_coef=0.1, numerics={"kl_credit": "response"})
    _, finding, not_run = checked(table, tmp_path)
    assert (finding, not_run) == (None, None)


@pytest.mark.parametrize("estimator", ["reinforce_pp", "reinforce"])
def test_advantages_without_a_baseline_of_groups_are_no_finding(estimator, tmp_path):
    """Whitening makes the mean of the whole batch 0."""
    table = rollouts(response_mask=[[1, 1]] * ROWS)
    table = with_advantages(table, estimator=estimator, kl_coef=0.0)
    _, finding, not_run = checked(table, tmp_path)
    assert (finding, not_run) == (None, None)


def test_what_the_check_cannot_judge(tmp_path):
    noise = [list(np.arange(1.0 + i % 4)) for i in INDEX]
    tokens = rollouts(dumped_advantages=noise)
    assert checked(tokens, tmp_path)[2] == "advantages differ between the tokens of a response"
    table = with_advantages(rollouts(), columns={"group": "prompt"})
    ignored = checked(table, tmp_path, columns_map={"advantages": "none"})
    assert ignored[0].advantages is None
    assert ignored[2] == "no column for recorded advantages"
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "out.parquet", Recipe(replace=True))
    facts = inspect(tmp_path / "out.parquet", columns_map={"group": "prompt_id"})
    assert (facts.advantages["column"], facts.advantages["recorded"]) == ("advantages", False)
