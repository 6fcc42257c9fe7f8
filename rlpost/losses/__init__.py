"""Policy losses, by family; all are in the table LOSSES."""

from __future__ import annotations

from rlpost.errors import UsageError, no_such
from rlpost.losses import clipped, dppo, weighted
from rlpost.losses.base import DUAL, HIGH, LOW, NONE, SELECTED, Loss, Surrogate
from rlpost.losses.kl import kl_loss
from rlpost.losses.tokens import Tokens
from rlpost.recipe.functions import from_entry_point, from_file
from rlpost.recipe.loss import NAMES, installed

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
    from rlpost.losses import own  # noqa: PLC0415 - few runs need it

    if ":" in name:
        return own.as_loss(from_file(name, own.FLAG), name, name.rpartition(":")[0])
    points = installed()
    if name not in points:
        names = (*LOSSES, *points)
        known = f"the losses are {', '.join(names)}"
        raise UsageError(no_such(f"no policy loss {name!r}", name, names, known))
    point = points[name]
    return own.as_loss(from_entry_point(point, own.FLAG), name, point.value)
