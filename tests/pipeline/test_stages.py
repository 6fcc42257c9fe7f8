"""The pipeline through `enrich` against the references: any recipe on any rollouts."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from stage_runs import agrees
from strategies import recipes, rollouts


@st.composite
def some_roles(draw):
    """Rollouts with and without process rewards and reference log-probs."""
    rows = draw(rollouts())
    lacks = draw(st.sampled_from([[], ["token_rewards"], ["token_rewards"], ["ref"]]))
    return [replace(r, **dict.fromkeys(lacks)) for r in rows]


@settings(max_examples=150)
@given(some_roles(), recipes())
def test_the_pipeline_is_the_composition_of_its_stages(rows, options):
    if rows[0].ref is None:
        options = {k: v for k, v in options.items() if k not in ("kl_coef", "kl_target")}
    if options.get("estimator") == "max_rl":  # divides by a mean, which is 0 after these
        centred = ("norm_mean", "norm_std", "whiten_rewards")
        options = {k: v for k, v in options.items() if k not in centred}
    agrees(rows, **options)
