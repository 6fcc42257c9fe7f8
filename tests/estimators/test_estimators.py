"""Laws that every estimator keeps, and those that tie one to another."""

import doctest
import importlib
import pkgutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import reference_estimators as est
import torch
from array_kinds import KINDS, array_of, kind_of, numbers_of
from estimator_rows import close, responses, written
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_pipeline import pipeline
from strategies import ESSENTIALS, rollouts, to_table

import rlpost
import rlpost.estimators
import rlpost.kernels
from rlpost.errors import UsageError
from rlpost.estimators import ESTIMATORS, estimator_named
from rlpost.estimators.gae import gae
from rlpost.estimators.raw import raw
from rlpost.estimators.reinforce import reinforce

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")

RECIPE = rlpost.Recipe()
CODES = ("batch", "domain", "group", "cohort")
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


@every_estimator
@settings(max_examples=15)
@given(rows=rollouts(), gamma=st.sampled_from([1.0, 0.9]), process=st.booleans())
def test_an_estimator_equals_its_reference(name, rows, gamma, process):
    rows = rows if process else without(rows, "token_rewards")
    agrees(rows, name, gamma=gamma)


BOOTSTRAPPED = ("gae", "turn_gae", "vtrace", "reinforce", "reinforce_pp", "remax",
                "agentic_reinforce", "optimal_token_baseline")  # fmt: skip


@pytest.mark.parametrize("name", BOOTSTRAPPED)
@settings(max_examples=25)
@given(
    rows=rollouts(), gamma=st.sampled_from([1.0, 0.9]), where=st.sampled_from(["column", "last"])
)
def test_a_truncated_response_ends_with_a_value(name, rows, gamma, where):
    agrees(rows, name, gamma=gamma, bootstrap=where)


@pytest.mark.parametrize("name", sorted({*ESTIMATORS} - {*BOOTSTRAPPED}))
def test_an_estimator_without_sums_of_rewards_takes_no_value(name):
    rows = responses([0.0, 1.0], finish_reason="length")
    with pytest.raises(UsageError, match="--bootstrap"):
        written(rows, name, bootstrap="last")


@every_estimator
@settings(max_examples=10)
@given(rows=rollouts())
def test_an_estimator_equals_its_reference_under_a_kl_penalty(name, rows):
    agrees(rows, name, kl_coef=0.2, kl_estimator="k3")


@every_estimator
@pytest.mark.parametrize("width", [0, 1])
def test_constant_rewards_give_finite_numbers(name, width):
    agrees(responses([0.7] * 4, masks=[[1] * width] * 4), name)
    advantages, _ = written(responses([0.7] * 4), name)
    if name in ("grpo", "dr_grpo", "rloo", "reinforce_pp"):
        assert not advantages.any()


@every_estimator
@pytest.mark.parametrize(
    ("rewards", "masks"),
    [
        pytest.param([1.0], [[1, 1]], id="a group of one"),
        pytest.param([2.0], [[1]], id="one token"),
        pytest.param([2.0], [[]], id="no token"),
        pytest.param([1.0, 0.0], [[0, 0], [0]], id="no policy token"),
        pytest.param(
            [1.0, 0.0, 4.0], [[0, 1, 1, 0], [0, 0], []], id="one response of policy tokens"
        ),
        pytest.param([1.0, 0.0, 4.0], [[], [0, 1, 0, 1], [1]], id="an empty response first"),
    ],
)
def test_estimators_of_the_smallest_inputs(name, rewards, masks):
    agrees(responses(rewards, masks=masks), name)


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
        rows = responses if name == "reward_baseline" else size
        found = generator.standard_normal((rows, 2) if name == "components" else rows)
        return array_of(kind, np.abs(found) if name == "tokens" else found, dtype)

    return {name: column(name) for name in estimator.columns}


@every_estimator
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_estimators_do_not_change_inputs_and_keep_the_type(name, dtype, kind):
    estimator = ESTIMATORS[name]
    if kind != "numpy" and estimator.level == "response":
        return  # numbers of responses are arrays of numpy on every device
    columns = columns_of(estimator, 9, 5, dtype, kind)
    offsets = array_of(kind, [0, 0, 4, 5, 9, 9])
    before = {key: numbers_of(column).copy() for key, column in columns.items()}
    credit = estimator(columns, offsets, RECIPE)
    assert numbers_of(offsets).tolist() == [0, 0, 4, 5, 9, 9]
    for key, column in columns.items():
        np.testing.assert_array_equal(numbers_of(column), before[key])
    for out in credit:
        assert (tuple(out.shape), numbers_of(out).dtype, kind_of(out)) == ((9,), dtype, kind)
        assert np.isfinite(numbers_of(out)).all()


@every_estimator
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("segments", [0, 1, 3])
def test_empty_input_gives_empty_output(name, segments, kind):
    estimator = ESTIMATORS[name]
    if kind != "numpy" and estimator.level == "response":
        return
    columns = columns_of(estimator, 0, segments, kind=kind)
    offsets = array_of(kind, np.zeros(segments + 1, np.int64))
    assert [tuple(out.shape) for out in estimator(columns, offsets, RECIPE)] == [(0,)] * 2


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


@every_estimator
def test_the_entries_of_the_table_are_complete(name):
    estimator = ESTIMATORS[name]
    assert estimator.name == name
    assert estimator.formula
    assert estimator.level == ("token" if estimator.token_columns else "response")
    fields = {*rlpost.Recipe.model_fields, *rlpost.Numerics.model_fields, "component_weights"}
    assert set(estimator.options) <= fields
    assert estimator_named(name) is estimator


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


# One estimator as a special case of another

plain = rollouts().map(lambda rows: without(rows, "token_rewards"))


@settings(max_examples=25)
@given(plain)
def test_rloo_is_dr_grpo_times_k_over_k_minus_one(rows):
    sizes = [sum(r.batch == q.batch and r.group == q.group for q in rows) for r in rows]
    factors = flat([[k / max(k - 1, 1)] * len(r.mask) for k, r in zip(sizes, rows, strict=True)])
    close(written(rows, "rloo")[0], written(rows, "dr_grpo")[0] * factors)


@settings(max_examples=25)
@given(plain)
def test_grpo_is_dr_grpo_divided_by_the_standard_deviation_of_the_group(rows):
    deviations = []
    for r in rows:
        group = [q.reward for q in rows if (q.batch, q.group) == (r.batch, r.group)]
        deviation = np.std(group, ddof=1) if len(set(group)) > 1 else np.inf
        deviations.append([deviation] * len(r.mask))
    centred = written(rows, "dr_grpo")[0]
    close(written(rows, "grpo")[0], centred / (flat(deviations) + 1e-6))


@settings(max_examples=25)
@given(plain, st.sampled_from([1.0, 0.9]))
def test_gae_with_lambda_one_and_no_values_is_the_discounted_return(rows, gamma):
    rows = [replace(r, values=[0.0] * len(r.mask)) for r in rows]
    returns = written(rows, "reinforce", gamma=gamma)[0]
    for column in written(rows, "gae", gamma=gamma, lam=1.0):
        close(column, returns)


@settings(max_examples=25)
@given(plain, st.sampled_from([1.0, 0.9]))
def test_gae_with_lambda_zero_is_the_td_error(rows, gamma):
    errors = []
    for r in rows:
        row, following, reward = [0.0] * len(r.mask), 0.0, r.reward
        for t in reversed(range(len(r.mask))):
            if r.mask[t]:
                row[t] = reward + gamma * following - r.values[t]
                following, reward = r.values[t], 0.0
        errors.append(row)
    close(written(rows, "gae", gamma=gamma, lam=0.0)[0], flat(errors))


@settings(max_examples=25)
@given(rollouts(), st.sampled_from([1.0, 0.9]))
def test_reinforce_pp_without_whitening_is_reinforce(rows, gamma):
    bare = written(rows, "reinforce_pp", gamma=gamma, whiten_advantages=False)
    for got, want in zip(bare, written(rows, "reinforce", gamma=gamma), strict=True):
        np.testing.assert_array_equal(got, want)


@settings(max_examples=25)
@given(plain)
def test_opo_of_equal_lengths_is_dr_grpo(rows):
    rows = [replace(r, **policy_tokens(3)) for r in rows]
    close(written(rows, "opo")[0], written(rows, "dr_grpo")[0])


def policy_tokens(size):
    """The fields of a response whose tokens are all the policy's, `size` of them."""
    tokens = ("old", "ref", "infer", "current", "values", "sum_pi_squared")
    return {"mask": [1] * size, **{name: [-0.5] * size for name in tokens}}


@settings(max_examples=25)
@given(plain)
def test_gdpo_of_one_component_is_grpo_normalised_over_the_batch(rows):
    rows = [replace(r, reward=r.components["correctness"]) for r in rows]
    gdpo = written(rows, "gdpo", reward_components=("correctness",), component_weights=None)
    grpo = written_rewards(rows, "grpo")
    by_batch = [r.batch for r in rows]
    normalised = est.z_scores(by_batch, grpo.tolist())
    close(gdpo[0], flat([[x * m for m in r.mask] for x, r in zip(normalised, rows, strict=True)]))


def written_rewards(rows, name):
    """What the responses' rewards are once they are normalised."""
    table, _ = rlpost.enrich(to_table(rows), rlpost.Recipe(estimator=name))
    return table.column("response_level_rewards").to_numpy()


@settings(max_examples=25)
@given(plain)
def test_max_rl_and_grpo_agree_in_sign(rows):
    rows = [replace(r, reward=abs(r.reward)) for r in rows]
    relative, normalised = written(rows, "max_rl")[0], written(rows, "grpo")[0]
    large = (np.abs(relative) > 1e-4) & (np.abs(normalised) > 1e-4)
    np.testing.assert_array_equal(np.sign(relative[large]), np.sign(normalised[large]))


@settings(max_examples=25)
@given(plain)
def test_reinforce_pp_baseline_is_dr_grpo_whitened(rows):
    whitened = written(rows, "dr_grpo", whiten_advantages=True)[0]
    for column in written(rows, "reinforce_pp_baseline"):
        np.testing.assert_array_equal(column, whitened)


@settings(max_examples=25)
@given(plain)
def test_rloo_is_the_reward_minus_the_mean_of_the_others(rows):
    close(written(rows, "reinforce", norm_mean="others")[0], written(rows, "rloo")[0])


@settings(max_examples=25)
@given(rollouts(), st.sampled_from([1.0, 0.9]))
def test_remax_without_a_baseline_is_reinforce(rows, gamma):
    rows = [replace(r, reward_baseline=0.0) for r in rows]
    for got, want in zip(
        written(rows, "remax", gamma=gamma), written(rows, "reinforce", gamma=gamma), strict=True
    ):
        np.testing.assert_array_equal(got, want)


@settings(max_examples=25)
@given(rollouts())
def test_agentic_reinforce_without_observations_gives_the_whole_return_to_all_tokens(rows):
    rows = [replace(r, mask=[1] * len(r.mask)) for r in rows]
    close(written(rows, "agentic_reinforce")[0], written(rows, "raw")[0])


@settings(max_examples=25)
@given(plain, st.sampled_from([0.3, 0.95]))
def test_gae_with_two_equal_lambdas_is_gae(rows, lam):
    for got, want in zip(
        written(rows, "gae", lam=0.5, lambda_policy=lam, lambda_value=lam),
        written(rows, "gae", lam=lam),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


@settings(max_examples=25)
@given(rollouts(), st.sampled_from([1.0, 0.9]), st.sampled_from([None, "last"]))
def test_vtrace_of_equal_policies_is_gae_with_lambda_1(rows, gamma, bootstrap):
    rows = [replace(r, infer=r.old) for r in rows]
    for got, want in zip(
        written(rows, "vtrace", gamma=gamma, bootstrap=bootstrap),
        written(rows, "gae", gamma=gamma, lam=1.0, bootstrap=bootstrap),
        strict=True,
    ):
        close(got, want)


@settings(max_examples=25)
@given(rollouts(), st.sampled_from([(0.5, 0.25), (2.0, 1.0), (1.0, 3.0)]))
def test_vtrace_caps_its_two_ratios(rows, caps):
    rewards = pipeline(rows, {"estimator": "vtrace"}).token_rewards
    want = est.vtrace(rows, rewards, gamma=0.5, rho_cap=caps[0], c_cap=caps[1])
    options = {"vtrace_rho_cap": caps[0], "vtrace_c_cap": caps[1]}
    for got, expected in zip(written(rows, "vtrace", gamma=0.5, **options), want, strict=True):
        close(got, flat(expected))


@settings(max_examples=25)
@given(rollouts(), st.sampled_from([0.05, 0.5, 10.0]))
def test_gae_adapts_lambda_to_the_length(rows, alpha):
    want = est.gae(
        rows, pipeline(rows, {"estimator": "gae"}).token_rewards, length_adaptive_alpha=alpha
    )
    for got, expected in zip(written(rows, "gae", length_adaptive_alpha=alpha), want, strict=True):
        close(got, flat(expected))


@settings(max_examples=25)
@given(rollouts(), st.sampled_from(["grpo", "dr_grpo", "gae"]))
def test_teachers_are_added_to_any_estimator(rows, name):
    beside, alone = written(rows, name, teachers={"ref_log_probs": 0.5})[0], written(rows, "opd")[0]
    close(beside, written(rows, name)[0].astype(np.float64) + alone)


@settings(max_examples=25)
@given(rollouts(), st.sampled_from(["token", "policy_token"]))
def test_positions_of_the_optimal_token_baseline(rows, position):
    name, numerics = "optimal_token_baseline", {"otb_position": position}
    tokens = pipeline(rows, {"estimator": name}).token_rewards
    want = est.optimal_token_baseline(rows, tokens, position=position)
    for got, expected in zip(written(rows, name, numerics=numerics), want, strict=True):
        close(got, flat(expected))


@settings(max_examples=25)
@given(plain)
def test_raw_is_the_reward_and_an_undiscounted_return(rows):
    spread = flat([[r.reward * m for m in r.mask] for r in rows])
    for name in ("raw", "reinforce"):
        for column in written(rows, name):
            np.testing.assert_array_equal(column, spread.astype(np.float32))


def test_the_functions_on_hand_computed_numbers():
    offsets, rewards = np.array([0, 2, 2, 3]), np.array([1.0, 2.0, 4.0])
    assert raw(rewards).advantages is rewards
    assert reinforce(rewards, offsets, gamma=0.5).returns.tolist() == [2.0, 2.0, 4.0]
    credit = gae(rewards, np.array([1.0, 3.0, 0.5]), offsets, gamma=0.5, lam=0.5)
    assert credit.advantages.tolist() == [1.25, -1.0, 3.5]
    assert credit.returns.tolist() == [2.25, 2.0, 4.0]


# Docstrings


MODULES = [
    info.name
    for package in (rlpost.estimators, rlpost.kernels)
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_correct(name):
    outcome = doctest.testmod(importlib.import_module(name), extraglobs={"np": np, "torch": torch})
    assert outcome.failed == 0


def test_every_estimator_function_has_an_example():
    attempted = {
        name: doctest.testmod(
            importlib.import_module(f"rlpost.estimators.{name}"),
            extraglobs={"np": np, "torch": torch},
        ).attempted
        for name in ESTIMATORS
        if ESTIMATORS[name].function.__name__ == name
    }
    assert attempted
    assert all(attempted.values())
