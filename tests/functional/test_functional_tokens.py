"""rlpost.functional: against slow loops, against the commands, and what it promises of tensors."""

from __future__ import annotations

import pytest
import reference as slow
import reference_corrections as slow_weights
import reference_estimators as slow_estimators
import torch
from functional_rows import (
    CLOSE,
    ONE_BATCH,
    SINGLE,
    F,
    P,
    assert_padded_equals,
    few,
    flat,
    mask_of,
    numbers,
    offsets_of,
    padded,
    padded_mask,
    rewards_of,
    written,
)
from hypothesis import given
from hypothesis import strategies as st

from rlpost.errors import DataError


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


@few
@given(ONE_BATCH, st.sampled_from(["token:bkl::0.01", "geometric:k3::0.05", "batch:k2::0.0217"]))
def test_accepted_tokens_equal_the_command(rows, text):
    old, infer = numbers(rows, "old"), numbers(rows, "infer")
    found = F.accepted_tokens(old, infer, offsets_of(rows), mask_of(rows), filters=[text])
    try:
        want = written(
            rows,
            "final_response_mask",
            estimator="raw",
            is_filter=(text,),
            emit=("final_response_mask",),
        )
    except DataError:  # no response is left
        return
    assert found.tolist() == (want != 0).tolist()
    twin = P.accepted_tokens(
        padded(rows, old), padded(rows, infer), padded_mask(rows), filters=[text]
    )
    assert_padded_equals(rows, twin, found)


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
