"""The columns that each pass reads, and runs that write one number per response."""

import pyarrow.parquet as pq
import pytest
from runs import rollout, run, save

import rlpost
from rlpost import api
from rlpost.errors import UsageError
from rlpost.recipe.recipe import Recipe

LOG_PROBS = {"old_log_probs", "ref_log_probs"}


def critic():
    """Rollouts with values."""
    return rollout().append_column("values", rollout()["old_log_probs"])


@pytest.mark.parametrize(
    ("options", "again"),
    [
        ({"estimator": "gae", "whiten_advantages": True}, True),
        ({"estimator": "rloo"}, False),
        ({"estimator": "rloo", "emit": ("advantages", "token_level_rewards")}, True),
        ({"estimator": "gae", "whiten_rewards": True}, True),
    ],
    ids=["whitening", "score", "emitted", "rewards"],
)
def test_a_pass_after_statistics_reads_log_probs_if_it_needs_their_tokens(tmp_path, options, again):
    source, recipe = save(critic(), tmp_path / "in.parquet"), Recipe(**options, kl_coef=0.1)
    passes = api.plan([source], recipe).passes(recipe.emit or ("advantages", "returns"))
    assert {*passes[1].columns} >= LOG_PROBS
    assert ({*passes[2].columns} >= LOG_PROBS) is again


# One number per response


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "max_rl", "raw", "reinforce_pp"])
def test_a_response_advantage_is_that_of_each_of_its_tokens(tmp_path, name):
    source, out = save(critic(), tmp_path / "in.parquet", rows=5), tmp_path / "out.parquet"
    words = ("--estimator", name, "--drop-equal-rewards", "--whiten-advantages", "--overwrite")
    both = ("--emit", "response_advantage,advantages")
    assert run("advantages", source, out, *words, *both, "-q").code == 0
    table = pq.read_table(out)
    for one, tokens, mask in zip(
        table["response_advantage"].to_pylist(),
        table["advantages"].to_pylist(),
        table["response_mask"].to_pylist(),
        strict=True,
    ):
        assert tokens == [one * m for m in mask]
    again = run("advantages", source, out, *words, "--emit", "response_advantage")
    assert again.code == 0, again.err
    assert pq.read_table(out)["response_advantage"].equals(table["response_advantage"])
    assert run("verify", out).code == 0


def test_a_run_without_tokens_reads_none_in_its_last_pass(tmp_path):
    source = save(critic(), tmp_path / "in.parquet")
    names = ("response_advantage", "group_mean")
    plan = api.plan([source], Recipe(emit=names))
    assert [step.columns for step in plan.passes(names)][1:] == [()]
    _, summary = rlpost.enrich(rollout(), Recipe(emit=names))
    _, usual = rlpost.enrich(rollout())
    assert summary["facts"]["advantage"] == usual["facts"]["advantage"]


@pytest.mark.parametrize(
    "asked", [{"kl_coef": 0.1}, {"kl_estimator": "k3"}, {"emit": ("advantages", "kl")}]
)
def test_kl_is_measured_and_its_columns_are_read_only_if_it_is_asked_for(tmp_path, asked):
    source = save(critic(), tmp_path / "in.parquet")
    log_probs = {"old_log_probs", "ref_log_probs"}
    for options, read in (({}, set()), (asked, log_probs)):
        passes = api.plan([source], Recipe(**options)).passes()
        assert {x for step in passes for x in step.columns} & log_probs == read
        summary = rlpost.enrich(rollout(), Recipe(**options))[1]
        assert (summary["kl"] is not None) == ("kl" in summary["facts"]) == bool(read)
        assert log_probs & {*summary["roles"]} == read


def test_an_advantage_per_token_is_no_response_advantage():
    recipe = Recipe(estimator="gae", emit=("response_advantage",))
    with pytest.raises(UsageError, match="one per token with this recipe; --emit advantages,ret"):
        rlpost.enrich(critic(), recipe)
