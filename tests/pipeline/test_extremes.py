"""How far results may be from exact ones, at the ends of what dumps hold.

The reference is the slow float64 loop of reference.py on the same float32 inputs. Bounds are stated
in README: an outcome estimator is within 2 ulp of float32 of the reference or, where sums cancel,
within 1e-12 of the largest number that went into the sum; scans are within 1e-5 of the sum of the
absolute values that went into them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import reference_estimators as est
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import Response
from strategies import to_table
from summaries import warnings_of

from rlpost import Recipe, enrich
from rlpost.errors import DataError

ULP = 2.0**-23
SCAN = 1e-5
MAGNITUDES = (1e30, 1e15, 1.0, 1e-15, 1e-30)
EXACT = ("grpo", "dr_grpo", "rloo", "max_rl", "grpo_passk", "raw")


def group(rewards, tokens=1, name="p"):
    """One group of responses, all of one length."""
    return [Response(group=name, reward=float(np.float32(x)), mask=[1] * tokens) for x in rewards]


def advantages(rows, **options):
    table, summary = enrich(to_table(rows), Recipe(**options))
    return table, summary


def per_response(table):
    return [xs[0] for xs in table["advantages"].to_pylist()]


def within(got, want, scale):
    """Whether float32 results are those of float64: by ulps, or by what sums may cancel."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    bound = 2 * ULP * np.abs(want) + 1e-12 * scale + 1.5e-45
    assert (np.abs(got - want) <= bound).all(), float((np.abs(got - want) - bound).max())


extreme_rewards = st.one_of(
    st.sampled_from([s * x for x in MAGNITUDES for s in (1, -1)] + [0.0]),
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.floats(-1, 1, width=32),
)


# Rewards


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=20)
@given(rewards=st.lists(extreme_rewards, min_size=1, max_size=12))
@example(rewards=[1e30, -1e30, 1.0])
@example(rewards=[1e30] * 3)
@example(rewards=[1e-30, 0.0])
@example(rewards=[0.1] * 7)
def test_rewards_of_any_size_agree_with_the_reference(name, rewards):
    rows = group(rewards)
    found = per_response(advantages(rows, estimator=name)[0])
    own = [r.reward for r in rows]
    want, scale = expected(name, own), max(map(abs, own))
    if name in ("grpo", "grpo_passk"):
        scale = 1.0  # of what was divided by the deviation
    if name == "max_rl":  # where rewards of both signs cancel, so do the digits of what divides
        mean = math.fsum(own) / len(own)
        scale = (scale / mean) ** 2 if mean > 1e-12 * scale else 1e300
    within(found, np.clip(want, -LARGEST, LARGEST), scale)


LARGEST = float(np.finfo(np.float32).max)


def expected(name: str, xs: list[float]) -> list[float]:
    """The formulas as they stand, with exactly rounded sums."""
    n, mean = len(xs), math.fsum(xs) / len(xs)
    if name == "raw" or len(set(xs)) == 1:
        return xs if name == "raw" else [0.0] * n
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in xs) / (n - 1))
    first, second = sorted(xs, reverse=True)[:2]
    best = xs.index(first)
    return {
        "grpo": [(x - mean) / (std + 1e-6) for x in xs],
        "dr_grpo": [x - mean for x in xs],
        "rloo": [(x - mean) * n / (n - 1) for x in xs],
        "max_rl": [(x - mean) / mean if mean > 0 else 0.0 for x in xs],
        "grpo_passk": [(first - second) / (std + 1e-6) * (i == best) for i in range(n)],
    }[name]


# Log-probabilities


def test_a_whole_run_over_extreme_log_probs_stays_finite():
    rows = [
        replace(r, old=[-1e4, -1e-6, 0.0], ref=[0.0, -1e4, -1e-6], infer=[-1e-6, 0.0, -1e4])
        for r in group([0.0, 1.0, 1e30, -1e30], tokens=3)
    ]
    for level in ("token", "sequence", "geometric", "segment"):
        table, _ = advantages(rows, kl_coef=0.1, kl_estimator="k3", is_weight=level, is_cap=5.0)
        for name in ("advantages", "returns", "is_weight"):
            values = (
                pa.compute.list_flatten(table[name])
                if pa.types.is_list(table[name].type)
                else table[name]
            )
            assert np.isfinite(values.to_numpy()).all(), (level, name)


# Lengths


def test_a_response_of_two_hundred_thousand_tokens_beside_empty_ones():
    long, rng = 200_000, np.random.default_rng(1)
    rows = [
        Response(group="p", reward=1.0, mask=[1] * long, values=rng.normal(size=long).tolist()),
        Response(group="p", reward=0.0, mask=[], values=[]),
        Response(group="p", reward=-1.0, mask=[1], values=[0.5]),
    ]
    rows = [replace(r, values=np.float32(r.values).tolist()) for r in rows]
    table, summary = advantages(rows, estimator="gae", gamma=0.999, lam=0.95)
    assert summary["tokens"]["all"] == long + 1
    given = [[0.0] * (len(r.mask) - 1) + [r.reward] if r.mask else [] for r in rows]
    want = est.gae(rows, given, gamma=0.999, lam=0.95)
    for got, exact in zip(table["advantages"].to_pylist(), want[0], strict=True):
        assert np.allclose(got, exact, rtol=SCAN, atol=SCAN)


# Everything at once


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "grpo_passk", "reinforce_pp"])
@pytest.mark.parametrize("largest", [1e160, 1e300])
def test_rewards_whose_squares_are_beyond_float64_are_an_error(estimator, largest):
    rows = {"prompt_id": [0, 0, 1, 1], "reward": [0.0, largest, largest / 2, largest]}
    data = pa.table({**rows, "response_mask": [[1, 1]] * 4})
    with pytest.raises(DataError, match="scale the rewards down"):
        enrich(data, Recipe(estimator=estimator, emit=("advantages",)))


@pytest.mark.parametrize(
    ("rewards", "words"),
    [
        ([0.0, 1.0, 1.0], None),
        ([0.0, 0.0, 0.0], None),
        ([0.0, 0.5, 1.0], "0 to 1"),
        ([0.0, 1.0, 3.0], "0 to 3"),
        ([-1.0, 1.0, 0.01], "a mean below 0"),
        ([-3.0, -1.0, -2.0], "a mean below 0"),
    ],
)
def test_max_rl_names_rewards_other_than_success(rewards, words):
    summary = advantages(group(rewards), estimator="max_rl")[1]
    texts = [x for x in warnings_of(summary) if x.startswith("max_rl divides")]
    assert (len(texts), words is None or words in texts[0]) == (words is not None, True)
