"""Policy losses: against loops, padded, with a KL loss, by options and aggregations."""

from __future__ import annotations

import pytest
import reference_losses as slow_losses
import torch
from functional_rows import (
    CLOSE,
    ONE_BATCH,
    F,
    P,
    assert_padded_equals,
    few,
    groups_of,
    mask_of,
    numbers,
    offsets_of,
    padded,
    padded_mask,
    rewards_of,
)
from hypothesis import given

from rlpost.recipe.loss import AGGREGATIONS
from rlpost.recipe.presets import loss_preset


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
    units = [i // 2 for i in range(len(rows))]
    knobs = {"loss": name, "aggregation": how, "agg_length": 7, "units": units}
    found = F.policy_loss(new, old, advantages, **structure, **knobs)
    own = loss_rows(rows, advantages)
    loop = [getattr(slow_losses, name)(row) for row in own]
    values = [[one[0] for one in row] for row in loop]
    lengths = [len(r.mask) for r in rows]
    gains = [row.advantages for row in own]
    wanted = slow_losses.aggregate(values, lengths, how, length=7, units=units, advantages=gains)
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
    gains, units = [[1.0, -1.0], [], [0.0, 2.0]], ["p", "q", "p"]
    for every_row, by_rows in ((False, False), (True, True)):
        wanted = slow_losses.aggregate(
            rows, lengths, how, weights=weights, every_row=every_row, by_rows=by_rows,
            units=units, advantages=gains,
        )  # fmt: skip
        found = F.aggregate(
            values,
            offsets,
            mask,
            how=how,
            weights=torch.tensor(weights),
            units=units,
            advantages=torch.tensor([1.0, 9.0, -1.0, 0.0, 2.0]),
            count_rows="all" if every_row else "valid",
            norm="rows" if by_rows else "length",
        )
        assert found.item() == pytest.approx(wanted)
