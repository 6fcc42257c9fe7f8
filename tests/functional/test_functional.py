"""rlpost.functional: against slow loops, against the commands, and what it promises of tensors."""

from __future__ import annotations

import doctest
import importlib
import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import reference as slow
import reference_corrections as slow_weights
import reference_estimators as slow_estimators
import reference_losses as slow_losses
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import COMPONENTS, rollouts, to_table
from torch.autograd import forward_ad

import rlpost
from rlpost.errors import DataError, UsageError
from rlpost.losses import LOSSES
from rlpost.recipe.loss import AGGREGATIONS, LossOptions
from rlpost.recipe.presets import loss_preset

F = rlpost.functional
P = F.padded
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SINGLE = {"rtol": 2e-5, "atol": 2e-5}
ONE_BATCH = rollouts(max_batches=1, max_groups=3, max_group_size=4, max_tokens=8)
few = settings(max_examples=25)


def numbers(rows, name, dtype=torch.float64):
    return torch.tensor([x for row in rows for x in getattr(row, name)], dtype=dtype)


def offsets_of(rows):
    return torch.tensor([0, *np.cumsum([len(row.mask) for row in rows])])


def mask_of(rows):
    return numbers(rows, "mask", torch.int64)


def rewards_of(rows, dtype=torch.float64):
    return torch.tensor([row.reward for row in rows], dtype=dtype)


def groups_of(rows):
    return [row.group for row in rows]


def flat(lists):
    return torch.tensor([x for row in lists for x in row], dtype=torch.float64)


def by_response(rows, found):
    """One number per response, [N], from a loop that gives it to all policy tokens."""
    return [next((x for x, m in zip(xs, r.mask, strict=True) if m), None) for r, xs in zip(
        rows, found, strict=True
    )]  # fmt: skip


def padded(rows, ragged, fill=math.nan):
    """[B, T] of ragged tokens, with something on the padding that nobody may look at."""
    width = max(len(row.mask) for row in rows)
    out = torch.full((len(rows), width), fill, dtype=ragged.dtype)
    for place, (start, stop) in enumerate(pairwise(offsets_of(rows).tolist())):
        out[place, : stop - start] = ragged[start:stop]
    return out


def padded_mask(rows):
    return padded(rows, mask_of(rows), fill=0)


def assert_padded_equals(rows, padded_result, ragged_result):
    torch.testing.assert_close(padded_result, padded(rows, ragged_result, 0), **CLOSE)


@few
@given(ONE_BATCH)
def test_process_rewards_are_summed_as_the_pipeline_does(rows):
    token_rewards = numbers(rows, "token_rewards")
    found = F.response_rewards(rewards_of(rows), token_rewards, offsets_of(rows))
    loop = [r.reward + sum(r.token_rewards) for r in rows]
    torch.testing.assert_close(found, torch.tensor(loop, dtype=found.dtype), **CLOSE)
    twin = P.response_rewards(rewards_of(rows), padded(rows, token_rewards, 0))
    torch.testing.assert_close(twin, found, **CLOSE)


# Scans


@few
@given(ONE_BATCH, st.sampled_from([1.0, 0.9, 0.0]), st.sampled_from([0.95, 1.0, 0.0]))
def test_gae_equals_the_loop(rows, gamma, lam):
    rewards = F.place_rewards(rewards_of(rows), offsets_of(rows), mask_of(rows))
    values = numbers(rows, "values")
    found = F.gae(rewards, values, offsets_of(rows), mask_of(rows), gamma=gamma, lam=lam)
    placed = [[0.0] * len(r.mask) for r in rows]
    for r, row in zip(rows, placed, strict=True):
        if any(r.mask):
            row[max(t for t, m in enumerate(r.mask) if m)] = r.reward
    for one, loop in zip(
        found, slow_estimators.gae(rows, placed, gamma=gamma, lam=lam), strict=True
    ):
        torch.testing.assert_close(one, flat(loop), **CLOSE)
    args = padded(rows, rewards), padded(rows, values), padded_mask(rows)
    for one, ragged in zip(P.gae(*args, gamma=gamma, lam=lam), found, strict=True):
        assert_padded_equals(rows, one, ragged)


@few
@given(ONE_BATCH)
def test_gae_with_the_lambdas_of_vapo_equals_the_loop(rows):
    knobs = {"gamma": 0.9, "lambda_policy": 0.5, "lambda_value": 1.0, "length_adaptive_alpha": 0.1}
    rewards = numbers(rows, "token_rewards")
    found = F.gae(rewards, numbers(rows, "values"), offsets_of(rows), mask_of(rows), **knobs)
    own = [[x * m for x, m in zip(r.token_rewards, r.mask, strict=True)] for r in rows]
    for one, loop in zip(found, slow_estimators.gae(rows, own, **knobs), strict=True):
        torch.testing.assert_close(one, flat(loop), **CLOSE)


@few
@given(ONE_BATCH, st.sampled_from([1.0, 0.9, 0.0]))
def test_discounted_returns_equal_the_loop(rows, gamma):
    rewards = numbers(rows, "token_rewards")
    found = F.discounted_returns(rewards, offsets_of(rows), mask_of(rows), gamma=gamma)
    own = [[x * m for x, m in zip(r.token_rewards, r.mask, strict=True)] for r in rows]
    loop, _ = slow_estimators.reinforce(rows, own, gamma=gamma)
    torch.testing.assert_close(found, flat(loop), **CLOSE)
    twin = P.discounted_returns(padded(rows, rewards), padded_mask(rows), gamma=gamma)
    assert_padded_equals(rows, twin, found)


@few
@given(ONE_BATCH)
def test_rewards_are_placed_on_the_last_policy_token_or_on_all(rows):
    structure = offsets_of(rows), mask_of(rows)
    found = F.place_rewards(rewards_of(rows), *structure)
    bare = [slow.replace(r, token_rewards=None) for r in rows]
    loop = slow.token_rewards(bare, [r.reward for r in rows])
    torch.testing.assert_close(found, flat(loop), **CLOSE)
    everywhere = F.to_tokens(rewards_of(rows), *structure)
    torch.testing.assert_close(
        everywhere, flat(slow_estimators.spread_out(rows, [r.reward for r in rows])), **CLOSE
    )
    assert_padded_equals(rows, P.place_rewards(rewards_of(rows), padded_mask(rows)), found)
    assert_padded_equals(rows, P.to_tokens(rewards_of(rows), padded_mask(rows)), everywhere)


# Groups

LOOPS = {
    "grpo": lambda rows, _: slow_estimators.outcome(
        rows, slow_estimators.z_scores(groups_of(rows), [r.reward for r in rows])
    ),
    **{
        name: getattr(slow_estimators, name)
        for name in ("dr_grpo", "rloo", "opo", "gpg", "grpo_passk", "max_rl")
    },
}


def asked(name, rows, dtype=torch.float64):
    if name == "opo":
        tokens = torch.tensor([row.length for row in rows])
        return F.opo(rewards_of(rows, dtype), tokens, groups_of(rows))
    return getattr(F, name)(rewards_of(rows, dtype), groups_of(rows))


@pytest.mark.parametrize("name", LOOPS)
@few
@given(ONE_BATCH)
def test_group_advantages_equal_the_loop(name, rows):
    scores = [[r.reward] for r in rows]
    loop = by_response(rows, LOOPS[name](rows, scores)[0])
    for one, wanted in zip(asked(name, rows).tolist(), loop, strict=True):
        assert wanted is None or one == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@few
@given(ONE_BATCH, st.sampled_from([(1.0, 1.0), (1.0, 0.5)]))
def test_gdpo_equals_the_loop(rows, weights):
    components = torch.tensor([[r.components[name] for name in COMPONENTS] for r in rows])
    found = F.gdpo(components.double(), groups_of(rows), component_weights=weights)
    named = dict(zip(COMPONENTS, weights, strict=True))
    loop = by_response(rows, slow_estimators.gdpo(rows, [], weights=named)[0])
    for one, wanted in zip(found.tolist(), loop, strict=True):
        assert wanted is None or one == pytest.approx(wanted, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("name", LOOPS)
@few
@given(ONE_BATCH)
def test_order_and_names_of_groups_do_not_matter(name, rows):
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(len(rows)))
    shuffled = asked(name, [rows[i] for i in order.tolist()])
    codes = {group: 7 - 3 * place for place, group in enumerate(dict.fromkeys(groups_of(rows)))}
    renamed = asked(name, [slow.replace(row, group=codes[row.group]) for row in rows])
    torch.testing.assert_close(shuffled, asked(name, rows)[order], rtol=0, atol=0)
    torch.testing.assert_close(renamed, asked(name, rows), rtol=0, atol=0)


def test_groups_may_be_a_tensor_or_names():
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0])
    by_name = F.grpo(rewards, ["b", "b", "a", "a"])
    assert torch.equal(by_name, F.grpo(rewards, torch.tensor([-1, -1, 9, 9])))
    assert by_name[2:].tolist() == [0.0, 0.0]


def test_norms_of_others_and_of_none():
    rewards = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    others = F.grpo(rewards, [0, 0, 0], norm_mean="others", norm_std="none")
    torch.testing.assert_close(others, F.rloo(rewards, [0, 0, 0]))
    torch.testing.assert_close(
        F.grpo(rewards, [0, 0, 0], norm_std="none"), F.dr_grpo(rewards, [0, 0, 0])
    )


# The same numbers as the command

COMMANDS = {
    "grpo": lambda rows: asked("grpo", rows, torch.float32),
    "dr_grpo": lambda rows: asked("dr_grpo", rows, torch.float32),
    "rloo": lambda rows: asked("rloo", rows, torch.float32),
    "opo": lambda rows: asked("opo", rows, torch.float32),
    "gpg": lambda rows: asked("gpg", rows, torch.float32),
    "grpo_passk": lambda rows: asked("grpo_passk", rows, torch.float32),
    "max_rl": lambda rows: asked("max_rl", rows, torch.float32),
}
PLAIN = ("prompt_id", "reward", "response_mask", "values", "old_log_probs", "infer_log_probs")


def table_of(rows):
    table = to_table(rows)
    return table.select([name for name in PLAIN if name in table.column_names])


def written(rows, column="advantages", **recipe):
    made, _ = rlpost.enrich(table_of(rows), rlpost.Recipe(**recipe))
    return flat(made[column].to_pylist())


@pytest.mark.parametrize("name", COMMANDS)
@few
@given(ONE_BATCH)
def test_group_advantages_equal_those_of_the_command(name, rows):
    found = F.to_tokens(COMMANDS[name](rows), offsets_of(rows), mask_of(rows))
    torch.testing.assert_close(found.double(), written(rows, estimator=name), **SINGLE)


@few
@given(ONE_BATCH)
def test_gae_and_reinforce_pp_equal_those_of_the_command(rows):
    structure = offsets_of(rows), mask_of(rows)
    rewards = F.place_rewards(rewards_of(rows), *structure)
    found = F.gae(rewards, numbers(rows, "values"), *structure, gamma=0.9)
    whitened = F.whiten(found.advantages, structure[1])
    recipe = {"estimator": "gae", "gamma": 0.9}
    torch.testing.assert_close(found.returns, written(rows, "returns", **recipe), **SINGLE)
    torch.testing.assert_close(whitened, written(rows, whiten_advantages=True, **recipe), **SINGLE)
    plain = F.discounted_returns(rewards, *structure, gamma=0.9)
    torch.testing.assert_close(
        F.whiten(plain, structure[1]),
        written(rows, estimator="reinforce_pp", gamma=0.9),
        **SINGLE,
    )


@pytest.mark.parametrize("level", ["token", "segment", "geometric", "sequence"])
@few
@given(ONE_BATCH)
def test_importance_weights_equal_the_command_and_the_loop(level, rows):
    old, infer = numbers(rows, "old"), numbers(rows, "infer")
    structure = offsets_of(rows), mask_of(rows)
    found = F.importance_weights(old, infer, *structure, level=level, cap=1.5)
    loop = flat(slow_weights.weights(rows, level, cap=1.5))
    torch.testing.assert_close(found.values, loop, **CLOSE)
    recipe = {"estimator": "raw", "is_weight": level, "is_cap": 1.5}
    torch.testing.assert_close(found.values, written(rows, "is_weight", **recipe), **SINGLE)
    twin = P.importance_weights(
        padded(rows, old), padded(rows, infer), padded_mask(rows), level=level, cap=1.5
    )
    assert_padded_equals(rows, twin.values, found.values)
    assert not bool(found.truncated[mask_of(rows) == 0].any())


# Tokens of any shape


@few
@given(ONE_BATCH, st.booleans())
def test_whitening_equals_the_loop(rows, shift_mean):
    values = numbers(rows, "values")
    found = F.whiten(values, mask_of(rows), shift_mean=shift_mean)
    loop = flat(slow.whitened_rewards(rows, [r.values for r in rows]))
    inside = values[mask_of(rows) != 0]
    if not shift_mean and len(inside) > 1:
        loop = torch.where(mask_of(rows) != 0, loop + inside.mean(), 0.0)
    torch.testing.assert_close(found, loop, **CLOSE)
    twin = F.whiten(padded(rows, values), padded_mask(rows), shift_mean=shift_mean)
    assert_padded_equals(rows, twin, found)


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3", "k4"])
@few
@given(ONE_BATCH)
def test_kl_equals_the_loop(estimator, rows):
    old, ref = numbers(rows, "old"), numbers(rows, "ref")
    found = F.kl(old, ref, mask_of(rows), kl_estimator=estimator)
    loop = [
        slow.divergence(a - b, estimator) * m
        for r in rows
        for a, b, m in zip(r.old, r.ref, r.mask, strict=True)
    ]
    torch.testing.assert_close(found, torch.tensor(loop, dtype=torch.float64), **CLOSE)
    twin = P.kl(padded(rows, old), padded(rows, ref), padded_mask(rows), kl_estimator=estimator)
    assert_padded_equals(rows, twin, found)


# Policy losses


def loss_rows(rows, advantages):
    starts = offsets_of(rows).tolist()
    found = []
    for r, start in zip(rows, starts[:-1], strict=True):
        own = [t for t, m in enumerate(r.mask) if m]
        gains = [float(advantages[start + t]) for t in own]
        current = [r.current[t] for t in own]
        old, ref = [r.old[t] for t in own], [r.ref[t] for t in own]
        found.append(slow_losses.Row(current, current, old, ref, gains, r.reward))
    return found


def loss_inputs(rows):
    advantages = F.to_tokens(F.dr_grpo(rewards_of(rows), groups_of(rows)), offsets_of(rows))
    new = numbers(rows, "current").requires_grad_()
    return new, numbers(rows, "old"), advantages


@pytest.mark.parametrize("name", ["ppo", "gspo", "cispo", "tis", "geo_mean", "sapo"])
@pytest.mark.parametrize("how", AGGREGATIONS)
@few
@given(ONE_BATCH)
def test_policy_loss_equals_the_loop_and_the_padded_function(name, how, rows):
    new, old, advantages = loss_inputs(rows)
    structure = {"offsets": offsets_of(rows), "mask": mask_of(rows)}
    knobs = {"loss": name, "aggregation": how, "agg_length": 7}
    found = F.policy_loss(new, old, advantages, **structure, **knobs)
    loop = [getattr(slow_losses, name)(row) for row in loss_rows(rows, advantages)]
    values = [[one[0] for one in row] for row in loop]
    lengths = [len(r.mask) for r in rows]
    wanted = slow_losses.aggregate(values, lengths, how, length=7)
    assert found.loss.item() == pytest.approx(wanted, rel=1e-8, abs=1e-10)
    twin = P.policy_loss(
        padded(rows, new.detach()).requires_grad_(),
        padded(rows, old),
        padded(rows, advantages),
        padded_mask(rows),
        **knobs,
    )
    torch.testing.assert_close(twin.loss, found.loss, **CLOSE)
    assert_padded_equals(rows, twin.tokens.detach(), found.tokens.detach())


@few
@given(ONE_BATCH)
def test_the_kl_loss_is_added(rows):
    new, old, advantages = loss_inputs(rows)
    args = new, old, advantages, offsets_of(rows), mask_of(rows)
    ref = numbers(rows, "ref")
    plain = F.policy_loss(*args).loss
    found = F.policy_loss(*args, ref_log_probs=ref, kl_loss_coef=0.5, kl_loss_estimator="k2").loss
    kl = F.aggregate(F.kl(new, ref, args[-1], kl_estimator="k2"), *args[-2:])
    torch.testing.assert_close(found, plain + 0.5 * kl, **CLOSE)


@pytest.mark.parametrize("preset", ["verl", "trl"])
def test_the_loss_of_a_framework_is_that_of_its_options(preset):
    new, old, gains = (
        torch.tensor([-1.0, -4.0]),
        torch.tensor([-1.5, -1.0]),
        torch.tensor([1.0, -1]),
    )
    options = loss_preset(preset, loss="ppo")
    found = F.policy_loss(new, old, gains, torch.tensor([0, 2]), loss=options)
    set_ones = options.model_dump(mode="json", exclude_defaults=True)
    assert found.loss == F.policy_loss(new, old, gains, torch.tensor([0, 2]), **set_ones).loss


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_aggregation_equals_the_loop(how):
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=torch.float64)
    offsets, mask = torch.tensor([0, 3, 3, 5]), torch.tensor([1, 0, 1, 1, 1])
    rows, lengths, weights = [[1.0, 4.0], [], [8.0, 16.0]], [3, 0, 2], [2.0, 1.0, 0.5]
    for every_row, by_rows in ((False, False), (True, True)):
        wanted = slow_losses.aggregate(
            rows, lengths, how, weights=weights, every_row=every_row, by_rows=by_rows
        )
        found = F.aggregate(
            values,
            offsets,
            mask,
            how=how,
            weights=torch.tensor(weights),
            count_rows="all" if every_row else "valid",
            norm="rows" if by_rows else "length",
        )
        assert found.item() == pytest.approx(wanted)


# What is promised of tensors

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
    }


def w(name, *columns, **knobs):
    return name, columns, knobs


CALLS = [
    w("gae", "rewards", "values", "offsets", "mask"),
    w("gae", "rewards", "values", "offsets", "mask", length_adaptive_alpha=0.5),
    w("discounted_returns", "rewards", "offsets", "mask", gamma=0.5),
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
    w("kl", "log_probs", "ref", "mask", kl_estimator="k3"),
    w("importance_weights", "old", "infer", "offsets", "mask", level="segment"),
    w("aggregate", "values", "offsets", "mask", how="seq-mean-token-sum"),
    *(
        w("policy_loss", "log_probs", "old", "values", "offsets", "mask", loss=loss)
        for loss in LOSSES
        if loss != "ref_kl"  # it asks for the reference; below it has it
    ),
]


def calls(chosen=CALLS):
    return pytest.mark.parametrize(("name", "columns", "knobs"), chosen)


def called(name, columns, knobs, tensors):
    found = getattr(F, name)(*(tensors[column] for column in columns), **knobs)
    return found if isinstance(found, tuple) else (found,)


def test_the_calls_cover_every_public_function():
    functions = {name for name in F.__all__ if callable(getattr(F, name)) and name.islower()}
    assert functions == {name for name, _, _ in CALLS}


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
    torch.testing.assert_close(found[0].cpu().double(), exact, **SINGLE)


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
    "place_rewards": ("scores",),
    "response_rewards": ("scores", "rewards"),
    "to_tokens": ("scores",),
    "whiten": ("values",),
    "kl": ("log_probs", "ref"),
    "aggregate": ("values",),
}


# Advantages of groups and weights are constants; test_losses.py has the losses' gradients.
@calls([call for call in CALLS if call[0] in DIFFERENTIABLE])
def test_gradients_equal_difference_quotients(name, columns, knobs):
    tensors = given_tensors(torch.float64)
    chosen = DIFFERENTIABLE[name]

    def function(*inputs):
        return called(name, columns, knobs, tensors | dict(zip(chosen, inputs, strict=True)))

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
        (lambda t: F.aggregate(t["old"], OFFSETS, how="mean"), "token-mean"),
        (lambda t: F.policy_loss(t["old"], None, t["ref"], OFFSETS), "old_log_probs is None: a t"),
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
            "old_log_probs is None: a tensor",
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


@pytest.mark.parametrize("name", ["groups", "tokens", "policy", "padded"])
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
