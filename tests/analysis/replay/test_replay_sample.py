"""The sample of a search: groups of whole steps, with the numbers that they have in the steps."""

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from replay_trainer import rollouts

import rlpost
from rlpost.analysis.replay.compute import Replayer
from rlpost.analysis.replay.input_columns import NamedColumns
from rlpost.analysis.replay.rollouts import Rollouts, read
from rlpost.analysis.replay.sample import sampled
from rlpost.analysis.replay.search import search
from rlpost.io.parquet.source import TableSource
from rlpost.pipeline.coupling import coupling_of

TOKENS = 500
RECIPES = (
    ("verl", "grpo"),
    ("verl", "gae"),
    ("verl", "rloo"),
    ("verl", "reinforce_plus_plus_baseline"),
    ("openrlhf", "reinforce"),
    ("slime", "gspo"),
    ("prime-rl", "opo"),
)


def recorded(table: pa.Table, recipe: rlpost.Recipe) -> Rollouts:
    own = recipe.model_copy(update={"emit": ("advantages",)})
    return read(TableSource(rlpost.enrich(table, own)[0]), NamedColumns.of({}), None, 10**8)


def test_groups_have_the_numbers_of_their_steps():
    whole = recorded(rollouts(3, responses=240), rlpost.preset("verl", estimator="grpo"))
    sample = sampled(whole, TOKENS)
    assert sample.around is not None
    assert len(sample) < len(sample.around) < len(whole)
    parts, steps, scopes = Replayer(sample), Replayer(sample.around), set()
    tokens = np.isin(np.repeat(sample.around.rows, sample.around.lengths), sample.rows)
    for preset, estimator in RECIPES:
        recipe = rlpost.preset(preset, estimator=estimator, kl_coef=0.1)
        (part,), resolved = parts.tried(recipe, ["advantages"])
        (step,), _ = steps.tried(recipe, ["advantages"])
        scopes.add(coupling_of(resolved).scope)
        assert np.array_equal(part.difference.computed, step.difference.computed[tokens])
    assert {"group", "batch"} <= scopes


def test_sample_has_rows_of_every_kind():
    table = rollouts(4, responses=240)
    table = table.append_column("truncated", pa.array(np.arange(len(table)) % 50 == 49))
    sample = sampled(recorded(table, rlpost.preset("verl", estimator="grpo")), TOKENS)
    assert len(np.unique(sample.steps.codes("truncated"))) == len(
        np.unique(sample.codes("truncated"))
    )
    groups = np.bincount(np.unique(sample.groups, return_inverse=True)[1])
    assert (groups == 1).any()
    assert (groups > 1).any()
    assert not sample.mask.all()
    assert sample.lengths.max() == sample.steps.lengths.max()


def test_part_of_a_step_has_a_warning():
    table = rlpost.enrich(rollouts(5, steps=1), rlpost.preset("verl", estimator="grpo"))[0]
    part = read(TableSource(table), NamedColumns.of({}), None, TOKENS // 2)
    assert part.scope == "whole prompt groups"
    assert sampled(part, TOKENS // 4).around is None
    assert "statistics of a batch" in part.warnings[0]


def test_search_adds_the_groups_in_which_its_recipe_differs(monkeypatch: pytest.MonkeyPatch):
    rewards = np.tile([0.0, 1.0, 0.2, 0.9, 0.1, 0.8, 0.0, 1.0], 60).astype(np.float32)
    rewards[-48:] = np.tile([1.0, 0, 0, 0, 0, 0, 0, 0], 6)  # beyond the bound of advantages
    count, length = len(rewards), 6
    table = pa.table(
        {
            "step": np.zeros(count, np.int64),
            "prompt_id": np.arange(count) // 8,
            "reward": rewards + np.repeat(np.linspace(0, 0.3, count // 8), 8).astype(np.float32),
            "response_mask": pa.array([[1] * length] * count, pa.list_(pa.uint8())),
        }
    )
    recipe = rlpost.preset("verl", estimator="grpo", advantage_clip=1.5)
    small = partial(sampled, tokens=TOKENS)
    monkeypatch.setattr("rlpost.analysis.replay.search.sampled", small)
    whole = recorded(table, recipe)
    found = search(whole, tolerance=1e-4, given={"estimator": "grpo"})
    assert small(whole).rows.max() < count - 48
    assert 1.5 in (found.recipe.advantage_clip, *(found.recipe.reward_clip or ()))
    assert found.facts["reproduces"]
    assert found.facts["sample"]["responses"] < count
