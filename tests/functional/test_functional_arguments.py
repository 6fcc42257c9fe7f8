"""Arguments that are wrong: shapes, dtypes, names, numbers that are not finite, bools."""

from __future__ import annotations

import doctest
import inspect
import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from functional_calls import CALLS, called, columns_of
from functional_rows import F, P
from manual.stubs import stubs

import rlpost
from rlpost.errors import DataError, UsageError
from rlpost.recipe.loss import ABOUT_AGGREGATIONS, LossOptions

if TYPE_CHECKING:
    from rlpost.recipe.base import OptionModel

OFFSETS, MASK = torch.tensor([0, 4, 4, 9]), torch.tensor([1, 0, 1, 1, 1, 1, 0, 0, 1])


def test_masked_nan_does_not_reach_gradients():
    new = torch.tensor([-1.0, math.nan, -2.0], requires_grad=True)
    old, gains = torch.tensor([-1.0, math.nan, -2.5]), torch.tensor([1.0, math.nan, -1.0])
    mask, offsets = torch.tensor([1, 0, 1]), torch.tensor([0, 3])
    found = F.policy_loss(
        new, old, gains, offsets, mask, ref_log_probs=old, kl_loss_coef=0.1, kl_loss_estimator="k3"
    )
    found.loss.backward()
    assert bool(torch.isfinite(new.grad).all())
    assert new.grad[1] == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: F.gae(t["rewards"], t["values"][:3], OFFSETS), "values of shape (3,)"),
        (lambda t: F.gae(t["rewards"].half(), t["values"], OFFSETS), "rewards is torch.float16"),
        (lambda t: F.gae(t["rewards"], t["values"], OFFSETS[:-1]), "from 0 to the number of tok"),
        (lambda t: F.gae(t["rewards"], t["values"], OFFSETS, MASK[:2]), "mask of shape (2,)"),
        (lambda t: F.gae(t["rewards"], t["values"], OFFSETS.flip(0)), "ascend"),
        (lambda t: F.whiten(t["values"].view(3, 3), MASK), "mask of shape (9,)"),
        (lambda t: F.gae(t["rewards"].view(3, 3), t["values"].view(3, 3), OFFSETS), "padded"),
        (lambda t: F.place_rewards(t["scores"][:2], OFFSETS), "one number for each response"),
        (
            lambda t: F.response_rewards(t["scores"][:2], t["rewards"], OFFSETS),
            "one number for each response",
        ),
        (lambda t: F.grpo(t["scores"], ["a"]), "one id for each response"),
        (lambda t: F.grpo(t["lengths"], ["a"] * 3), "rewards is torch.int64"),
        (lambda t: F.kl(t["old"], t["ref"], kl_estimator="k5"), "must be 'k1', 'abs'"),
        (lambda t: F.policy_loss(t["old"], t["old"], t["ref"], OFFSETS, loss="pppo"), "mean ppo"),
        (lambda t: F.policy_loss(t["old"], t["old"], t["ref"], OFFSETS, pg_clap=1), "pg_clip"),
        (
            lambda t: F.policy_loss(t["old"], t["old"], t["ref"], OFFSETS, kl_loss_coef=1),
            "kl_loss_coef needs ref_log_probs=",
        ),
        (
            lambda t: F.gae(t["rewards"], t["rewards"], OFFSETS, gamma=2),
            "gamma=2: must be less than",
        ),
        (lambda t: F.aggregate(t["old"], OFFSETS, how="mean"), "token-mean"),
        (
            lambda t: F.policy_loss(t["old"], None, t["ref"], OFFSETS),
            "old_log_probs is None: an array",
        ),
        (
            lambda t: F.policy_loss(t["old"], t["old"], t["ref"], OFFSETS, sample_weight=t["old"]),
            "sample_weight of shape (9,)",
        ),
        (
            lambda t: F.policy_loss(
                t["old"],
                t["old"],
                t["ref"],
                OFFSETS,
                totals={"tokens": 6, "responses": 3, "rows": 3, "longest": 4},
            ),
            "have 9; a dict",
        ),
        (
            lambda t: F.policy_loss(
                t["old"],
                t["old"],
                t["ref"],
                OFFSETS,
                totals={"tokens": 6, "responses": 3, "rows": 3, "longest": 4},
            ),
            "ranks, with the mask of the batch",
        ),
        (
            lambda t: P.policy_loss(
                t["old"].view(3, 3), None, t["ref"].view(3, 3), MASK.view(3, 3)
            ),
            "old_log_probs is None: an array",
        ),
        (lambda t: P.gae(t["rewards"], t["values"], MASK), "[N, T] is needed"),
        (lambda t: P.gae(t["rewards"], t["values"], MASK.view(3, 3)), "and mask of shape (3, 3)"),
        (
            lambda t: F.importance_weights(t["old"], t["ref"], OFFSETS, level="word"),
            "must be 'token', 'segment'",
        ),
    ],
)
def test_wrong_arguments_have_distinct_errors(call, words):
    with pytest.raises(UsageError) as raised:
        call(columns_of("torch"))
    assert words in str(raised.value)


def test_non_finite_rewards_are_an_error():
    with pytest.raises(DataError, match="1 of 2 numbers are NaN"):
        F.grpo(torch.tensor([1.0, math.nan]), ["a", "a"])


@pytest.mark.parametrize("name", [*F.FUNCTIONS])
def test_examples_in_docstrings(name):
    names = {**vars(F), "np": np, "torch": torch}
    test = doctest.DocTestParser().get_doctest(getattr(F, name).__doc__, names, name, None, 0)
    outcome = doctest.DocTestRunner().run(test)
    assert outcome.attempted
    assert not outcome.failed


def test_stubs_have_the_signatures_of_the_functions():
    for path, text in stubs().items():
        assert path.read_text(encoding="utf-8") == text, "python -m tests.manual refreshes it"


# Numbers that are none

IN_ORDER = ("kl", "whiten", "proximal_log_probs")
"""Functions of arrays of any shape: an error names the index."""
ALSO_FINITE = {("whiten", "values"), ("policy_loss", "advantages")}
FINITE = ("log_probs", "old_log_probs", "infer_log_probs", "ref_log_probs")


def by_parameter(function, columns):
    return dict(zip(inspect.signature(function).parameters, columns, strict=False))


@pytest.mark.parametrize("module", [F, P], ids=["ragged", "padded"])
def test_a_number_that_is_not_finite_is_named_with_its_place(module):
    checked = set()
    for name, columns, knobs in CALLS:
        if name not in module.__all__ or knobs.get("loss", "ppo") != "ppo":
            continue
        columns = [x for x in columns if x != "offsets" or module is F]  # noqa: PLW2901
        names = by_parameter(getattr(module, name), columns)
        finite = [x for x in names if x in FINITE or (name, x) in ALSO_FINITE]
        for parameter, bad in zip(finite, (-math.inf, math.inf, math.nan), strict=False):
            arrays = columns_of("torch")
            if module is P:
                shaped = {k: x.view(3, 3) for k, x in arrays.items() if len(x) == 9}
                arrays |= shaped
            arrays[names[parameter]].view(-1)[5] = bad
            index = "index" if name in IN_ORDER else "token"
            with pytest.raises(DataError, match=f"^{parameter}: is {bad} at {index}.*; finite"):
                called(name, columns, knobs, arrays, module)
            checked.add((name, parameter))
    functions = {x: inspect.signature(getattr(module, x)).parameters for x in module.__all__
                 if inspect.isfunction(getattr(module, x))}  # fmt: skip
    taken = {(x, one) for x, found in functions.items() for one in found if one in FINITE}
    optional = {("policy_loss", x) for x in ("infer_log_probs", "ref_log_probs")}
    optional |= {("optimal_token_baseline", "infer_log_probs")}
    assert taken - checked <= optional


def test_the_index_of_a_padded_tensor_has_both_dimensions():
    log_probs, ref = (-torch.ones(2, 3) for _ in range(2))
    log_probs[1, 0] = log_probs[1, 2] = -math.inf
    mask = torch.tensor([[1, 1, 0], [1, 0, 1]])
    with pytest.raises(DataError, match=r"log_probs: is -inf at index \(1, 0\) \(and at 1 more\)"):
        F.kl(log_probs, ref, mask)


def numeric_options(function):
    return [
        name
        for name, one in inspect.signature(function).parameters.items()
        if one.kind is one.KEYWORD_ONLY
        and ("float" in str(one.annotation) or "int" in str(one.annotation))
        and not any(other in str(one.annotation) for other in ("Array", "Mapping"))
        and "ddof" not in name  # a command line has the digits as text
    ]


@pytest.mark.parametrize("value", [True, math.nan, "one"])
def test_numeric_options_of_functions_reject_what_is_no_number(value):
    for name, columns, _ in {call[0]: call for call in CALLS}.values():
        for option in numeric_options(getattr(F, name)):
            given = (value, 1.0) if option in ("bounds", "component_weights") else value
            with pytest.raises(UsageError, match=f"^{option}=.*number"):
                called(name, columns, {option: given}, columns_of("torch"))


MODELS: tuple[type[OptionModel], ...] = (rlpost.Recipe, rlpost.Numerics, LossOptions)


@pytest.mark.parametrize("model", MODELS)
def test_options_that_are_no_switches_reject_bools(model):
    for name, field in model.model_fields.items():
        # options of a user's own function may be switches
        if "bool" in str(field.annotation) or name in ("options", "loss_options"):
            continue
        for value in (True, False, (True, 1.0), {"a": True}):
            with pytest.raises(UsageError, match=rf"\b{name}\b|--"):
                model(**{name: value})
    assert rlpost.Recipe(drop_difficulty="0.1:0.95", whiten_advantages=False).drop_difficulty
    assert LossOptions(kl_loss_ratio=True).kl_loss_ratio
    assert torch.equal(
        *(F.grpo(torch.arange(2.0), [0, 0], norm_eps=kind(0.5)) for kind in (np.float32, float))
    )


# Aggregation

AGGREGATED = torch.linspace(-2.0, -0.5, 5), torch.tensor([0, 2, 5]), torch.tensor([1, 1, 1, 0, 1])
STEP = {"tokens": 9, "responses": 3, "rows": 3, "longest": 4}


@pytest.mark.parametrize(
    ("totals", "text"),
    [
        (5, "totals=5: .*must be a valid dictionary"),
        ({}, "'tokens' is missing"),
        (STEP | {"tokens": 1.5}, "'tokens' is 1.5"),
        (STEP | {"rows": True}, "'rows' is True"),
        (STEP | {"longest": -1}, "'longest' is -1"),
        (STEP | {"longest": 0}, "contradict each other"),
        (STEP | {"rows": 2}, "contradict each other"),
        (STEP | {"tokens": 0, "responses": 0}, "'tokens' is 0, but the responses here have"),
        (STEP | {"tokens": 4, "responses": 1}, "'responses' is 1, but the responses here have 2"),
    ],
)
def test_totals_are_those_of_a_step_that_has_the_responses(totals, text):
    with pytest.raises(UsageError, match=text):
        F.aggregate(*AGGREGATED, totals=totals)


@pytest.mark.parametrize("how", ABOUT_AGGREGATIONS)
def test_a_step_without_policy_tokens_has_the_loss_0(how):
    values, offsets, mask = AGGREGATED
    nothing = {"tokens": 0, "responses": np.int64(0), "rows": torch.tensor(3), "longest": 4}
    more = {"units": range(len(offsets) - 1), "advantages": values}
    for totals in (None, nothing, STEP):
        if totals and how in ("prompt-mean", "rollout-mean", "token-mean-by-sign"):
            with pytest.raises(UsageError, match="totals="):
                F.aggregate(values, offsets, mask, how=how, totals=totals, **more)
        else:
            assert F.aggregate(values, offsets, mask * 0, how=how, totals=totals, **more) == 0


@pytest.mark.parametrize(("how", "lacks"), [("prompt-mean", "units="), ("rollout-mean", "units="),
                                            ("token-mean-by-sign", "advantages=")])  # fmt: skip
def test_an_aggregation_needs_its_array(how, lacks):
    with pytest.raises(UsageError, match=lacks):
        F.aggregate(*AGGREGATED, how=how)


def test_losses_that_select_tokens_of_a_part_of_a_step_are_warned_of():
    values, offsets, mask = AGGREGATED
    own = {"tokens": int(mask.sum()), "responses": 2, "rows": 2, "longest": 4}
    arguments = (values, values, values, offsets, mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.policy_loss(*arguments, loss="kl_cov", totals=own)
        F.policy_loss(*arguments, totals=STEP)
    padded = [one[None] for one in (values, values, values, mask)]
    for loss, function, own in (
        ("clip_cov", F.policy_loss, arguments),
        ("kl_cov", P.policy_loss, padded),
    ):
        text = f"{loss}' selects tokens of each part.*not add up"
        with pytest.warns(UserWarning, match=text) as caught:
            function(*own, loss=loss, totals=STEP)
        assert [one.filename for one in caught] == [__file__]
