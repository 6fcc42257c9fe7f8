"""The learning signal of a summary: by hand, by step and domain, and in parts that add up."""

import numpy as np
import polars as pl
import pytest

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


def test_groups_are_counted_by_what_they_teach():
    groups = summary_of(frame())["signal"]["groups"]
    assert groups == {
        "count": 4,
        "with_signal": 1,
        "equal_rewards": 2,
        "all_pass": 1,
        "none_pass": 1,
        "pass_threshold": 1.0,
    }


def test_the_threshold_of_a_pass_is_that_of_the_recipe():
    summary = summary_of(frame(), pass_threshold=2.0)
    assert summary["pass_rate"] == 0
    assert summary["signal"]["groups"]["all_pass"] == 0
    assert summary["signal"]["groups"]["none_pass"] == 2


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_steps_and_domains_add_up_to_the_whole(estimator):
    summary = summary_of(frame(), estimator=estimator)
    for table in ("steps", "domains"):
        for name, count in summary["signal"]["groups"].items():
            if name != "pass_threshold" and count is not None:
                parts = [row["signal"]["groups"][name] for row in summary[table]]
                assert sum(parts) == count, (table, name)
        for sign in ("positive", "negative", "zero"):
            for name in ("tokens", "responses"):
                parts = [row["signal"]["tokens"][sign][name] for row in summary[table]]
                assert sum(parts) == summary["signal"]["tokens"][sign][name]


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
    edges, counts = (np.array(summary["signal"]["histogram"][key]) for key in ("edges", "counts"))
    assert len(edges) == len(counts) + 1 <= 33
    assert np.all(np.diff(edges) == edges[1] - edges[0])
    assert counts.sum() == len(values)
    assert counts[0] > 0 < counts[-1]
    away = np.nextafter(np.abs(values), np.float32(np.inf)) * np.sign(values)
    assert (np.histogram(away, edges)[0] == counts).all()


MASKED = {"drop_equal_rewards": True, "drop_single": True, "drop_longer": 4}


def test_what_masks_newly_drop_adds_up():
    masked = summary_of(frame(), **MASKED)["masked"]
    assert {name: (one["responses"], one["new"]) for name, one in masked.items()} == {
        "nonfinite": (0, 0),
        "longer": (2, 2),  # the third response of each group of three
        "equal_rewards": (5, 4),
        "single": (1, 1),
        "all": (7, 7),
    }


CAUSES = {
    "All rewards are 0.5": {"a": ([0.5, 0.5], 0, "x"), "b": ([0.5, 0.5], 0, "x")},
    "`prompt_id`": {"a": ([0.5], 0, "x"), "b": ([1.0], 0, "x")},
    "1 all pass, 1 none": {"a": ([0.5, 0.5], 0, "x"), "b": ([1.0, 1.0], 0, "x")},
}


@pytest.mark.parametrize("cause", CAUSES)
def test_no_signal_at_all_has_a_likely_cause(cause):
    summary = summary_of(frame(CAUSES[cause]))
    assert cause in summary["signal"]["no_signal"]["cause"]
    assert len(summary["errors"]) == 1
    assert summary_of(frame())["signal"]["no_signal"] is None
