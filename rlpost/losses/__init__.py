"""Policy losses, by family; all are in the table LOSSES."""

from __future__ import annotations

from rlpost.losses import clipped, dppo, weighted
from rlpost.losses.base import DUAL, HIGH, LOW, NONE, SELECTED, Loss, Surrogate
from rlpost.losses.kl import kl_loss
from rlpost.losses.tokens import Tokens
from rlpost.recipe.loss import KNOWN, NAMES

__all__ = [
    "DUAL", "HIGH", "LOSSES", "LOW", "NONE", "SELECTED", "Loss", "Surrogate", "Tokens",
    "kl_loss", "loss_named",
]  # fmt: skip
LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in sorted(
        (*clipped.LOSSES, *weighted.LOSSES, *dppo.LOSSES),
        key=lambda loss: NAMES.index(loss.name),
    )
}


def loss_named(name: str) -> Loss:
    """Return the loss of a name, of `path/to/file.py:function` or of an entry point.

    Raises:
        UsageError: there is no such loss (with the closest names), or it is not valid.
    """
    if name in LOSSES:
        return LOSSES[name]
    from rlpost.losses.own import as_loss  # noqa: PLC0415 - few runs need it

    function, source = KNOWN.imported(name)
    return as_loss(function, name, source)
