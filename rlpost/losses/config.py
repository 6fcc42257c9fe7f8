"""A policy loss with its options: the values that it uses, and the options that it ignores."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from rlpost.errors import UsageError, no_such
from rlpost.kernels.aggregate import OF_UNITS
from rlpost.losses import LOSSES, loss_named
from rlpost.losses.base import limits
from rlpost.recipe.base import Offsets, Range
from rlpost.recipe.flags import flag_of
from rlpost.recipe.functions import owners
from rlpost.recipe.loss import OF_RATIO, LossOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rlpost.losses.base import Loss
    from rlpost.losses.tokens import Selection


Values = dict[str, Any]
_SHARED = ("agg_", "kl_loss_")


@dataclass(frozen=True)
class LossConfig:
    """One loss with all its options."""

    options: LossOptions
    swept: Mapping[str, Any] = field(default_factory=dict)
    """The options of a sweep, with the values of this config."""

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

    @cached_property
    def values(self) -> Values:
        """The arguments of the loss; raises UsageError for wrong options."""
        return self.loss.values(self.options)

    @property
    def clamp(self) -> float:
        """The bound on |log ratio| of a token, nats; inf for none."""
        return float(self.values.get("ratio_clamp", math.inf))

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
        values = [str(getattr(options, name)) for name in fields if name not in apart]
        return " ".join(("kl", options.behaviour, self.kl_aggregation, *values))

    @property
    def ratio_bounds(self) -> tuple[float | None, float | None]:
        """The lowest and the highest ratio that the loss does not clip.

        The ratio is the one that the loss uses, that of a response for gspo. None if there is no
        bound, or if the loss does not clip a ratio.
        """
        bounds = self.values.get("weight", self.values.get("pg_clip"))
        if not isinstance(bounds, Range):
            return None, None
        least, most = bounds
        if self.loss.name == "geo_mean":
            least, most = math.exp(-least), math.exp(most)
        elif isinstance(bounds, Offsets):
            least, most = limits(bounds, self.values.get("bounds", "offset"))
        return least if least > 0 else None, most if math.isfinite(most) else None

    def resolved(self) -> Values:
        """Return the values of the options that the loss reads, by field of LossOptions.

        LossOptions of these values give the same loss. `agg_length` is None if the longest
        response's length is used.
        """
        loss, options = self.loss, self.options
        read = {name: x.plain(self.values[name]) for name, x in loss.parameters.items() if x.kind}
        read = {name: "never" if value == math.inf else value for name, value in read.items()}
        fields = {name: value for name, value in read.items() if name in loss.fields}
        values = {"loss": loss.name, "behaviour": options.behaviour, **fields}
        if loss.options:
            values["loss_options"] = {x: read[x] for x in loss.options if x in read}
        ignored = self.ignored(type(options).model_fields)
        shared = options.model_dump(mode="json")
        return {
            **values,
            "aggregation": self.aggregation,
            **{x: shared[x] for x in shared if x.startswith(_SHARED) and x not in ignored},
            "kl_loss_aggregation": self.kl_aggregation,
        }

    def ignored(self, asked: Collection[str]) -> dict[str, str]:
        """Return the options that do not change the loss: name -> what ignores it.

        Args:
            asked: the fields of LossOptions to check.
        """
        options, loss = self.options, self.loss
        reasons = self._ignored_by_aggregation()
        reasons |= {name: loss.name for name in OF_RATIO if name not in loss.fields}
        if not options.kl_loss_ratio:
            reasons["kl_loss_ratio_policy"] = "a KL loss without --kl-loss-ratio"
            if "old_log_probs" not in loss.needs:
                reasons["behaviour"] = f"{loss.name}, which has no ratio"
        return {name: why for name, why in reasons.items() if name in asked}

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
    policies = [config.options.behaviour for config in configs]
    return "old" if "old" in policies else policies[0]


def settings_of(trials: Sequence[LossConfig], sources: Mapping[str, str]) -> list[LossConfig]:
    """Return the settings of a sweep, each once: an option applies to the losses that have it.

    Args:
        trials: a loss of each point, with what is swept as it is typed, of which the options have
            the fields; those of a single loss are not yet among them.
        sources: of fields and options that are no flags, for errors.

    Raises:
        UsageError: no loss has an option, or a value has another type.
    """
    losses = {trial.loss.name: trial.loss for trial in trials}
    known = {name: None for loss in losses.values() for name in loss.options}
    read = {name for loss in losses.values() for name in loss.fields}
    for name in trials[0].swept:
        if name == "loss_options" or not (name in {*known, *read} or _is_general(name)):
            text = f"--sweep {name}: no option {name!r} of {', '.join(losses)}"
            raise UsageError(no_such(text, name, (*LossOptions.model_fields, *known)))
    configs = (_setting(trial, known, sources) for trial in trials)
    return list({str(config.swept): config for config in configs}.values())


def _is_general(name: str) -> bool:
    """Return whether a swept name applies to all losses."""
    return name in LossOptions.model_fields and name not in OF_RATIO


def _setting(trial: LossConfig, known: Collection[str], sources: Mapping[str, str]) -> LossConfig:
    """Return a setting with typed options; of what is swept and the loss does not read it has None.

    Args:
        trial: as of `settings_of`.
        known: the options of single losses that any loss of the sweep has.
        sources: as of `settings_of`.
    """
    loss, options, point = trial.loss, trial.options, trial.swept
    reads = [name for name in point if name in loss.parameters or _is_general(name)]
    asked = options.loss_options | {name: point[name] for name in reads if name in loss.options}
    asked = {x: y for x, y in asked.items() if x in loss.options or x not in known}
    try:
        typed = loss.typed(asked, sources, partial(owners, functions=LOSSES))
        options = options.model_copy(update={"loss_options": typed})
        loss.values(options)
    except UsageError as error:
        flag = re.compile(rf"{flag_of('loss_options')} (?=({'|'.join(map(re.escape, reads))})=)")
        raise error.reworded(partial(flag.sub, "--sweep ")) from None
    values = options.model_dump(mode="json") | typed
    values |= {name: point[name] for name in ("loss",) if name in point}  # as typed
    swept = {name: values[name] if name in reads else None for name in point}
    return LossConfig(options, swept)
