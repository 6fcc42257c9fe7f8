"""Policy losses: one file each, all in the table LOSSES."""

from __future__ import annotations

from rlpost.errors import UsageError
from rlpost.losses import cispo, dppo, geo_mean, gpg, gspo, kimi15, pg, ppo, sapo, tis, topr
from rlpost.losses.base import DUAL, HIGH, LOW, NONE, Loss, Surrogate, Tokens
from rlpost.losses.kl import clamped, estimated, kl_loss
from rlpost.recipe.roles import closest

LOSSES: dict[str, Loss] = {
    one.name: one
    for one in (
        ppo.LOSS,
        pg.LOSS,
        gspo.LOSS,
        cispo.LOSS,
        tis.LOSS,
        topr.LOSS,
        kimi15.LOSS,
        geo_mean.LOSS,
        sapo.LOSS,
        gpg.LOSS,
        dppo.DPPO,
        dppo.IPO,
        dppo.REF_KL,
    )
}


def loss_named(name: str) -> Loss:
    """The loss of this name; raises UsageError with the nearest names if there is none."""
    if name not in LOSSES:
        hint = closest(name, LOSSES) or f"; there are {', '.join(LOSSES)}"
        raise UsageError(f"no policy loss {name!r}{hint}")
    return LOSSES[name]


__all__ = [
    "DUAL",
    "HIGH",
    "LOSSES",
    "LOW",
    "NONE",
    "Loss",
    "Surrogate",
    "Tokens",
    "clamped",
    "estimated",
    "kl_loss",
    "loss_named",
]
