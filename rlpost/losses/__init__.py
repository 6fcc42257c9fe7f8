"""Policy losses: one file each, all in the table LOSSES."""

from __future__ import annotations

from rlpost.errors import UsageError, no_such
from rlpost.losses import covariance, dppo, geo_mean, pg, ppo, sapo, weighted
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
        ppo.PPO,
        pg.PG,
        ppo.GSPO,
        weighted.CISPO,
        weighted.TIS,
        weighted.TOPR,
        pg.KIMI15,
        geo_mean.GEO_MEAN,
        sapo.SAPO,
        pg.GPG,
        dppo.DPPO,
        dppo.IPO,
        dppo.REF_KL,
        dppo.DPPO_TV,
        dppo.DPPO_KL,
        pg.DRO,
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
