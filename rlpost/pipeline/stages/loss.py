"""The last stage of `rlpost loss`: from advantages and log-probs to the loss of each token."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlpost.losses import loss_named
from rlpost.losses.base import Tokens
from rlpost.pipeline.stages.tokens import kept_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rlpost.losses import Loss
    from rlpost.pipeline.data import Batch, Responses
    from rlpost.recipe.loss import LossOptions


_BLOCK = 1 << 18  # tokens whose temporaries stay near the core, yet pay for the calls


@dataclass(frozen=True)
class LossConfig:
    """One loss with all its options."""

    options: LossOptions
    swept: Mapping[str, Any] = field(default_factory=dict)
    """The options that tell it from the other settings of a sweep."""

    @cached_property
    def loss(self) -> Loss:
        """The loss itself; raises UsageError for a name that is none."""
        return loss_named(self.options.loss)

    def own_ratio(self, behaviour: str) -> bool:
        """The ratio that it clips is another than the token's, current over `behaviour`."""
        return self.options.behaviour != behaviour or self.loss.name in ("gspo", "geo_mean")

    @cached_property
    def kl_name(self) -> str:
        """What its KL from the reference is called, which settings share that agree on it."""
        options = self.options
        fields = [name for name in type(options).model_fields if name.startswith("kl_loss_")]
        own = [str(getattr(options, name)) for name in fields if name != "kl_loss_coef"]
        return " ".join(("kl", options.behaviour, self.aggregation, *own))

    @property
    def clamp(self) -> float:
        """The bound on |log ratio| of a token, nats; inf for none."""
        own = self.loss.knobs.get("ratio_clamp", math.inf)
        asked = self.options.ratio_clamp
        return float(own if asked is None or "ratio_clamp" not in self.loss.knobs else asked)

    @property
    def aggregation(self) -> str:
        """How the losses of tokens become one number."""
        return self.options.aggregation or self.loss.aggregation


def drop_masked(responses: Responses) -> Responses:
    """Drops the responses whose `sample_mask` in the file is 0."""
    return responses.with_(kept=responses["kept"] & (responses["sample_mask"] != 0))


def as_written(batch: Batch, *, column: Callable[[Batch], Tensor]) -> Batch:
    """Adds `advantages`, and rounds `is_weight`, as a file would hold them: in float32.

    The loss of a file is then the same whether its advantages were written before or are made in
    the same run.

    Args:
        batch: all stages of the recipe were applied to it.
        column: makes the advantages of such a batch, [T].
    """
    made = {"advantages": column(batch)}
    made |= {"is_weight": batch["is_weight"]} if "is_weight" in batch else {}
    return batch.with_(**{name: x.to(torch.float32).to(torch.float64) for name, x in made.items()})


def add_loss(batch: Batch, *, setting: LossConfig, rewarded: bool) -> Batch:
    """Adds `pg_loss`, the loss of each token before any mean, and `clip_state`, 0 to 3."""
    found = setting.loss(tokens_of(batch, rewarded=rewarded), setting.options)
    return batch.with_(pg_loss=found.values, clip_state=found.clip)


def tokens_of(batch: Batch, *, rewarded: bool) -> Tokens:
    """What a loss sees of a batch; its mask leaves out dropped responses and rejected tokens.

    Args:
        batch: has `advantages`.
        rewarded: the input has rewards, which some losses ask for.
    """
    infer = batch.tokens.get("infer_log_probs")
    # Where a loss divides by the engine's alone, nothing else may be there.
    old = batch.tokens.get("old_log_probs", infer)
    assert old is not None, "a batch without log-probs of a policy before the update"
    return Tokens(
        new=batch["log_probs"],
        old=old,
        advantages=batch["advantages"],
        mask=kept_mask(batch),
        offsets=batch.offsets,
        infer=infer,
        ref=batch.tokens.get("ref_log_probs"),
        rewards=batch.responses["reward"] if rewarded else None,
        weights=batch.tokens.get("is_weight"),
    )


def blocks(tokens: Tokens) -> Iterator[tuple[slice, Tokens]]:
    """The same tokens in parts of whole responses, and which responses these are.

    On a CPU a part is small enough for its temporaries to stay in the cache, which makes many
    settings cheap; a GPU gets all at once.
    """
    count = tokens.offsets.numel() - 1
    if tokens.mask.device.type != "cpu":
        yield slice(0, count), tokens
        return
    start = 0
    while start < count:
        end = torch.searchsorted(tokens.offsets, tokens.offsets[start] + _BLOCK, right=True)
        stop = min(count, max(start + 1, int(end) - 1))
        yield slice(start, stop), _window(tokens, start, stop)
        start = stop


def _window(tokens: Tokens, start: int, stop: int) -> Tokens:
    first, last = int(tokens.offsets[start]), int(tokens.offsets[stop])
    inside = {
        name: None if values is None else values[first:last]
        for name, values in (
            ("new", tokens.new),
            ("old", tokens.old),
            ("advantages", tokens.advantages),
            ("mask", tokens.mask),
            ("infer", tokens.infer),
            ("ref", tokens.ref),
            ("weights", tokens.weights),
        )
    }
    rewards = None if tokens.rewards is None else tokens.rewards[start:stop]
    return Tokens(**inside, offsets=tokens.offsets[start : stop + 1] - first, rewards=rewards)  # type: ignore[arg-type]
