"""The sample of a search: groups of whole steps, with the numbers that they have in the steps."""

import numpy as np
import pyarrow as pa
from replay_faults import rollouts
from replay_runs import rollouts_of

import rlpost
from rlpost.analysis.replay.compute import Replayer
from rlpost.analysis.replay.rollouts import Rollouts
from rlpost.analysis.replay.sample import sampled
from rlpost.pipeline.needs import coupling_of

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
    return rollouts_of(rlpost.enrich(table, own)[0])


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
