"""The functions give the numbers of the command, and order and names of groups do not matter."""

from __future__ import annotations

import pytest
import reference as slow
import torch
from functional_rows import (
    CLOSE,
    ONE_BATCH,
    SINGLE,
    F,
    advantages_of,
    few,
    flat,
    groups_of,
    mask_of,
    numbers,
    offsets_of,
    rewards_of,
    written,
)
from hypothesis import given
from hypothesis import strategies as st
from strategies import COMPONENTS

from rlpost.errors import DataError

OF_GROUPS = ("grpo", "dr_grpo", "rloo", "opo", "gpg", "grpo_passk", "max_rl")


@pytest.mark.parametrize("name", OF_GROUPS)
@few
@given(ONE_BATCH)
def test_advantages_of_groups(name, rows):
    found = advantages_of(name, rows)
    own = F.to_tokens(found, offsets_of(rows), mask_of(rows))
    torch.testing.assert_close(own, written(rows, estimator=name), **SINGLE)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(len(rows)))
    codes = {group: 7 - 3 * place for place, group in enumerate(dict.fromkeys(groups_of(rows)))}
    renamed = [slow.replace(row, group=codes[row.group]) for row in rows]
    moved = advantages_of(name, [renamed[i] for i in order.tolist()])
    torch.testing.assert_close(moved, found[order], rtol=0, atol=0)


@few
@given(ONE_BATCH, st.sampled_from([(1.0, 1.0), (1.0, 0.5)]))
def test_gdpo(rows, weights):
    components = torch.tensor([[r.components[name] for name in COMPONENTS] for r in rows])
    found = F.gdpo(components.double(), groups_of(rows), component_weights=weights)
    recipe = {"reward_components": COMPONENTS, "component_weights": weights}
    want = written(rows, estimator="gdpo", **recipe)
    own = F.to_tokens(found, offsets_of(rows), mask_of(rows))
    torch.testing.assert_close(own, want, rtol=1e-4, atol=1e-3)


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


# Scans: name, columns besides rewards, recipe.
VAPO = {"lambda_policy": 0.5, "lambda_value": 1.0, "length_adaptive_alpha": 0.1}
SCANS = [
    ("gae", ["values"], {"gamma": 0.9, "lam": 0.5}),
    ("gae", ["values"], {"gamma": 0.9, **VAPO}),
    ("turn_gae", ["values"], {"gamma": 0.9, "lam": 0.5}),
    ("vtrace", ["values", "old", "infer"], {"gamma": 0.9}),
    ("agentic_reinforce", [], {"gamma": 0.9}),
    ("discounted_returns", [], {"gamma": 0.9}),
]


@pytest.mark.parametrize(("name", "columns", "knobs"), SCANS)
@few
@given(ONE_BATCH)
def test_scans(name, columns, knobs, rows):
    rewards = F.place_rewards(rewards_of(rows), offsets_of(rows), mask_of(rows))
    others = [numbers(rows, column) for column in columns]
    found = getattr(F, name)(rewards, *others, offsets_of(rows), mask_of(rows), **knobs)
    recipe = {"estimator": "reinforce" if name == "discounted_returns" else name, **knobs}
    advantages, returns = found if others else (found, found)
    torch.testing.assert_close(advantages, written(rows, **recipe), **SINGLE)
    torch.testing.assert_close(returns, written(rows, "returns", **recipe), **SINGLE)
    whitened = written(rows, whiten_advantages=True, **recipe)
    torch.testing.assert_close(F.whiten(advantages, mask_of(rows)), whitened, **SINGLE)


@few
@given(ONE_BATCH)
def test_whitening_may_leave_the_mean(rows):
    values, mask = numbers(rows, "values"), mask_of(rows)
    inside = values[mask != 0]
    mean = inside.mean() if len(inside) > 1 else 0.0
    found = F.whiten(values, mask, shift_mean=False)
    loop = flat(slow.whitened_rewards(rows, [r.values for r in rows])) + mean
    torch.testing.assert_close(found, torch.where(mask != 0, loop, 0.0), **CLOSE)


@few
@given(ONE_BATCH)
def test_process_rewards_are_summed_with_those_on_observation_tokens(rows):
    found = F.response_rewards(rewards_of(rows), numbers(rows, "token_rewards"), offsets_of(rows))
    loop = [r.reward + sum(r.token_rewards) for r in rows]
    torch.testing.assert_close(found, torch.tensor(loop, dtype=found.dtype), **CLOSE)


@few
@given(ONE_BATCH, st.sampled_from(["token", "segment", "geometric", "sequence"]))
def test_importance_weights(rows, level):
    old, infer = numbers(rows, "old"), numbers(rows, "infer")
    found = F.importance_weights(old, infer, offsets_of(rows), mask_of(rows), level=level, cap=1.5)
    recipe = {"estimator": "raw", "is_weight": level, "is_cap": 1.5}
    torch.testing.assert_close(found.values, written(rows, "is_weight", **recipe), **SINGLE)
    assert not bool(found.truncated[mask_of(rows) == 0].any())


@few
@given(ONE_BATCH, st.sampled_from(["token:bkl::0.01", "geometric:k3::0.05", "batch:k2::0.0217"]))
def test_accepted_tokens(rows, text):
    old, infer = numbers(rows, "old"), numbers(rows, "infer")
    found = F.accepted_tokens(old, infer, offsets_of(rows), mask_of(rows), filters=[text])
    recipe = {"estimator": "raw", "is_filter": (text,), "emit": ("final_response_mask",)}
    try:
        want = written(rows, "final_response_mask", **recipe)
    except DataError:  # no response is left
        return
    assert found.tolist() == (want != 0).tolist()


@few
@given(ONE_BATCH, st.sampled_from(["k1", "abs", "k2", "k3", "k4"]))
def test_kl(rows, estimator):
    old, ref = numbers(rows, "old"), numbers(rows, "ref")
    found = F.kl(old, ref, mask_of(rows), kl_estimator=estimator)
    loop = [
        slow.divergence(a - b, estimator) * m
        for r in rows
        for a, b, m in zip(r.old, r.ref, r.mask, strict=True)
    ]
    torch.testing.assert_close(found, torch.tensor(loop, dtype=torch.float64), **CLOSE)
