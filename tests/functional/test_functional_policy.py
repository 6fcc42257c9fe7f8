"""Policy losses as functions: those of the table, aggregated as the loop does, with a KL loss."""

from __future__ import annotations

import pytest
import reference_losses as slow_losses
import torch
from functional_rows import CLOSE, ONE_BATCH, F, groups_of, mask_of, numbers, offsets_of, rewards_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpost.errors import UsageError
from rlpost.losses import LOSSES, Tokens, loss_named
from rlpost.recipe.loss import ABOUT_AGGREGATIONS, LossOptions


def loss_inputs(rows):
    advantages = F.to_tokens(F.dr_grpo(rewards_of(rows), groups_of(rows)), offsets_of(rows))
    return numbers(rows, "current"), numbers(rows, "old"), advantages


def by_row(rows, values):
    """The values of policy tokens, row by row."""
    parts = values.split([len(r.mask) for r in rows])
    return [x[torch.tensor(r.mask) > 0].tolist() for x, r in zip(parts, rows, strict=True)]


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=8)
@given(ONE_BATCH)
def test_policy_loss_has_the_tokens_of_the_table(name, rows):
    new, old, advantages = loss_inputs(rows)
    rewards, ref = rewards_of(rows), numbers(rows, "ref")
    units = [i // 2 for i in range(len(rows))]
    structure = {"offsets": offsets_of(rows), "mask": mask_of(rows)}
    more = {"rewards": rewards, "ref_log_probs": ref, "units": units}
    found = F.policy_loss(new, old, advantages, **structure, loss=name, **more)
    columns = {"rewards": rewards, "ref": ref, "group": torch.tensor(units)}
    mask = mask_of(rows) > 0
    tokens = Tokens(new, old, advantages, mask, offsets_of(rows), **columns)
    want = loss_named(name)(tokens, LossOptions(loss=name))
    assert torch.equal(found.tokens, want.values)
    assert torch.equal(found.clip, want.clip)


CHOICES = st.fixed_dictionaries({
    "agg_rows": st.sampled_from(["valid", "all"]),
    "agg_norm": st.sampled_from(["length", "rows"]),
    "agg_length": st.sampled_from([None, 7]),
})  # fmt: skip


@pytest.mark.parametrize("how", ABOUT_AGGREGATIONS)
@settings(max_examples=20)
@given(rows=ONE_BATCH, choices=CHOICES, weighted=st.booleans())
def test_losses_are_aggregated_as_the_loop_does(how, rows, choices, weighted):
    new, old, advantages = loss_inputs(rows)
    count = len(rows)
    units = [(0, 1, 1, 0, 2, 2)[i % 6] for i in range(count)]
    weights = torch.linspace(0.5, 1.5, count, dtype=torch.float64) if weighted else None
    found = F.policy_loss(
        new, old, advantages, offsets_of(rows), mask_of(rows),
        aggregation=how, units=units, sample_weight=weights, **choices,
    )  # fmt: skip
    wanted = slow_losses.aggregate(
        by_row(rows, found.tokens),
        [len(r.mask) for r in rows],
        how,
        weights=None if weights is None else weights.tolist(),
        every_row=choices["agg_rows"] == "all",
        by_rows=choices["agg_norm"] == "rows",
        length=choices["agg_length"],
        units=units,
        advantages=by_row(rows, advantages),
    )
    assert found.loss.item() == pytest.approx(wanted, rel=1e-12, abs=1e-13)
    again = F.aggregate(
        found.tokens, offsets_of(rows), mask_of(rows), how=how, units=units, weights=weights,
        advantages=advantages, count_rows=choices["agg_rows"], norm=choices["agg_norm"],
        length=choices["agg_length"],
    )  # fmt: skip
    torch.testing.assert_close(again, found.loss, **CLOSE)


def test_fields_and_options_of_the_loss_are_keywords_alike():
    new, old = torch.tensor([-1.0, -0.5]), torch.tensor([-1.4, -0.3])
    given = (new, old, torch.tensor([1.0, -1.0]), torch.tensor([0, 2]))
    ours = F.policy_loss(*given, loss="kimi_k2", weight=(0.5, 1.1), tau="0.3", ratio_clamp=0.1)
    bounded = (new - old).clip(-0.1, 0.1).exp().clip(0.5, 1.1)
    want = -bounded * (given[2] - 0.3 * (new - old)) * new
    torch.testing.assert_close(ours.tokens, want)
    base = LossOptions(loss="kimi_k2", loss_options={"tau": 0.1, "weight": "0.5:1.1"})
    again = F.policy_loss(*given, loss=base, tau=0.3, ratio_clamp=0.1)
    assert torch.equal(again.tokens, ours.tokens)
    with pytest.raises(UsageError, match=r"no option 'tua'.*did you mean tau"):
        F.policy_loss(*given, loss=base, tua=0.3)
