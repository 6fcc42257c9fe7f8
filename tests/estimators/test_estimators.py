"""Every estimator equals its reference in plain loops, and keeps the laws of all of them."""

import doctest
import importlib
import pkgutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import reference_estimators as est
import torch
from array_kinds import array_of
from estimator_rows import close, responses, written
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_pipeline import pipeline
from strategies import ESSENTIALS, rollouts

import rlpost
import rlpost.estimators
import rlpost.kernels
from rlpost.errors import UsageError
from rlpost.estimators import ESTIMATORS, estimator_named, groups, returns, turns
from rlpost.recipe.estimators import NAMES

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")

RECIPE = rlpost.Recipe()
CODES = ("batch", "domain", "group")
every_estimator = pytest.mark.parametrize("name", ESTIMATORS)


def without(rows, *roles):
    return [replace(r, **dict.fromkeys(roles)) for r in rows]


def flat(lists):
    return np.array([x for xs in lists for x in xs], dtype=np.float64)


def agrees(rows, name, **options):
    """Check that the estimator gives what its reference gives."""
    want = pipeline(rows, {**ESSENTIALS.get(name, {}), "estimator": name, **options})
    for got, expected in zip(
        written(rows, name, **options), (want.advantages, want.returns), strict=True
    ):
        close(got, flat(expected))


# Every estimator, through the pipeline

BOOTSTRAPPED = ("gae", "turn_gae", "vtrace", "reinforce", "reinforce_pp", "remax",
                "agentic_reinforce", "optimal_token_baseline")  # fmt: skip
OPTIONS = st.fixed_dictionaries(
    {"gamma": st.sampled_from([1.0, 0.9])},
    optional={"kl_coef": st.just(0.2), "bootstrap": st.sampled_from(["column", "last"])},
)


@every_estimator
@settings(max_examples=16)
@given(rows=rollouts(), options=OPTIONS, process=st.booleans())
def test_an_estimator_equals_its_reference(name, rows, options, process):
    rows = rows if process else without(rows, "token_rewards")
    if name not in BOOTSTRAPPED:
        options = {key: x for key, x in options.items() if key != "bootstrap"}
    agrees(rows, name, **options, kl_estimator="k3")


VAPO = {"lambda_policy": 0.3, "lambda_value": 0.9}
KNOBS = [
    ("gae", {"lam": 0.0}),
    ("gae", VAPO),
    ("gae", {"length_adaptive_alpha": 0.05}),
    ("gae", {"length_adaptive_alpha": 0.5}),
    ("vtrace", {"rho_cap": 0.5, "c_cap": 0.25}),
    ("vtrace", {"rho_cap": 2.0, "c_cap": 3.0}),
    ("optimal_token_baseline", {"position": "token"}),
    ("optimal_token_baseline", {"position": "policy_token"}),
]


@pytest.mark.parametrize(("name", "options"), KNOBS)
@settings(max_examples=10)
@given(rows=rollouts())
def test_options_of_an_estimator_equal_its_reference(name, options, rows):
    rewards = pipeline(rows, {"estimator": name}).token_rewards
    want = getattr(est, name)(rows, rewards, gamma=0.5, **options)
    of_recipe = {"lam": options["lam"]} if "lam" in options else {"options": options}
    for got, expected in zip(written(rows, name, gamma=0.5, **of_recipe), want, strict=True):
        close(got, flat(expected))


@pytest.mark.parametrize("name", sorted({*ESTIMATORS} - {*BOOTSTRAPPED}))
def test_an_estimator_without_sums_of_rewards_takes_no_value(name):
    rows = responses([0.0, 1.0], finish_reason="length")
    with pytest.raises(UsageError, match="--bootstrap"):
        written(rows, name, bootstrap="last")


SMALLEST = [
    ([1.0], [[1, 1]]),
    ([2.0], [[1]]),
    ([2.0], [[]]),
    ([1.0, 0.0], [[0, 0], [0]]),
    ([1.0, 0.0, 4.0], [[0, 1, 1, 0], [0, 0], []]),
    ([1.0, 0.0, 4.0], [[], [0, 1, 0, 1], [1]]),
    ([0.7] * 4, [[]] * 4),
    ([0.7] * 4, [[1]] * 4),
]
"""Rewards and masks of a group: of one, of a token or none, of observations, of equal rewards."""


@every_estimator
def test_estimators_of_the_smallest_groups(name):
    groups = [
        [replace(row, traj_id=f"{i}-{row.traj_id}") for row in responses(x, masks=masks, batch=i)]
        for i, (x, masks) in enumerate(SMALLEST)
    ]
    agrees([row for rows in groups for row in rows], name)
    for alone in (0, 2, 3):  # an input of nothing else
        agrees(groups[alone], name)
    advantages, _ = written(responses([0.7] * 4), name)
    if name in ("grpo", "dr_grpo", "rloo", "reinforce_pp"):
        assert not advantages.any()


@every_estimator
def test_advantages_and_returns_are_zero_on_observations_and_in_dropped_responses(name):
    masks = [[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 0]]
    rows = responses([1.0, 0.0, 3.0], masks=masks)
    rows[2] = replace(rows[2], finish_reason="length")
    rows[:2] = [replace(r, finish_reason="stop") for r in rows[:2]]
    outside = flat([[1, 0, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]]) == 0
    for column in written(rows, name, drop_truncated=True):
        assert not column[outside].any()
        assert np.isfinite(column).all()


# Every estimator, as a pure function


def columns_of(estimator, size, responses, dtype=np.float64, kind="numpy"):
    """Columns of that many elements, or of one for each of the responses that hold them."""
    generator = np.random.default_rng(1)

    def column(name):
        if name in CODES:
            return array_of(kind, np.zeros(size, np.int64))
        if name == "domain_name":
            return np.full(size, "a")
        rows = responses if name == "reward_baseline" else size
        found = generator.standard_normal((rows, 2) if name == "components" else rows)
        return array_of(kind, np.abs(found) if name == "tokens" else found, dtype)

    return {name: column(name) for name in estimator.columns}


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_empty_input_gives_empty_output(kind):
    for name, estimator in ESTIMATORS.items():
        for segments in (0, 3) if kind == "numpy" or estimator.level == "token" else ():
            columns = columns_of(estimator, 0, segments, kind=kind)
            offsets = array_of(kind, np.zeros(segments + 1, np.int64))
            credit = estimator(columns, offsets, RECIPE)
            assert [tuple(out.shape) for out in credit] == [(0,)] * 2, name


@pytest.mark.parametrize("name", [n for n in ESTIMATORS if "offsets" in ESTIMATORS[n].parameters])
def test_a_response_does_not_affect_its_neighbours(name):
    estimator = ESTIMATORS[name]
    columns, bounds = columns_of(estimator, 400, 5), [0, 1, 1, 140, 270, 400]
    whole = estimator(columns, np.array(bounds), RECIPE)
    for place, (start, stop) in enumerate(pairwise(bounds)):
        part = {
            key: column[start:stop] if len(column) == 400 else column[place : place + 1]
            for key, column in columns.items()
        }
        alone = estimator(part, np.array([0, stop - start]), RECIPE)
        for out, expected in zip(whole, alone, strict=True):
            np.testing.assert_allclose(out[start:stop], expected, rtol=1e-12, atol=1e-12)


def test_every_entry_of_a_family_has_a_name_that_users_know():
    entries = (groups.ESTIMATORS, returns.ESTIMATORS, turns.ESTIMATORS)
    assert sorted(entry.name for family in entries for entry in family) == sorted(NAMES)
    assert list(ESTIMATORS) == list(NAMES)


@every_estimator
def test_the_entries_of_the_table_are_complete(name):
    estimator = ESTIMATORS[name]
    assert estimator.name == name
    assert estimator.formula
    assert estimator.level == ("token" if estimator.token_columns else "response")
    assert estimator_named(name) is estimator
    fields = {**rlpost.Recipe.model_fields, **rlpost.Numerics.model_fields}
    for keyword, default in estimator.keywords.items():
        if keyword in fields:
            assert fields[keyword].default in (default, None), keyword
        else:
            option = estimator.options[keyword]
            assert option.text, keyword
            assert default is None or option.parsed(default) == default


def test_a_wrong_name_is_answered_with_the_closest():
    with pytest.raises(rlpost.errors.UsageError, match=r"did you mean grpo"):
        estimator_named("gpro")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("gdpo", {"reward_components": None}, "gdpo needs --reward-components"),
        ("opd", {"teachers": {}}, "opd needs --teacher"),
        (
            "gdpo",
            {"norm_std": "batch"},
            "--norm-std batch: estimator gdpo normalises within groups",
        ),
    ],
)
def test_an_estimator_without_a_needed_column_is_an_error(name, options, says):
    options = {**options, **({"component_weights": None} if name == "gdpo" else {})}
    with pytest.raises(rlpost.errors.UsageError, match=says):
        written(responses([0.0, 1.0]), name, **options)


@settings(max_examples=10)
@given(rollouts(), st.sampled_from(["grpo", "dr_grpo", "gae"]))
def test_teachers_are_added_to_any_estimator(rows, name):
    beside, alone = written(rows, name, teachers={"ref_log_probs": 0.5})[0], written(rows, "opd")[0]
    close(beside, written(rows, name)[0].astype(np.float64) + alone)


# Docstrings


MODULES = [
    info.name
    for package in (rlpost.estimators, rlpost.kernels)
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_correct(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"np": np, "torch": torch}).failed == 0


@every_estimator
def test_the_function_of_an_estimator_has_an_example(name):
    estimator = ESTIMATORS[name]
    assert all(">>> " in function.__doc__ for function in estimator.functions)
