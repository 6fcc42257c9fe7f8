"""What functions promise of tensors: inputs, dtypes, gradients, and errors of wrong arguments."""

from __future__ import annotations

import doctest
import importlib
import math
import warnings
from itertools import pairwise

import pytest
import torch
from functional_rows import SINGLE, F, P
from torch.autograd import forward_ad

from rlpost.errors import DataError, UsageError
from rlpost.losses import LOSSES
from rlpost.recipe.loss import LossOptions

TOKENS = 9
OFFSETS = torch.tensor([0, 4, 4, 9])
MASK = torch.tensor([1, 0, 1, 1, 1, 1, 0, 0, 1])


def given_tensors(dtype, device="cpu"):
    rng = torch.Generator().manual_seed(3)
    made = {
        name: -torch.rand(TOKENS, generator=rng, dtype=torch.float64)
        for name in ("log_probs", "old", "ref", "infer", "values", "rewards")
    }
    made["scores"] = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    made["components"] = torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    return {
        **{name: x.to(device, dtype) for name, x in made.items()},
        "offsets": OFFSETS.to(device),
        "mask": MASK.to(device),
        "groups": torch.tensor([0, 0, 0], device=device),
        "tokens": torch.tensor([3, 0, 3], device=device),
        "rollouts": torch.tensor([4, 4, 5], device=device),
        "turns": torch.tensor([1, 0, 0], device=device),
    }


def w(name, *columns, **knobs):
    return name, columns, knobs


CALLS = [
    w("gae", "rewards", "values", "offsets", "mask"),
    w("gae", "rewards", "values", "offsets", "mask", length_adaptive_alpha=0.5),
    w("discounted_returns", "rewards", "offsets", "mask", gamma=0.5),
    w("turn_gae", "rewards", "values", "offsets", "mask", gamma=0.9),
    w("agentic_reinforce", "rewards", "offsets", "mask", gamma=0.5),
    w("vtrace", "rewards", "values", "old", "infer", "offsets", "mask", gamma=0.9),
    w("mt_grpo", "scores", "scores", "turns", "rollouts", "groups", norm_std="none"),
    w("turn_credit", "scores", "scores", "turns", "rollouts", "groups", "tokens"),
    w("turn_returns", "scores", "turns", "rollouts", step_gamma=0.5),
    w("gar", "scores", "scores", "groups"),
    w("place_rewards", "scores", "offsets", "mask"),
    w("response_rewards", "scores", "rewards", "offsets"),
    w("to_tokens", "scores", "offsets", "mask"),
    w("grpo", "scores", "groups"),
    w("dr_grpo", "scores", "groups"),
    w("rloo", "scores", "groups"),
    w("opo", "scores", "tokens", "groups"),
    w("gpg", "scores", "groups"),
    w("grpo_passk", "scores", "groups"),
    w("max_rl", "scores", "groups"),
    w("gdpo", "components", "groups"),
    w("whiten", "values", "mask"),
    w("value_loss", "values", "old", "rewards", "mask", clip=0.3),
    w("kl", "log_probs", "ref", "mask", kl_estimator="k3"),
    w("importance_weights", "old", "infer", "offsets", "mask", level="segment"),
    w("accepted_tokens", "old", "infer", "offsets", "mask", filters=["batch:k2::0.1"]),
    w("top_entropy", "values", "mask", quantile=0.5),
    w("proximal_log_probs", "old", "infer", "values", "mask"),
    w("layout_weights", "values", "offsets", "mask", micro_batch=1, how="token-mean-by-sign"),
    w("aggregate", "values", "offsets", "mask", how="seq-mean-token-sum"),
    *(
        w("policy_loss", "log_probs", "old", "values", "offsets", "mask", loss=loss)
        for loss in LOSSES
        if loss not in ("ref_kl", "real")  # they need the reference and the groups: see below
    ),
]


def calls(chosen=CALLS):
    return pytest.mark.parametrize(("name", "columns", "knobs"), chosen)


def called(name, columns, knobs, tensors):
    found = getattr(F, name)(*(tensors[column] for column in columns), **knobs)
    return found if isinstance(found, tuple) else (found,)


def test_the_calls_cover_every_public_function():
    functions = {name for name in F.__all__ if callable(getattr(F, name)) and name.islower()}
    of_functions = {"per_rollout", "over_rollouts"}  # test_functional_rollouts.py has them
    assert functions == {name for name, _, _ in CALLS} | of_functions


def keeps_inputs_and_gives_their_type(name, columns, knobs, dtype, device):
    tensors = given_tensors(dtype, device)
    before = {key: x.clone() for key, x in tensors.items()}
    found = called(name, columns, knobs, tensors)
    for key, x in tensors.items():
        assert torch.equal(x, before[key]), key
    for one in found:
        assert one.device.type == device
        if one.is_floating_point():
            assert one.dtype == dtype
            assert all(one.data_ptr() != x.data_ptr() for x in tensors.values())
    exact = called(name, columns, knobs, given_tensors(torch.float64))[0]
    torch.testing.assert_close(found[0].cpu().double(), exact.double(), **SINGLE)


@calls()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_do_not_change_inputs_and_keep_the_dtype(name, columns, knobs, dtype):
    keeps_inputs_and_gives_their_type(name, columns, knobs, dtype, "cpu")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_results_on_a_gpu_equal_those_on_the_cpu():
    for call in CALLS:
        for dtype in (torch.float32, torch.float64):
            keeps_inputs_and_gives_their_type(*call, dtype, "cuda")


@calls([call for call in CALLS if "mask" in call[1]])
def test_values_on_observation_tokens_are_not_used(name, columns, knobs):
    tensors = given_tensors(torch.float64)
    spoilt = {
        key: torch.where(MASK != 0, x, math.nan)
        if x.is_floating_point() and x.shape == MASK.shape
        else x
        for key, x in tensors.items()
    }
    for one, wanted in zip(
        called(name, columns, knobs, spoilt), called(name, columns, knobs, tensors), strict=True
    ):
        torch.testing.assert_close(one, wanted, rtol=0, atol=0)


DIFFERENTIABLE = {
    "gae": ("rewards", "values"),
    "discounted_returns": ("rewards",),
    "turn_gae": ("rewards", "values"),
    "agentic_reinforce": ("rewards",),
    "vtrace": ("rewards", "values"),
    "place_rewards": ("scores",),
    "response_rewards": ("scores", "rewards"),
    "to_tokens": ("scores",),
    "whiten": ("values",),
    "value_loss": ("values",),
    "kl": ("log_probs", "ref"),
    "aggregate": ("values",),
}


# Advantages of groups and weights are constants; test_losses.py has the losses' gradients.
@calls([call for call in CALLS if call[0] in DIFFERENTIABLE])
def test_gradients_equal_difference_quotients(name, columns, knobs):
    tensors = given_tensors(torch.float64)
    chosen = DIFFERENTIABLE[name]

    def function(*inputs):
        found = called(name, columns, knobs, tensors | dict(zip(chosen, inputs, strict=True)))
        return tuple(one for one in found if one.is_floating_point())

    inputs = tuple(tensors[column].clone().requires_grad_() for column in chosen)
    assert torch.autograd.gradcheck(function, inputs)


@calls()
def test_constants_have_no_gradient(name, columns, knobs):
    tensors = {
        key: x.requires_grad_() if x.is_floating_point() else x
        for key, x in given_tensors(torch.float64).items()
    }
    found = called(name, columns, knobs, tensors)
    differentiable = name in DIFFERENTIABLE or name == "policy_loss"
    assert found[0].requires_grad == differentiable
    if name == "policy_loss":
        found[0].backward()
        assert tensors["log_probs"].grad is not None
        assert tensors["old"].grad is None
        assert tensors["values"].grad is None
        assert bool(tensors["log_probs"].grad[MASK == 0].eq(0).all())


def test_the_gradient_of_gspo_has_the_weight_of_each_token():
    """w·A·s of the token itself; autograd of the formula has the mean of w·A at each token."""
    numbers = torch.Generator().manual_seed(1)
    columns = torch.randn(4, 5, dtype=torch.float64, generator=numbers).mul(0.1)
    new, old, gains, weights = columns.unbind()
    new, weights, offsets = new.clone().requires_grad_(), weights.exp(), torch.tensor([0, 3, 5])
    options = {"loss": "gspo", "pg_clip": 9.0, "aggregation": "token-sum", "is_weight": weights}
    F.policy_loss(new, old, gains, offsets, **options).loss.backward()
    own = new.detach().clone().requires_grad_()
    parts, expected = [], []
    for i, j in pairwise(offsets.tolist()):
        ratio = (own[i:j] - old[i:j]).mean().exp()
        parts.append((-weights[i:j] * gains[i:j] * ratio).sum())
        expected += (-weights[i:j] * gains[i:j] * ratio.detach()).tolist()
    torch.stack(parts).sum().backward()
    assert new.grad.tolist() == pytest.approx(expected, rel=1e-9)
    assert float(new.grad[:3].sum()) == pytest.approx(float(own.grad[:3].sum()), rel=1e-9)
    assert new.grad.tolist() != pytest.approx(own.grad.tolist(), rel=1e-2)


def test_a_loss_that_needs_reference_log_probs_reports_their_absence():
    tensors = given_tensors(torch.float64)
    args = tensors["log_probs"], tensors["old"], tensors["values"], OFFSETS, MASK
    with pytest.raises(UsageError, match=r"ref_kl.* needs ref_log_probs="):
        F.policy_loss(*args, loss="ref_kl")
    assert F.policy_loss(*args, loss="ref_kl", ref_log_probs=tensors["ref"]).loss != 0
    with pytest.raises(UsageError, match=r"units="):
        F.policy_loss(*args, loss="real", aggregation="token-mean")


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
        (lambda t: F.grpo(t["scores"], ["a"]), "one id and one reward"),
        (lambda t: F.grpo(t["tokens"], ["a"] * 3), "rewards is torch.int64"),
        (lambda t: F.kl(t["old"], t["ref"], kl_estimator="k5"), "none of k1, abs"),
        (lambda t: F.policy_loss(t["old"], t["old"], t["ref"], OFFSETS, loss="pppo"), "mean ppo"),
        (lambda t: F.policy_loss(t["old"], t["old"], t["ref"], OFFSETS, pg_clap=1), "pg_clip"),
        (
            lambda t: F.policy_loss(t["old"], t["old"], t["ref"], OFFSETS, kl_loss_coef=1),
            "kl_loss_coef needs ref_log_probs=",
        ),
        (lambda t: F.gae(t["rewards"], t["rewards"], OFFSETS, gamma=2), "gamma=2: a number from 0"),
        (lambda t: F.aggregate(t["old"], OFFSETS, how="mean"), "token-mean"),
        (
            lambda t: F.policy_loss(t["old"], None, t["ref"], OFFSETS),
            "old_log_probs is None: an array",
        ),
        (
            lambda t: F.policy_loss(t["old"], t["old"], t["ref"], OFFSETS, sample_weight=MASK),
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
            "there is no mask=: pass that of the batch",
        ),
        (
            lambda t: P.policy_loss(
                t["old"].view(3, 3), None, t["ref"].view(3, 3), MASK.view(3, 3)
            ),
            "old_log_probs is None: an array",
        ),
        (lambda t: P.gae(t["rewards"], t["values"], MASK), "[B, T] is needed"),
        (lambda t: P.gae(t["rewards"], t["values"], MASK.view(3, 3)), "and mask of shape (3, 3)"),
        (
            lambda t: F.importance_weights(t["old"], t["ref"], OFFSETS, level="word"),
            "none of token",
        ),
    ],
)
def test_wrong_arguments_have_distinct_errors(call, words):
    with pytest.raises(UsageError) as raised:
        call(given_tensors(torch.float64))
    assert words in str(raised.value)


def test_non_finite_rewards_are_an_error():
    with pytest.raises(DataError, match="1 of 2 numbers are NaN"):
        F.grpo(torch.tensor([1.0, math.nan]), ["a", "a"])


def test_int32_offsets_and_masks_of_any_dtype_are_accepted():
    tensors = given_tensors(torch.float64)
    plain = F.gae(tensors["rewards"], tensors["values"], OFFSETS, MASK)
    other = F.gae(tensors["rewards"], tensors["values"], OFFSETS.int(), MASK.float())
    assert torch.equal(plain.advantages, other.advantages)


def test_functions_accept_no_tokens():
    empty, offsets = torch.zeros(0), torch.tensor([0, 0])
    assert F.gae(empty, empty, offsets).advantages.shape == (0,)
    assert F.policy_loss(empty, empty, empty, offsets).loss == 0
    assert F.grpo(empty, []).shape == (0,)


def test_a_loss_by_options_equals_the_loss_by_name():
    tensors = given_tensors(torch.float64)
    args = tensors["log_probs"], tensors["old"], tensors["values"], OFFSETS, MASK
    by_name = F.policy_loss(*args, loss="gspo", pg_clip=0.1)
    by_options = F.policy_loss(*args, loss=LossOptions(loss="gspo"), pg_clip=0.1)
    assert by_name.loss == by_options.loss


@pytest.mark.parametrize("name", ["groups", "tokens", "scans", "rollouts", "policy", "padded"])
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"rlpost.functional.{name}")
    outcome = doctest.testmod(module, extraglobs={"torch": torch})
    assert outcome.attempted
    assert not outcome.failed


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch's own
@pytest.mark.parametrize("name", ["gae", "discounted_returns"])
def test_forward_derivatives_equal_difference_quotients(name):
    offsets = torch.tensor([0, 5, 5, 37])
    rewards = torch.linspace(-1, 1, 37, dtype=torch.float64)
    toward = torch.linspace(2, -1, 37, dtype=torch.float64)
    rest = (torch.full_like(rewards, 0.3), offsets) if name == "gae" else (offsets,)

    def f(x):
        made = getattr(F, name)(x, *rest, gamma=0.9)
        return made[0] if isinstance(made, tuple) else made

    want = (f(rewards + 1e-6 * toward) - f(rewards - 1e-6 * toward)) / 2e-6
    with forward_ad.dual_level():
        got = forward_ad.unpack_dual(f(forward_ad.make_dual(rewards, toward))).tangent
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(torch.func.jvp(f, (rewards,), (toward,))[1], got)


def test_an_infinite_reward_gives_no_warning():
    rewards = torch.zeros(100)
    rewards[50] = torch.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = F.gae(rewards, torch.zeros(100), torch.tensor([0, 100]))
    assert made[0][0].isinf()
