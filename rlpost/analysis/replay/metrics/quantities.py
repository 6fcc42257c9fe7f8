"""Quantities of tokens by name, such as `k3 new/ref`, of which a metric may be the mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.kernels.kl import token_kl
from rlpost.losses import Tokens, kl_loss

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlpost.recipe.loss import LossOptions

POLICIES = {
    "new": "log_probs",
    "old": "old_log_probs",
    "infer": "infer_log_probs",
    "ref": "ref_log_probs",
}
"""The role of each policy's log-probs."""
KL_TERMS = (
    "k3 new/ref", "ratio k3 new/ref", "k1 new/ref", "k2 new/ref", "abs new/ref",
    "ratio k1 new/ref", "ratio k2 new/ref", "ratio abs new/ref",
)  # fmt: skip
"""The KL losses that a policy loss may have, the most usual ones first."""


def kl_term(options: LossOptions) -> str:
    """Return the name of the KL loss of some options."""
    return f"{'ratio ' * options.kl_loss_ratio}{options.kl_loss_estimator} new/ref"


def kl_options(name: str) -> dict[str, str | bool]:
    """Return the options of a KL loss.

    >>> kl_options("ratio k3 new/ref")
    {'kl_loss_estimator': 'k3', 'kl_loss_ratio': True}
    """
    *ratio, estimator, _ = name.split()
    return {"kl_loss_estimator": estimator, "kl_loss_ratio": bool(ratio)}


def roles_of(name: str, options: LossOptions) -> tuple[str, ...]:
    """Return the roles of tokens that a quantity is computed from; arguments as of `quantity`."""
    *kinds, last = name.split()
    if not kinds:
        return (name,)
    policies = last.split("/")
    if len(kinds) > 1 or kinds == ["k4"]:
        policy = options.kl_loss_ratio_policy
        policies.append(options.behaviour if policy == "behaviour" else policy)
    return tuple(POLICIES[one] for one in policies if one in POLICIES)


def quantity(
    name: str, tokens: Mapping[str, Tensor], offsets: Tensor, options: LossOptions
) -> Tensor:
    """Return a quantity of each token, [T], also of observation tokens.

        k1, k2, k3, abs a/b    estimate of KL(a ‖ b); of new/ref with the clamps of the KL loss
        ratio k3 new/ref       the same times the ratio, as with `--kl-loss-ratio`
        ratio a/b, prob a/b    the ratio of probabilities, and their absolute difference
        minus a                -log-prob

    Args:
        name: any other name is that of a role or a column.
        tokens: [T] by role.
        offsets: of the responses.
        options: the `kl_loss_...` fields.
    """
    *kinds, last = name.split()
    if not kinds:
        return tokens[name]
    policies = [tokens[POLICIES[one]] for one in last.split("/")]
    if kinds == ["minus"]:
        return -policies[0]
    left, right = policies
    if kinds == ["ratio"]:
        return (left - right).exp()
    if kinds == ["prob"]:
        return (left.exp() - right.exp()).abs()
    if last != "new/ref":
        return token_kl(left, right, estimator=kinds[0])
    infer = tokens.get("infer_log_probs")
    every = Tokens(
        new=left,
        ref=right,
        infer=infer,
        old=tokens.get("old_log_probs", left if infer is None else infer),
        advantages=left,
        mask=torch.ones_like(left, dtype=torch.bool),
        offsets=offsets,
    )
    return kl_loss(every, options.model_copy(update=kl_options(name)))
