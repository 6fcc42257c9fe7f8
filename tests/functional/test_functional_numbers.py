"""Numbers that are none: log-probs that are not finite, and bools in place of numbers."""

import inspect
import math
import warnings

import numpy as np
import pytest
import torch

import rlpost
from rlpost import functional as F  # noqa: N812
from rlpost.errors import DataError, UsageError
from rlpost.functional import padded as P  # noqa: N812
from rlpost.recipe.base import OptionModel
from rlpost.recipe.loss import AGGREGATIONS, LossOptions

OFFSETS, MASK = torch.tensor([0, 2, 5]), torch.tensor([1, 1, 1, 0, 1])
WIDE = torch.tensor([[1, 1, 0], [1, 0, 1]])


def ragged(count):
    return [torch.linspace(-2.0, -0.5, 5) - 0.1 * i for i in range(count)]


def wide(count):
    return [torch.linspace(-2.0, -0.5, 6).view(2, 3) - 0.1 * i for i in range(count)]


CALLS = {
    "kl": (F.kl, {"mask": MASK}, ("log_probs", "ref_log_probs")),
    "importance_weights": (F.importance_weights, {"offsets": OFFSETS, "mask": MASK},
                           ("old_log_probs", "infer_log_probs")),
    "policy_loss": (F.policy_loss, {"offsets": OFFSETS, "mask": MASK, "kl_loss_coef": 0.1},
                    ("log_probs", "old_log_probs", "advantages", "infer_log_probs",
                     "ref_log_probs", "is_weight")),
    "accepted_tokens": (F.accepted_tokens, {"offsets": OFFSETS, "mask": MASK},
                        ("old_log_probs", "infer_log_probs")),
    "padded.accepted_tokens": (P.accepted_tokens, {"mask": WIDE},
                               ("old_log_probs", "infer_log_probs")),
    "proximal_log_probs": (F.proximal_log_probs, {"mask": MASK, "age": ragged(1)[0].abs()},
                           ("log_probs", "infer_log_probs")),
    "padded.proximal_log_probs": (P.proximal_log_probs, {"mask": WIDE, "age": wide(1)[0].abs()},
                                  ("log_probs", "infer_log_probs")),
    "whiten": (F.whiten, {"mask": MASK}, ("values",)),
    "vtrace": (F.vtrace, {"offsets": OFFSETS, "mask": MASK, "rewards": ragged(1)[0],
                          "values": ragged(1)[0]}, ("old_log_probs", "infer_log_probs")),
    "padded.vtrace": (P.vtrace, {"mask": WIDE, "rewards": wide(1)[0], "values": wide(1)[0]},
                      ("old_log_probs", "infer_log_probs")),
    "padded.kl": (P.kl, {"mask": WIDE}, ("log_probs", "ref_log_probs")),
    "padded.importance_weights": (P.importance_weights, {"mask": WIDE},
                                  ("old_log_probs", "infer_log_probs")),
    "padded.policy_loss": (P.policy_loss, {"mask": WIDE},
                           ("log_probs", "old_log_probs", "advantages", "infer_log_probs",
                            "ref_log_probs")),
}  # fmt: skip
CASES = [(name, column) for name, (_, _, columns) in CALLS.items() for column in columns]


def test_every_function_of_log_probs_is_tested():
    for module, prefix in ((F, ""), (P, "padded.")):
        for name in module.__all__:
            parameters = (
                inspect.signature(getattr(module, name)).parameters
                if inspect.isfunction(getattr(module, name))
                else ()
            )
            taken = {one for one in parameters if one.endswith("log_probs")}
            assert taken <= {column for key, column in CASES if key == prefix + name}, name


@pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize(("name", "column"), CASES)
def test_a_number_that_is_not_finite_is_named_with_its_place(name, column, bad):
    function, options, columns = CALLS[name]
    flat = "padded" not in name
    tensors = dict(zip(columns, (ragged if flat else wide)(len(columns)), strict=True))
    function(**tensors, **options)
    tensors[column] = tensors[column].clone()
    tensors[column].view(-1)[3] = bad if flat else tensors[column].view(-1)[3]
    if flat:  # position 3 is an observation token
        function(**tensors, **options)
    tensors[column].view(-1)[4 if flat else 5] = bad
    place = (
        "index"
        if name.endswith(("kl", "whiten", "proximal_log_probs"))
        else "token 2 of response 1"
    )
    with pytest.raises(DataError, match=f"^{column}: is {bad} at {place}.*; finite numbers"):
        function(**tensors, **options)


def test_the_index_of_a_padded_tensor_has_both_dimensions():
    log_probs, ref = wide(2)
    log_probs[1, 0] = log_probs[1, 2] = -math.inf
    with pytest.raises(DataError, match=r"log_probs: is -inf at index \(1, 0\) \(and at 1 more\)"):
        F.kl(log_probs, ref, WIDE)


# Bools


def numeric_options(function):
    return [
        name
        for name, one in inspect.signature(function).parameters.items()
        if one.kind is one.KEYWORD_ONLY
        and ("float" in str(one.annotation) or "int" in str(one.annotation))
        and not any(other in str(one.annotation) for other in ("Array", "Mapping"))
    ]


REWARDS, GROUPS = torch.tensor([0.0, 1.0]), ["a", "a"]
ARGUMENTS = {
    "grpo": (REWARDS, GROUPS),
    "gpg": (REWARDS, GROUPS),
    "grpo_passk": (REWARDS, GROUPS),
    "gdpo": (torch.eye(2), GROUPS),
    "gae": (*ragged(2), OFFSETS, MASK),
    "discounted_returns": (*ragged(1), OFFSETS, MASK),
    "turn_gae": (*ragged(2), OFFSETS, MASK),
    "agentic_reinforce": (*ragged(1), OFFSETS, MASK),
    "vtrace": (*ragged(2), *ragged(2), OFFSETS, MASK),
    "mt_grpo": (REWARDS, REWARDS, torch.arange(2), GROUPS, GROUPS),
    "turn_credit": (REWARDS, REWARDS, torch.arange(2), GROUPS, GROUPS, torch.ones(2)),
    "turn_returns": (REWARDS, torch.arange(2), GROUPS),
    "gar": (REWARDS, REWARDS, GROUPS),
    "whiten": (*ragged(1), MASK),
    "value_loss": (*ragged(3), MASK),
    "kl": (*ragged(2), MASK),
    "importance_weights": (*ragged(2), OFFSETS, MASK),
    "accepted_tokens": (*ragged(2), OFFSETS, MASK),
    "aggregate": (*ragged(1), OFFSETS, MASK),
    "top_entropy": (*ragged(1), MASK),
    "layout_weights": (*ragged(1), OFFSETS, MASK),
}
FUNCTIONS = [name for name in F.__all__ if inspect.isfunction(getattr(F, name))]
NUMERIC = [(name, one) for name in FUNCTIONS for one in numeric_options(getattr(F, name))]


@pytest.mark.parametrize(("name", "option"), NUMERIC)
@pytest.mark.parametrize("value", [True, math.nan, "1"])
def test_every_numeric_option_of_a_function_rejects_what_is_no_number(name, option, value):
    function, arguments = getattr(F, name), ARGUMENTS[name]
    given = (value, 1.0) if option in ("bounds", "component_weights") else value
    with pytest.raises(UsageError, match=f"^{option}=.*: a number is needed"):
        function(*arguments, **{option: given})


STEP = {"tokens": 9, "responses": 3, "rows": 3, "longest": 4}


@pytest.mark.parametrize(
    ("totals", "text"),
    [
        (5, "totals=5: a dict with tokens, responses, rows, longest of the whole step"),
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
        F.aggregate(*ARGUMENTS["aggregate"], totals=totals)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_a_step_without_policy_tokens_has_the_loss_0(how):
    values, offsets, mask = ARGUMENTS["aggregate"]
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
        F.aggregate(*ARGUMENTS["aggregate"], how=how)


def test_losses_that_select_tokens_of_a_part_of_a_step_are_warned_of():
    values, offsets, mask = ARGUMENTS["aggregate"]
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


def test_numbers_of_numpy_are_numbers():
    assert torch.equal(
        F.grpo(REWARDS, GROUPS, norm_eps=np.float32(0.5)), F.grpo(REWARDS, GROUPS, norm_eps=0.5)
    )


MODELS: tuple[type[OptionModel], ...] = (rlpost.Recipe, rlpost.Numerics, LossOptions)
FIELDS = [
    (model, name)
    for model in MODELS
    for name, field in model.model_fields.items()
    if "bool" not in str(field.annotation)
    and name not in ("options", "loss_options")  # of a user's own: any of them may be a switch
]


@pytest.mark.parametrize(("model", "name"), FIELDS)
@pytest.mark.parametrize("wrap", [bool, lambda x: (x, 1.0), lambda x: {"a": x}])
def test_every_option_that_is_no_switch_rejects_a_bool(model, name, wrap):
    for value in (True, False):
        with pytest.raises(UsageError, match=rf"\b{name}\b|--"):
            model(**{name: wrap(value)})


def test_a_switch_takes_a_bool():
    assert rlpost.Recipe(difficulty_mask=True, whiten_advantages=False).difficulty_mask
    assert LossOptions(cispo_mask=True, kl_loss_ratio=False).cispo_mask
