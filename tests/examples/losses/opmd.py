"""Trinity-RFT's OPMD: the policy gradient with a damped advantage.

Source: trinity_rft 0.6.0, trinity/algorithm/policy_loss_fn/opmd_policy_loss.py.
"""


def opmd(log_probs, advantages, *, tau: float = 1.0):
    """-A·log π/(1+τ)"""
    return -advantages * log_probs / (1 + tau)
