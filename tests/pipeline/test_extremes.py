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
import reference as ref
import reference_estimators as est
import strategies
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import Response
from strategies import to_table

from rlpost import Recipe, enrich
from rlpost.errors import RlpostError
from rlpost.kernels.kl import token_kl
from rlpost.kernels.moments import group_moments, pooled_moments, token_moments
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import offsets_of

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
@settings(max_examples=60)
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


@pytest.mark.parametrize("size", [1, 2, 100, 10_000])
@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "gpg"])
def test_groups_of_any_size_agree_with_the_reference(name, size):
    rng = np.random.default_rng(size)
    rewards = rng.normal(size=size) + 1e6  # a mean far from the spread
    rows = group(rewards)
    found = per_response(advantages(rows, estimator=name)[0])
    own = [r.reward for r in rows]
    # Of equal lengths, and without a reward of 0, opo and gpg are dr_grpo.
    want = expected("dr_grpo" if name in ("opo", "gpg") else name, own)
    within(found, want, max(map(abs, own)) * (1e3 if name == "grpo" else 1))


def test_a_group_does_not_depend_on_where_its_rows_are():
    rng = np.random.default_rng(3)
    rows = [*group(rng.normal(size=5000) * 1e30, name="a"), *group(rng.normal(size=5000), name="b")]
    order = rng.permutation(len(rows))
    one = np.array(per_response(advantages(rows)[0]))
    other = np.array(per_response(advantages([rows[i] for i in order])[0]))
    assert one[order].tobytes() == other.tobytes()


def test_ten_thousand_equal_rewards_have_no_deviation():
    rows = group([0.1] * 10_000)
    table, summary = advantages(rows)
    assert set(per_response(table)) == {0.0}
    assert summary["signal"]["groups"]["equal_rewards"] == 1


# Log-probabilities


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
@given(
    old=st.lists(st.floats(-1e4, 0, width=32), min_size=1, max_size=20),
    seed=st.integers(0, 2**32 - 1),
)
def test_log_probs_down_to_minus_ten_thousand_give_finite_kl(estimator, old, seed):
    rng = np.random.default_rng(seed)
    other = np.minimum(np.array(old) + rng.choice([0, 1e-4, 1, 1e4], len(old)), 0)
    policy = np.array(old, dtype=np.float64)
    reference = np.array(other.astype(np.float32), dtype=np.float64)
    found = token_kl(policy, reference, estimator=estimator, log_ratio_clamp=40.0, clamp=10.0)
    low = -10.0 if estimator == "k3" else -math.inf
    want = [
        min(max(ref.divergence(ref.clamp(p - r, -40, 40), estimator), low), -low)
        for p, r in zip(policy.tolist(), reference.tolist(), strict=True)
    ]
    assert np.isfinite(found).all()
    assert np.allclose(found, want, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize("decay", [1.0, 0.999, 0.95, 0.5, 0.0])
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 4096, 200_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scans_of_any_length_are_within_their_bound(length, decay, dtype):
    rng = np.random.default_rng(length)
    values = rng.normal(size=length) * rng.choice([1e-3, 1, 1e3], length)
    xs = np.array(values, dtype=dtype)
    offsets = offsets_of(np.array([length, 0]))
    found = reverse_scan(xs, offsets, decay).astype(np.float64)
    want, size = np.zeros(length), np.zeros(length)
    total = magnitude = 0.0
    for t in range(length - 1, -1, -1):
        total = float(xs[t]) + decay * total
        magnitude = abs(float(xs[t])) + decay * magnitude
        want[t], size[t] = total, magnitude
    bound = SCAN if dtype == np.float32 else 1e-12
    assert (np.abs(found - want) <= bound * size).all()


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


@settings(max_examples=40)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 2, 1000]), min_size=1, max_size=6),
    centre=st.sampled_from([0.0, 1e6, -1e8]),
    seed=st.integers(0, 2**32 - 1),
)
def test_moments_of_tokens_keep_their_digits_far_from_zero(sizes, centre, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=sum(sizes)) + centre
    xs, offsets = np.array(values), offsets_of(np.array(sizes))
    keys = np.zeros(len(sizes), dtype=np.int64)
    found = pooled_moments(token_moments(xs, None, offsets), keys, 1)
    if sum(sizes) < 2:
        assert float(found.std[0]) == 0.0
        return
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))
    assert math.isclose(float(found.mean[0]), mean, rel_tol=1e-15, abs_tol=1e-15)
    # The mean is rounded once, to float64: of that much each distance from it may be off.
    assert math.isclose(float(found.std[0]), std, rel_tol=1e-12 + 2.0**-51 * abs(centre) / std)


@pytest.mark.parametrize("scale", [1e30, 1e100, 1e150])
def test_deviations_do_not_overflow_before_rewards_do(scale):
    xs = np.array([scale, -scale, 0.0], dtype=np.float64)
    found = group_moments(xs, np.array([0, 3]))
    assert math.isclose(float(found.std[0]), scale, rel_tol=1e-15)


# Everything at once


@settings(max_examples=25)
@given(
    rows=strategies.rollouts(extreme=True, max_groups=3, max_group_size=4),
    recipe=strategies.recipes(),
)
def test_what_is_written_is_finite_whatever_the_recipe(rows, recipe):
    try:
        table, _ = advantages(rows, **recipe)
    except RlpostError:
        return
    for name in ("advantages", "returns"):
        flat = pa.compute.list_flatten(table[name]).to_numpy()
        assert np.isfinite(flat).all()
