"""The last stage of `rlpost loss`: from advantages and log-probs to the loss of each token."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlpost.losses import loss_named
from rlpost.losses.base import Tokens
from rlpost.token_stages import kept_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rlpost.batch import Batch, Responses
    from rlpost.loss_options import LossOptions
    from rlpost.losses import Loss

_BLOCK = 1 << 18  # tokens whose temporaries stay near the core, yet pay for the calls


@dataclass(frozen=True)
class Setting:
    """One loss with all its options."""

    options: LossOptions
    swept: Mapping[str, Any] = field(default_factory=dict)
    """The options that tell it from the other settings of a sweep."""

    @cached_property
    def loss(self) -> Loss:
        """The loss itself; raises UsageError for a name that is none."""
        return loss_named(self.options.loss)

    @property
    def own_ratio(self) -> bool:
        """The ratio that it clips is another than the token's, current over old."""
        return self.options.behaviour == "infer" or self.loss.name in ("gspo", "geo_mean")

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


def add_loss(batch: Batch, *, setting: Setting, rewarded: bool) -> Batch:
    """Adds `pg_loss`, the loss of each token before any mean, and `clip_state`, 0 to 3."""
    found = setting.loss(tokens_of(batch, rewarded=rewarded), setting.options)
    return batch.with_(pg_loss=found.values, clip_state=found.clip)


def tokens_of(batch: Batch, *, rewarded: bool) -> Tokens:
    """What a loss sees of a batch; its mask leaves out dropped responses and rejected tokens.

    Args:
        batch: has `advantages`.
        rewarded: the input has rewards, which some losses ask for.
    """
    return Tokens(
        new=batch["log_probs"],
        old=batch["old_log_probs"],
        advantages=batch["advantages"],
        mask=kept_mask(batch),
        offsets=batch.offsets,
        infer=batch.tokens.get("infer_log_probs"),
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
