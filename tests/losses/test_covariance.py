"""Clip-Cov and KL-Cov: which tokens they select, and that nothing but the data decides it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_losses import computed

from rlpost.losses import SELECTED, Tokens


def batch_of(count=40, seed=0, *, ties=True):
    """Responses with masks; with ties, log-probs of 0 and advantages of two values are frequent."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 30, count)
    total = int(sizes.sum())
    new = -rng.exponential(0.7, total)
    if ties:
        new[rng.random(total) < 0.5] = 0.0
    advantages = rng.choice([-1.0, 1.0], count) if ties else rng.normal(size=count)
    return Tokens(
        new=torch.from_numpy(new),
        old=torch.from_numpy(new + 0.1 * rng.standard_normal(total)),
        advantages=torch.from_numpy(np.repeat(advantages, sizes)),
        mask=torch.from_numpy(rng.random(total) < 0.8),
        offsets=torch.tensor([0, *np.cumsum(sizes)]),
    )


def reordered(tokens, order):
    """The same responses in another order, and the positions that their tokens came from."""
    sizes = tokens.offsets.diff()
    spans = [torch.arange(tokens.offsets[i], tokens.offsets[i + 1]) for i in order]
    place = torch.cat(spans)
    columns = {name: getattr(tokens, name)[place] for name in ("new", "old", "advantages", "mask")}
    return Tokens(**columns, offsets=torch.tensor([0, *sizes[order].cumsum(0)])), place


def chosen(tokens, **options):
    return computed(tokens, **options).clip == SELECTED


CHOICES = [
    {"loss": "kl_cov", "share": 0.05},
    {"loss": "kl_cov"},
    {"loss": "clip_cov", "share": 0.05, "cov": "-1:2"},
]


@pytest.mark.parametrize("options", CHOICES, ids=["kl_cov", "one", "clip_cov"])
@pytest.mark.parametrize("ties", [True, False], ids=["ties", "distinct"])
def test_the_order_of_responses_changes_no_selection(options, ties):
    tokens = batch_of(ties=ties)
    before = chosen(tokens, **options)
    moved, place = reordered(tokens, torch.from_numpy(np.random.default_rng(3).permutation(40)))
    assert torch.equal(chosen(moved, **options), before[place])
    assert int(before.sum()) == max(1, math.floor(options.get("share", 2e-4) * tokens.mask.sum()))


def test_a_tie_is_broken_by_the_seed_and_kl_cov_without_ties_is_not():
    tied, distinct = batch_of(), batch_of(ties=False)
    tied = [chosen(tied, loss="kl_cov", share=0.3, seed=i) for i in range(20)]
    assert len({tuple(one.tolist()) for one in tied}) == 20
    assert len({int(one.sum()) for one in tied}) == 1
    same = [chosen(distinct, loss="kl_cov", share=0.1, seed=i) for i in range(5)]
    assert all(torch.equal(one, same[0]) for one in same)


def test_no_policy_token_and_a_single_one_are_allowed():
    none = replace(batch_of(), mask=torch.zeros_like(batch_of().mask))
    for options in CHOICES:
        assert not chosen(none, **options).any()
    single = Tokens(*(torch.tensor([x]) for x in (-1.0, -1.5, 2.0)), torch.tensor([True]),
                    torch.tensor([0, 1]))  # fmt: skip
    assert chosen(single, loss="kl_cov").tolist() == [True]  # its covariance is 0
    assert chosen(single, loss="clip_cov").tolist() == [False]
