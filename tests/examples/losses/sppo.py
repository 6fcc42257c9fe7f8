"""Trinity-RFT's sPPO: the log ratio in place of the ratio, hard bounds.

Source: trinity_rft 0.6.0, trinity/algorithm/policy_loss_fn/sppo_loss_fn.py.
"""


def sppo(log_ratio, ratio, advantages, *, epsilon: float = 0.3):
    """-A·log r·1[1/(1+ε) ≤ r ≤ 1+ε]"""
    inside = (ratio >= 1 / (1 + epsilon)) & (ratio <= 1 + epsilon)
    return -advantages * log_ratio * inside
