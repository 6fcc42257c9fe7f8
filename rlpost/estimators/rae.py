"""RAE: rewards against a moving average of their role, in the order of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.moments import canonical_order, group_offsets
from rlpost.kernels.scans import reverse_scan

if TYPE_CHECKING:
    from torch import Tensor


def rae(
    rewards: Tensor,
    domain: Tensor,
    group: Tensor,
    *,
    ema_decay: float = 0.9,
    rae_order: str = "row",
) -> Credit:
    """Reward less the role's exponential moving average as it was before the row.

        Aᵢ = rᵢ - b;  then b ← d·b + (1 - d)·rᵢ, from b = 0, for each domain on its own

    Args:
        rewards: [N] float64, in the order of the rows.
        domain: [N] codes of the roles.
        group: [N] codes in order of first appearance.
        ema_decay: d, in [0, 1].
        rae_order: `row` by row, or `group` by group in the order of their first rows.

    Returns:
        Credit of [N] each, one tensor twice. A role's first row gets its plain reward.

    Source: Liu et al. (SPIRAL), arXiv 2506.24119, alg. 1.

    >>> one = torch.zeros(2, dtype=torch.int64)
    >>> rae(torch.tensor([1.0, 1.0]), one, one, ema_decay=0.5).advantages
    tensor([1.0000, 0.5000])
    """
    row = torch.arange(rewards.numel(), device=rewards.device)
    # Within a domain from the last row to the first, so that a scan towards the start of an
    # array goes forward in time.
    order = canonical_order(domain, *([-group] if rae_order == "group" else []), -row)
    offsets = group_offsets(domain, int(domain.max()) + 1 if domain.numel() else 0)
    averages = reverse_scan((1 - ema_decay) * rewards[order], offsets, ema_decay)
    before = torch.cat([averages, averages.new_zeros(1)])[1:]
    before[offsets[1:][offsets[1:] > offsets[:-1]] - 1] = 0.0
    baseline = torch.zeros_like(rewards).index_copy(0, order, before)
    return Credit(rewards - baseline, rewards - baseline)


ESTIMATOR = Estimator(
    "rae",
    rae,
    formula="r - b of the domain, then b ← 0.9·b + 0.1·r",
    source="arXiv 2506.24119",
    beyond_steps=True,
)
