"""The learning signal of a summary: by hand, by step and domain, and in parts that add up."""

import numpy as np
import polars as pl
import pytest
from summaries import errors_of, whole

import rlpost

# reward of the responses of each group, and its step and domain
GROUPS = {
    "passes": ([1.0, 1.0], 0, "math"),
    "fails": ([0.0, 0.0, 0.0], 0, "code"),
    "learns": ([0.0, 1.0, 1.0], 1, "math"),
    "alone": ([1.0], 1, "code"),
}


def frame(groups=GROUPS):
    rows = [
        (name, step, domain, reward, [1] * (2 + i), [0.5] * (2 + i))
        for name, (rewards, step, domain) in groups.items()
        for i, reward in enumerate(rewards)
    ]
    names = ["prompt_id", "step", "domain", "reward", "response_mask", "values"]
    return pl.DataFrame(rows, names, orient="row")


def summary_of(data, **options):
    return rlpost.enrich(data, rlpost.Recipe(**options))[1]


@pytest.mark.parametrize("estimator", ["grpo", "gae", "raw"])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e9])
def test_the_histogram_has_each_advantage_other_than_0(estimator, scale):
    rng = np.random.default_rng(3)
    groups = {
        f"p{i}": ((rng.normal(0, 1, 5) * scale).round(14).tolist(), i % 2, "x") for i in range(40)
    }
    data = frame({**groups, "zeros": ([0.0] * 4, 0, "x")})
    table, summary = rlpost.enrich(data, rlpost.Recipe(estimator=estimator))
    values = table["advantages"].explode().to_numpy()
    values = values[values != 0]
    profile = summary["profiles"]["advantage"]
    edges, counts = (np.array(profile[key]) for key in ("edges", "counts"))
    assert len(edges) == len(counts) + 1 <= 33
    assert np.all(np.diff(edges) == edges[1] - edges[0])
    assert counts.sum() == len(values)
    assert counts[0] > 0 < counts[-1]
    away = np.nextafter(np.abs(values), np.float32(np.inf)) * np.sign(values)
    assert (np.histogram(away, edges)[0] == counts).all()


CAUSES = {
    "All rewards are 0.5": {"a": ([0.5, 0.5], 0, "x"), "b": ([0.5, 0.5], 0, "x")},
    "`prompt_id`": {"a": ([0.5], 0, "x"), "b": ([1.0], 0, "x")},
    "1 all pass, 1 none": {"a": ([0.5, 0.5], 0, "x"), "b": ([1.0, 1.0], 0, "x")},
}


@pytest.mark.parametrize("cause", CAUSES)
def test_no_signal_at_all_has_a_likely_cause(cause):
    summary = summary_of(frame(CAUSES[cause]))
    assert summary["verdict"]["level"] == "error"
    assert summary["verdict"]["text"].startswith("nothing to learn: all ")
    assert cause in summary["verdict"]["cause"]
    assert len(errors_of(summary)) == 1
    assert summary_of(frame())["verdict"]["level"] == "ok"


def test_what_whitening_rounds_is_no_signal():
    """Six of ten groups have equal rewards; the mean of all advantages is not quite 0."""
    rewards = [0.1, 0.2, 0.3, 0.1] * 4 + [0.7] * 24
    rows = {
        "prompt_id": np.arange(40) // 4,
        "reward": rewards,
        "response_mask": [[1] * 5] * 40,
    }
    table, summary = rlpost.enrich(pl.DataFrame(rows), rlpost.Recipe(whiten_advantages=True))
    assert 0 < table["advantages"][30][0] ** 2 < 1e-20
    assert (summary["groups_with_signal"], summary["groups"]) == (4, 10)
    assert whole(summary, "advantage_zero")["mean"] == 0.6
    assert sum(summary["profiles"]["advantage"]["counts"]) == 16 * 5


NOISE = {
    "float32": [float(np.float32(0.99999994)), 1.0, 1.0, 1.0],
    "a sum": [0.1 + 0.2, 0.3, 0.3, 0.3],
    "large": [1e6 + 0.4, 1e6, 1e6, 1e6],
    "below 0": [-0.7, -0.7, -0.7 - 2e-16, -0.7],
}
RELATIVE = ["grpo", "dr_grpo", "rloo", "opo", "gpg", "max_rl", "grpo_passk", "hierarchical_grpo"]


@pytest.mark.parametrize("estimator", RELATIVE)
@pytest.mark.parametrize("preset", [None, "trl"])
@pytest.mark.parametrize("noise", NOISE)
def test_rewards_that_differ_by_rounding_are_equal(noise, preset, estimator):
    """Counts and masks see no signal; without a preset, which divides as its framework, A is 0."""
    groups = {"noise": (NOISE[noise], 0, "x"), "signal": ([0.0, 1.0, 0.5, 0.25], 0, "x")}
    options = {"estimator": estimator}
    if estimator == "hierarchical_grpo":
        options["options"] = {"episode_domains": ("x",)}
    recipe = rlpost.preset(preset, **options) if preset else rlpost.Recipe(**options)
    table, summary = rlpost.enrich(frame(groups), recipe)
    assert (summary["groups_with_signal"], whole(summary, "equal_rewards")["total"]) == (1, 1)
    assert preset or not any(table["advantages"][:4].list.max())
    recipe = recipe.model_copy(update={"drop_equal_rewards": True})
    kept = rlpost.enrich(frame(groups), recipe)[0]["sample_mask"].to_list()
    assert kept == [False] * 4 + [True] * 4
    passing = whole(rlpost.enrich(frame(groups), recipe)[1], "all_pass")["total"]
    assert passing == (noise in ("float32", "large"))


@pytest.mark.parametrize("preset", [None, "trl", "nemo-rl"])
def test_components_that_cancel_are_no_signal(preset):
    """A group whose components add up to 0 is dropped, and not one whose sum is constant."""
    groups = {
        "cancel": ([1.0, 0.0, 1.0, 0.0], [0.1, 0.3, 0.1, 0.3]),
        "constant sum": ([1.0, 1.0, 0.0, 0.0], [0.2, 0.2, 1.2, 1.2]),
        "signal": ([1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.0]),
    }
    first, second = (np.concatenate([x[i] for x in groups.values()]) for i in (0, 1))
    rows = {"prompt_id": np.repeat([*groups], 4), "a": first, "b": second, "length": [4] * 12}
    data = pl.DataFrame(rows)
    options = {"estimator": "gdpo", "reward_components": ("a", "b"), "component_weights": (1, 1)}
    options |= {"drop_equal_rewards": True, "options": {"batch_over": "responses"}}
    recipe = rlpost.preset(preset, **options) if preset else rlpost.Recipe(**options)
    table, _ = rlpost.enrich(data, recipe)
    assert table["sample_mask"].to_list() == [False] * 8 + [True] * 4
    del options["drop_equal_rewards"]
    assert rlpost.enrich(data, rlpost.Recipe(**options))[1]["groups_with_signal"] == 1
    options["component_weights"] = (1, 2)
    assert rlpost.enrich(data, rlpost.Recipe(**options))[1]["groups_with_signal"] == 3


@pytest.mark.parametrize("unit", ["row", "rollout"])
def test_a_loss_counts_the_groups_of_its_advantages(unit):
    data = frame().with_columns(rollout_id=pl.int_range(pl.len()) // 2, reward=0.0)
    data = data.with_columns(reward=(pl.col("rollout_id") % 3 == 0).cast(pl.Float64))
    logs = pl.Series([[-0.5] * len(x) for x in data["response_mask"]])
    data = data.with_columns(log_probs=logs, old_log_probs=logs)
    recipe = rlpost.Recipe(unit=unit)
    loss, summary = rlpost.loss(data, recipe=recipe), rlpost.enrich(data, recipe)[1]
    for name in ("responses", "rollouts", "groups", "groups_with_signal"):
        assert loss[name] == summary[name], name
