"""RAE: rewards minus a moving average of their domain, in input order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.arrays.numpy_arrays import canonical_order, placed
from rlpost.kernels.moments import group_offsets
from rlpost.kernels.scans import reverse_scan

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def rae(
    rewards: Floats,
    domain: Integers,
    group: Integers,
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
        Credit of [N], the same array twice. The first response of a domain gets its raw reward.

    Source: Liu et al. (SPIRAL), arXiv 2506.24119, alg. 1. prime-rl has `rae_order="group"`.

    >>> one = np.zeros(2, np.int64)
    >>> rae(np.array([1.0, 1.0]), one, one, ema_decay=0.5).advantages
    array([1. , 0.5])
    """
    row = np.arange(len(rewards))
    # Responses of a domain from last to first, so that a reverse scan goes forward in time.
    order = canonical_order(domain, *([-group] if rae_order == "group" else []), -row)
    offsets = group_offsets(domain, int(domain.max()) + 1 if len(domain) else 0)
    averages = reverse_scan((1 - ema_decay) * rewards[order], offsets, ema_decay)
    before = np.append(averages[1:], averages[:1])
    before[offsets[1:][offsets[1:] > offsets[:-1]] - 1] = 0.0
    baseline = placed(before, order, len(rewards))
    return Credit(rewards - baseline, rewards - baseline)


ESTIMATOR = Estimator(
    "rae",
    rae,
    formula="r - b of the domain, then b ← 0.9·b + 0.1·r",
    source="arXiv:2506.24119",
    beyond_steps=True,
)
