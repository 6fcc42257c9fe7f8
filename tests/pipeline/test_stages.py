"""The pipeline through `enrich` against the references: as a whole, and stage by stage."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_runs import ROWS, TOKENS, agrees
from strategies import recipes, rollouts


@st.composite
def some_roles(draw):
    """Rollouts with and without process rewards and reference log-probs."""
    rows = draw(rollouts())
    lacks = draw(st.sampled_from([[], ["token_rewards"], ["token_rewards"], ["ref"]]))
    return [replace(r, **dict.fromkeys(lacks)) for r in rows]


@settings(max_examples=60)
@given(some_roles(), recipes())
def test_the_pipeline_is_the_composition_of_its_stages(rows, options):
    if rows[0].ref is None:
        options = {k: v for k, v in options.items() if k not in ("kl_coef", "kl_target")}
    if options.get("estimator") == "max_rl":  # divides by a mean, which is 0 after these
        centred = ("norm_mean", "norm_std", "whiten_rewards")
        options = {k: v for k, v in options.items() if k not in centred}
    agrees(rows, **options)


@pytest.mark.parametrize("batch", ["step", "step_domain", "all"])
@pytest.mark.parametrize("options", [{}, {"estimator": "reinforce_pp"}, {"length_weight": True}])
def test_what_a_batch_is(batch, options):
    agrees(ROWS, **options, numerics={"batch": batch})


@pytest.mark.parametrize(
    "options",
    [
        {"overlong_penalty": (4, 2, 0.5)},
        {"reward_clip": 0.6},
        {"kl_coef": 0.5},
        {"kl_coef": 0.5, "kl_estimator": "abs"},
        {"kl_coef": 0.5, "kl_estimator": "mse"},
        {"kl_coef": 0.5, "kl_estimator": "low_var_kl"},
        {"kl_coef": 0.5, "numerics": {"log_ratio_clamp": 0.5}},
        {"kl_coef": 0.5, "kl_target": (0.1, 5.0)},
        {"kl_coef": 0.5, "reward_clip": 0.3},
        {"whiten_rewards": True},
        {"whiten_advantages": True},
        {"whiten_advantages": True, "numerics": {"whiten_eps": 0.5}},
        {"advantage_clip": 0.25},
        {"difficulty_weight": True},
        {"length_weight": True},
        {"difficulty_weight": True, "length_weight": True},
        {"numerics": {"norm_eps": 0.5}},
    ],
    ids=str,
)
@pytest.mark.parametrize("estimator", ["raw", "dr_grpo", "grpo", "gae"])
def test_every_other_option_alone(options, estimator):
    agrees(TOKENS, **options, estimator=estimator)


# Options that exclude each other
