"""Policy losses: one file each, all in the table LOSSES."""

from __future__ import annotations

from rlpost.errors import UsageError, no_such
from rlpost.losses import cispo, covariance, dppo, geo_mean, gspo, kimi15, pg, ppo, sapo, tis, topr
from rlpost.losses.base import DUAL, HIGH, LOW, NONE, SELECTED, Loss, Surrogate, Tokens
from rlpost.losses.kl import kl_loss

__all__ = [
    "DUAL",
    "HIGH",
    "LOSSES",
    "LOW",
    "NONE",
    "SELECTED",
    "Loss",
    "Surrogate",
    "Tokens",
    "kl_loss",
    "loss_named",
]
LOSSES: dict[str, Loss] = {
    one.name: one
    for one in (
        ppo.LOSS,
        pg.PG,
        gspo.LOSS,
        cispo.LOSS,
        tis.LOSS,
        topr.LOSS,
        kimi15.KIMI15,
        geo_mean.LOSS,
        sapo.LOSS,
        pg.GPG,
        dppo.DPPO,
        dppo.IPO,
        dppo.REF_KL,
        dppo.DPPO_TV,
        dppo.DPPO_KL,
        kimi15.DRO,
        covariance.CLIP_COV,
        covariance.KL_COV,
    )
}


def loss_named(name: str) -> Loss:
    """Return the loss of this name; raises UsageError with the closest names if there is none."""
    if name not in LOSSES:
        every = f"the losses are {', '.join(LOSSES)}"
        raise UsageError(no_such(f"no policy loss {name!r}", name, LOSSES, every))
    return LOSSES[name]
