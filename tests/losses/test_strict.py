"""Formulas of tokens on arrays that have the array API standard and nothing else.

Strict arrays mix no kinds of numbers, and lack what numpy and torch have beyond the standard.
"""

import inspect
from dataclasses import fields, replace

import numpy as np
import pytest

pytest.importorskip("array_api_strict")

from loss_words import nested
from strict_arrays import Array, strict_formulas, to_numpy, to_strict
from test_losses import CASES

import rlpost
from rlpost.estimators import ESTIMATORS
from rlpost.estimators.returns import token_weights
from rlpost.kernels import corrections
from rlpost.kernels.divergence import chi_square, confident_disagreement, kl_terms
from rlpost.kernels.kl import token_kl
from rlpost.kernels.segments import PositionSegments, cut_segments, policy_segments
from rlpost.kernels.values import value_loss
from rlpost.losses import Tokens, kl_loss, loss_named
from rlpost.recipe.loss import LossOptions

RANDOM = np.random.default_rng(4)
BOUNDS = np.array([0, 0, 5, 6, 30, 60])
MASK = RANDOM.random(60) < 0.8
OLD, NEW, REF, REWARDS, VALUES = (-RANDOM.random(60) for _ in range(5))


def parts(result):
    """The arrays of a result, as arrays of numpy; and whether any is of the strict library."""
    every = result.values() if isinstance(result, dict) else result
    every = [result] if every is result and not isinstance(result, tuple) else [*every]
    return [to_numpy(x) for x in every if x is not None], any(isinstance(x, Array) for x in every)


def check(formula, *arguments, **options):
    """A formula returns strict arrays with the numbers of numpy."""
    expected, _ = parts(formula(*arguments, **options))
    with strict_formulas():
        others = {name: to_strict(one) for name, one in options.items()}
        results, strict = parts(formula(*map(to_strict, arguments), **others))
    assert strict
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-15)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


@pytest.mark.parametrize("options", [{}, {"gamma": 0.9, "options": {"lambda_policy": 0.8}}])
@pytest.mark.parametrize("name", [n for n, one in ESTIMATORS.items() if one.level == "token"])
def test_estimators_of_tokens(name, options):
    estimator, recipe = ESTIMATORS[name], rlpost.Recipe(**options)
    special = {"mask": MASK, "group": np.zeros(60, np.int64), "reward_baseline": np.ones(5)}
    columns = {
        role: special.get(role, VALUES * (at + 1)) for at, role in enumerate(estimator.columns)
    }

    def formula(offsets, **columns):
        return tuple(estimator(columns, offsets, recipe))

    check(formula, BOUNDS, **columns)


@pytest.mark.parametrize("case", [x for x in CASES if not x.startswith("real")])  # numpy
def test_losses(case):
    options = LossOptions.of(nested(CASES[case][0]) | {"kl_loss_coef": 0.1})
    loss = loss_named(options.loss)
    columns = {"new": NEW, "old": OLD, "advantages": VALUES + 0.5, "infer": REF, "ref": REF}
    columns |= {"rewards": VALUES[:5] + 0.5, "weights": np.exp(REWARDS)}
    tokens, selection = Tokens(**columns, mask=MASK, offsets=BOUNDS), loss.selection(options)
    if selection is not None:  # the ranks of whole batches are numbers of numpy on every device
        tokens = selection.as_one_batch(tokens)
        tokens = replace(tokens, chosen=selection.of(tokens))

    def formula(**columns):
        own = replace(tokens, **columns)
        read = inspect.signature(loss.function).parameters
        values = {name: x for name, x in loss.values(options).items() if name in read}
        surrogate = loss.function(own, **values) if selection else loss(own, options)
        return (*surrogate, kl_loss(own, options))

    names = [one.name for one in fields(Tokens) if one.name != "in_batch"]
    check(formula, **{name: getattr(tokens, name) for name in names})


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3", "k4"])
def test_kl_estimates(estimator):
    check(token_kl, OLD, REF, estimator=estimator, log_ratio_clamp=0.4, clamp=0.1, clamps="all")


@pytest.mark.parametrize("level", ["token", "segment", "geometric", "sequence", "max"])
def test_numbers_of_levels(level):
    check(corrections.at_level, OLD, MASK, BOUNDS, level=level)
    for at in ("level", "token"):
        options = {"level": level, "clamp": 0.3, "clamp_at": at}
        check(corrections.log_weights, OLD, REF, MASK, BOUNDS, **options)


def test_other_formulas_of_tokens():
    check(kl_terms, OLD, np.expm1(OLD))
    check(chi_square, OLD)
    check(confident_disagreement, OLD, np.abs(REF))
    check(token_weights, OLD, VALUES**2, BOUNDS, REF, ratio_cap=2.0)
    check(value_loss, VALUES, OLD, REF, clip=0.2, delta=0.3)
    check(policy_segments, MASK, BOUNDS)
    check(cut_segments, MASK, BOUNDS)
    check(lambda values, offsets: PositionSegments.of(offsets).sum(values), OLD, BOUNDS)
