"""RAE: rewards minus a moving average of their domain, in input order."""

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
    """Return rewards minus the exponential moving average of the earlier rewards of their domain.

        Aᵢ = rᵢ - b, then b ← d·b + (1 - d)·rᵢ;  b = 0 at the start of each domain

    Args:
        rewards: [N] float64, in input order.
        domain: [N] codes of the domains (roles of agents).
        group: [N] codes in order of first appearance.
        ema_decay: d, in [0, 1].
        rae_order: input order (`row`), or group by group in the order of their first responses.

    Returns:
        Credit of [N], the same tensor twice. The first response of a domain gets its raw reward.

    Source: Liu et al. (SPIRAL), arXiv 2506.24119, alg. 1. prime-rl has `rae_order="group"`.

    >>> one = torch.zeros(2, dtype=torch.int64)
    >>> rae(torch.tensor([1.0, 1.0]), one, one, ema_decay=0.5).advantages
    tensor([1.0000, 0.5000])
    """
    row = torch.arange(rewards.numel(), device=rewards.device)
    # Responses of a domain from last to first, so that a reverse scan goes forward in time.
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
    source="arXiv:2506.24119",
    beyond_steps=True,
)
