"""What a user sets of the KL loss, which a replay of metrics leaves as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rlpost.analysis.replay.metrics.losses import Column

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rlpost.recipe.loss import LossOptions

_NAMES = ("k3", "ratio k3", "k1", "k2", "abs", "ratio k1", "ratio k2", "ratio abs")


class KlLoss(NamedTuple):
    """What the user sets of the KL loss; None: searched for."""

    coef: float | None = None
    estimator: str | None = None
    ratio: bool | None = None

    @classmethod
    def of(cls, loss: LossOptions | None, fixed: Collection[str]) -> KlLoss:
        """Return what is set of some options."""
        names = [f"kl_loss_{one}" for one in cls._fields]
        return cls(*(getattr(loss, name) if name in fixed else None for name in names))

    def columns(self, index: Mapping[Column, int]) -> list[Column]:
        """Return the KL columns that may be a term, the most usual ones first."""
        if self.coef == 0:
            return []
        found = [Column("sum", f"{one} new/ref") for one in _NAMES if self._may_be(one)]
        return [one for one in found if one in index]

    def _may_be(self, name: str) -> bool:
        *ratio, estimator = name.split()
        return self.estimator in (None, estimator) and self.ratio in (None, bool(ratio))

    @property
    def in_loss(self) -> bool:
        """Whether the loss with all its terms has a KL loss of a coefficient that is set."""
        return bool(self.coef)
