"""A policy loss with its options: the values that it uses, and the options that it ignores."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlpost.kernels.aggregate import OF_UNITS
from rlpost.losses import loss_named
from rlpost.losses.base import SIDES
from rlpost.losses.composition import limits
from rlpost.recipe.flags import flag_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rlpost.losses.base import Loss
    from rlpost.losses.selection import Selection
    from rlpost.recipe.loss import LossOptions
    from rlpost.recipe.recipe import Recipe


Values = dict[str, Any]


@dataclass(frozen=True)
class LossConfig:
    """One loss with all its options."""

    options: LossOptions
    swept: Mapping[str, Any] = field(default_factory=dict)
    """The options of a sweep, with the values of this config."""
    recipe: Recipe | None = None
    """How its advantages and importance weights are computed, in a sweep of corrections."""

    @cached_property
    def loss(self) -> Loss:
        """The loss function; raises UsageError if no loss has this name."""
        return loss_named(self.options.loss)

    @property
    def aggregation(self) -> str:
        """How token losses are aggregated to one number."""
        return self.options.aggregation or self.loss.aggregation

    @property
    def kl_aggregation(self) -> str:
        """How the KL losses of tokens are aggregated to one number."""
        return self.options.kl_loss_aggregation or self.aggregation

    @property
    def units(self) -> dict[str, str]:
        """The aggregations that average over units of several responses, and each one's role."""
        ways = (self.aggregation, self.kl_aggregation)
        return {how: role for how, role in OF_UNITS.items() if how in ways}

    @property
    def clamp(self) -> float:
        """The bound on |log ratio| of a token, nats; inf for none."""
        return float(self.loss.values(self.options).get("ratio_clamp", math.inf))

    @cached_property
    def selection(self) -> Selection | None:
        """What it selects of each batch; None if it selects nothing."""
        return self.loss.selection(self.options)

    def own_ratio(self, behaviour: str) -> bool:
        """Whether the loss clips another ratio than the token's current over `behaviour`."""
        return self.options.behaviour != behaviour or self.loss.of_responses

    @cached_property
    def kl_name(self) -> str:
        """The name of its KL loss: configs with the same name have the same KL loss."""
        options = self.options
        fields = [name for name in type(options).model_fields if name.startswith("kl_loss_")]
        apart = ("kl_loss_coef", "kl_loss_aggregation")
        own = [str(getattr(options, name)) for name in fields if name not in apart]
        return " ".join(("kl", options.behaviour, self.kl_aggregation, *own))

    @property
    def ratio_bounds(self) -> tuple[float | None, float | None]:
        """The lowest and the highest ratio that the loss does not clip.

        The ratio is the one that the loss uses, that of a response for gspo. None if there is no
        bound, or if the loss does not clip a ratio.
        """
        values = self.loss.values(self.options)
        if "tis_low" in values:
            least, most = values["tis_low"], values["tis_high"]
        elif self.loss.name == "geo_mean":
            least, most = math.exp(-values["pg_clip_low"]), math.exp(values["pg_clip_high"])
        elif "pg_clip_high" in values:
            low, unit = values.get("pg_clip_low", math.inf), values.get("cispo_bounds", "offset")
            least, most = limits(low, values["pg_clip_high"], unit)
        else:
            return None, None
        return least if least > 0 else None, most if math.isfinite(most) else None

    def resolved(self) -> Values:
        """Return the values of the options that the loss reads, by field of LossOptions.

        LossOptions of these values give the same loss. The clip range is in pg_clip_low and
        pg_clip_high; pg_clip is there if both are equal. `agg_length` is None if the longest
        response's length is used.
        """
        options = self.options
        values: Values = {"loss": self.loss.name, "behaviour": options.behaviour}
        values |= self.loss.values(options)
        if "pg_clip" in values:
            values["pg_clip"] = values["pg_clip_low"]
            if values["pg_clip_low"] != values["pg_clip_high"]:
                del values["pg_clip"]
        values["aggregation"] = self.aggregation
        ignored = self.ignored(type(options).model_fields)
        for name in type(options).model_fields:
            if name.startswith(("agg_", "kl_loss_")) and name not in ignored:
                values[name] = getattr(options, name)
        values["kl_loss_aggregation"] = self.kl_aggregation
        return {name: "never" if value == math.inf else value for name, value in values.items()}

    def ignored(self, asked: Collection[str]) -> dict[str, str]:
        """Return the options that do not change the loss: name -> what ignores it.

        Args:
            asked: the fields of LossOptions to check.
        """
        options, name, defaults = self.options, self.loss.name, self.loss.defaults
        reasons = self._ignored_by_aggregation()
        for both, sides in SIDES.items():
            own = [side for side in sides if side in defaults]
            if own and all(getattr(options, side) is not None for side in own):
                reasons[both] = f"{name}, since {' and '.join(map(flag_of, own))} are set"
        of_every_loss = ("loss", "behaviour", "aggregation")
        for one in type(options).model_fields:
            of_every = one in of_every_loss or one.startswith(("agg_", "kl_loss_"))
            if not of_every and one not in defaults:
                reasons[one] = name
        if not options.kl_loss_ratio:
            of_ratio = ("kl_loss_ratio_policy", "kl_loss_clamp_at")
            reasons |= dict.fromkeys(of_ratio, "a KL loss without --kl-loss-ratio")
        if "old_log_probs" not in self.loss.needs and not options.kl_loss_ratio:
            reasons["behaviour"] = f"{name}, which has no ratio"
        if options.dual_clip == "twice" and "dual_clip" in defaults:
            reasons.pop("pg_clip", None)  # the dual clip is computed from it
        return {one: why for one, why in reasons.items() if one in asked}

    def _ignored_by_aggregation(self) -> dict[str, str]:
        """Return the options of an aggregation that its way, and that of the KL loss, ignore."""
        ways = dict.fromkeys((self.aggregation, self.kl_aggregation))
        by_length = "seq-mean-token-sum-norm" in ways
        fields = set() if by_length else {"agg_length", "agg_norm"}
        over_responses = any(
            how in ("seq-mean-token-sum", "seq-mean-token-mean", *OF_UNITS) for how in ways
        )
        if not over_responses and not (by_length and self.options.agg_norm == "rows"):
            fields.add("agg_rows")
        return dict.fromkeys(fields, f"{self.loss.name} with --aggregation {' and '.join(ways)}")


def behaviour_of(configs: Sequence[LossConfig]) -> str:
    """Return the policy that common ratios of these configs divide by: `old` if one config does."""
    every = [one.options.behaviour for one in configs]
    return "old" if "old" in every else every[0]
