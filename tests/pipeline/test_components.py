"""Reward components: the same numbers in advantages, inspect, compare and report, and in numpy."""

import numpy as np
import pyarrow as pa
import pytest
from runs import save
from summaries import parts, whole

import rlpost

NAMES = ("correct", "style", "format")
WEIGHTS = (1.0, -0.5, 2.0)
GROUPS, SIZE = 12, 6
ROWS = GROUPS * SIZE


def table(seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, ROWS)
    correct = (rng.random(ROWS) < 0.5) * 1.0
    form = np.where(np.arange(ROWS) < ROWS // 2, 0.2, rng.integers(0, 2, ROWS) / 5)
    return pa.table(
        {
            "prompt_id": [f"p{row // SIZE}" for row in range(ROWS)],
            "step": [row * 2 // ROWS for row in range(ROWS)],
            "correct": correct,
            "style": rng.normal(0, 3, ROWS) - correct,
            "format": form,
            "response_mask": [np.ones(length, np.uint8) for length in lengths],
        }
    )


TABLE = table()
COLUMNS = {name: TABLE[name].to_numpy() for name in NAMES}
GROUP = np.arange(ROWS) // SIZE


def recipe(estimator="grpo", **options):
    return rlpost.Recipe(
        estimator=estimator, reward_components=NAMES, component_weights=WEIGHTS, **options
    )


def by_group(values, function):
    return np.concatenate([function(values[group == GROUP]) for group in range(GROUPS)])


def scores(values):
    return by_group(values, lambda x: (x - x.mean()) / (x.std(ddof=1) + 1e-6) * (np.ptp(x) > 0))


def shares(parts, advantages):
    """cov(R_k, A) / cov(sum R_j, A), of responses."""
    covariances = [np.mean(part * (advantages - advantages.mean())) for part in parts]
    return np.array(covariances) / sum(covariances)


def correlations(summary, name):
    """Correlations of a component with the reward, and with each other component."""
    return {"reward": whole(summary, f"reward_correlation:{name}")["value"]} | {
        other: whole(summary, f"correlation:{pair}")["value"]
        for other in NAMES
        for pair in (f"{name},{other}", f"{other},{name}")
        if f"correlation:{pair}" in summary["facts"]
    }


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "reinforce_pp", "gdpo"])
def test_the_summary_has_the_numbers_of_numpy(estimator):
    enriched, summary = rlpost.enrich(TABLE, recipe(estimator))
    advantages = np.array([row[0] for row in enriched["advantages"].to_pylist()])
    read = scores if estimator == "gdpo" else (lambda values: values)
    weighted = [w * read(COLUMNS[name]) for name, w in zip(NAMES, WEIGHTS, strict=True)]
    columns = {
        **COLUMNS,
        "reward": sum(w * COLUMNS[name] for name, w in zip(NAMES, WEIGHTS, strict=True)),
    }
    want = shares(weighted, advantages)
    kind = "component:"
    assert [x.removeprefix(kind) for x in summary["facts"] if x.startswith(kind)] == [*NAMES]
    for name, share in zip(NAMES, want, strict=True):
        numbers, values = whole(summary, f"component:{name}"), COLUMNS[name]
        assert numbers["mean"] == pytest.approx(values.mean())
        assert numbers["std"] == pytest.approx(values.std(ddof=1))
        spread = (numbers["min"], numbers["max"], numbers["count"])
        assert spread == (values.min(), values.max(), ROWS)
        for other, value in correlations(summary, name).items():
            assert value == pytest.approx(np.corrcoef(values, columns[other])[0, 1])
        assert {*correlations(summary, name)} == {"reward", *NAMES} - {name}
        contribution = whole(summary, f"advantage_share:{name}")
        assert contribution == {"count": ROWS, "value": pytest.approx(share, rel=1e-5)}
        equal = sum(np.ptp(values[group == GROUP]) == 0 for group in range(GROUPS))
        assert whole(summary, f"equal_component:{name}")["total"] == equal
    assert whole(summary, "equal_component:format")["total"] == GROUPS // 2
    contributions = [whole(summary, f"advantage_share:{name}")["value"] for name in NAMES]
    assert sum(contributions) == pytest.approx(1)
    for step in parts(summary, "step"):
        assert step["component:style"]["count"] == ROWS // 2
        assert step["equal_component:format"]["count"] == GROUPS // 2


def test_inspect_reads_the_sum_of_the_components(tmp_path):
    path = save(TABLE, tmp_path / "in.parquet")
    summary = rlpost.advantages(path, tmp_path / "out.parquet", recipe("grpo"))
    weights = dict(zip(NAMES, WEIGHTS, strict=True))
    for name in ("in", "out"):
        facts = rlpost.inspect(tmp_path / f"{name}.parquet", reward_components=weights)
        assert [x.check for x in facts.findings if x.check == "missing_roles"] == []
        for measure in ("reward", "equal_rewards"):
            assert facts.whole(measure)["mean"] == pytest.approx(whole(summary, measure)["mean"])


def test_missing_components_are_left_out_of_their_own_numbers(tmp_path):
    values = COLUMNS["style"].copy()
    values[::5] = np.nan
    some = TABLE.set_column(3, "style", pa.array(values, from_pandas=True))
    numerics = rlpost.Numerics(missing_components="skip")
    for estimator in ("grpo", "gdpo"):
        summary = rlpost.enrich(some, recipe(estimator, numerics=numerics))[1]
        scored = ~np.isnan(values)
        style = whole(summary, "component:style")
        assert style["count"] == scored.sum()
        assert style["mean"] == pytest.approx(values[scored].mean())
        want = np.corrcoef(values[scored], COLUMNS["correct"][scored])[0, 1]
        assert correlations(summary, "style")["correct"] == pytest.approx(want)
        contributions = [whole(summary, f"advantage_share:{name}")["value"] for name in NAMES]
        assert sum(contributions) == pytest.approx(1)
    facts = rlpost.inspect(save(some, tmp_path / "a.parquet"), reward_components=NAMES)
    assert "nonfinite" in [one.check for one in facts.findings]


@pytest.mark.parametrize("names", [("reward", "a/b", "b"), ("a/b", "b", "reward")])
def test_a_component_may_have_the_name_of_a_role(names, tmp_path):
    named = TABLE.rename_columns(["prompt_id", "step", "reward", "a/b", "b", "response_mask"])
    path = save(named, tmp_path / "a.parquet")
    summary = rlpost.advantages(
        path, tmp_path / "b.parquet", rlpost.Recipe(reward_components=names)
    )
    facts = rlpost.inspect(path, reward_components=names)
    assert facts.whole("reward") == whole(summary, "reward")
