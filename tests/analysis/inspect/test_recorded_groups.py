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


def test_those_of_the_groups_are_statistics(tmp_path):
    facts = checked(with_advantages(rollouts()), tmp_path)[0]
    assert (facts.advantages["column"], facts.advantages["recorded"]) == ("dumped_advantages", True)
    assert facts.whole("advantage")["count"] == 240


@pytest.mark.parametrize(
    ("recipe", "key", "option"),
    [
        ({"columns": {"group": "prompt"}}, "groups by `prompt`", "--map group=prompt"),
        ({"columns": {"group": "data_source"}}, "groups by `data_source`",
         "--map group=data_source"),
        ({"numerics": {"batch": "all"}}, "groups over all steps", "--map batch=none"),
    ],
)  # fmt: skip
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


def moved(rows, off):
    """Advantages of groups by `prompt`, of which those of some rows are off by a deviation.

    Each of the 24 groups by `prompt` has four rows, next to each other.
    """
    table = with_advantages(rollouts(), columns={"group": "prompt"})
    values = table["dumped_advantages"].combine_chunks()
    shares = np.where(rows > INDEX, off * np.std([x[0] for x in values.to_pylist()]), 0)
    numbers = values.values.to_numpy() + np.repeat(shares, [1 + i % 4 for i in INDEX])
    return with_lists(table, pa.ListArray.from_arrays(values.offsets, pa.array(numbers)))


def with_lists(table, lists):
    return table.set_column(AT, "dumped_advantages", lists)


def in_order(order):
    """Advantages of other rows."""
    table = with_advantages(rollouts(response_mask=[[1, 1]] * ROWS))
    lists = table["dumped_advantages"].combine_chunks()
    return with_lists(table, lists.take(pa.array(order)))


def with_one_flipped():
    table = with_advantages(rollouts())
    values = table["dumped_advantages"].to_pylist()
    values[5] = [-x for x in values[5]]
    return with_lists(table, pa.array(values))


def with_other_sign():
    table = with_advantages(rollouts())
    at = table.schema.get_field_index("reward")
    return table.set_column(at, "reward", pa.array(-table["reward"].to_numpy()))


def with_penalties():
    """Equal rewards have other advantages then, but of no other group."""
    rng = np.random.default_rng(1)
    old = [list(-rng.exponential(1.0, 1 + i % 4)) for i in INDEX]
    ref = [list(-rng.exponential(1.0, 1 + i % 4)) for i in INDEX]
    accuracy = rng.integers(0, 2, ROWS).astype(float)
    table = rollouts(old_log_probs=old, ref_log_probs=ref, reward=accuracy)
    return with_advantages(table, kl_coef=0.1, numerics={"kl_credit": "response"})


def without_baseline(estimator):
    """Whitening makes the mean of the whole batch 0."""
    table = rollouts(response_mask=[[1, 1]] * ROWS)
    return with_advantages(table, estimator=estimator, kl_coef=0.0)


OTHER_ROWS = "correlation within groups is"
TABLES = {
    "of the groups": (with_advantages(rollouts()), None),
    "means of nearly 0": (moved(ROWS, 0.0099), "fit"),
    "means of 0.01 deviations": (moved(ROWS, 0.0101), None),
    "two of 24 groups off": (moved(8, 1.0), "fit"),
    "three of 24 groups off": (moved(12, 1.0), None),
    "of the row before": (in_order(np.roll(INDEX, 1)), OTHER_ROWS),
    "of the group before": (in_order(np.roll(INDEX, 8)), OTHER_ROWS),
    "of any rows": (in_order(np.random.default_rng(3).permutation(ROWS)), OTHER_ROWS),
    "one flipped sign": (with_one_flipped(), None),
    "the other sign": (with_other_sign(), f"{OTHER_ROWS} -0.97: they are of other rows"),
    "penalties": (with_penalties(), None),
    "reinforce_pp": (without_baseline("reinforce_pp"), None),
    "reinforce": (without_baseline("reinforce"), None),
}
"""Advantages, and what the finding says; None: there is none."""


@pytest.mark.parametrize("case", TABLES)
def test_those_of_no_group_are_a_finding(case, tmp_path):
    table, text = TABLES[case]
    _, finding, not_run = checked(table, tmp_path)
    assert not_run is None
    assert (finding is None) if text is None else (text in finding.text and finding.rows)


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
