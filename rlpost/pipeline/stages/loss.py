"""The last stage of `rlpost loss`: from advantages and log-probs to the loss of each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.losses.base import Tokens
from rlpost.pipeline.output import token_column
from rlpost.pipeline.stages import Stage
from rlpost.pipeline.stages.responses import leave_out_nonfinite
from rlpost.pipeline.stages.tokens import finite, kept_mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.losses.config import LossConfig
    from rlpost.pipeline.data import Batch
    from rlpost.pipeline.resolved import ResolvedRecipe


_BLOCK = 1 << 18  # tokens whose intermediate results fit into the cache of a core
_TOKEN_FIELDS = ("new", "old", "advantages", "mask", "infer", "ref", "weights")


def stages_before_loss(reads: frozenset[str], *, mask_nonfinite: bool) -> list[Stage]:
    """Return the stages before the loss of an input that has advantages.

    Args:
        reads: the token roles that losses read.
        mask_nonfinite: leave out responses with numbers that are not finite.
    """
    if not mask_nonfinite:
        return []
    return [Stage("finite", reads, map=finite, in_first_pass=True, reduce=leave_out_nonfinite)]


def add_loss(
    batch: Batch, *, resolved: ResolvedRecipe, config: LossConfig | None, rewarded: bool
) -> Batch:
    """Add `advantages` as a file stores them, and with a config `pg_loss` and `clip_state`.

    `pg_loss` is the loss of each token before any mean, `clip_state` is 0 to 3. Advantages and
    `is_weight` are rounded to float32, so that the loss is the same whether the advantages are
    computed in this run or read from a file.

    Args:
        batch: all other stages were applied to it.
        resolved: the recipe that computes the advantages.
        config: the loss that is written; None if nothing is written.
        rewarded: the input has rewards.
    """
    columns = {"advantages": token_column(batch, resolved, "advantages")}
    columns |= {"is_weight": batch["is_weight"]} if "is_weight" in batch else {}
    rounded = {name: x.to(torch.float32).to(torch.float64) for name, x in columns.items()}
    batch = batch.with_(**rounded)
    if config is None:
        return batch
    surrogate = config.loss(tokens_of(batch, rewarded=rewarded), config.options)
    return batch.with_(pg_loss=surrogate.values, clip_state=surrogate.clip)


def tokens_of(batch: Batch, *, rewarded: bool) -> Tokens:
    """Return the tokens of a batch; their mask is 0 for dropped responses and rejected tokens.

    Args:
        batch: has `advantages`.
        rewarded: the input has rewards, which some losses read.
    """
    infer = batch.tokens.get("infer_log_probs")
    # An input without old log-probs is valid if all losses divide by those of the rollout engine.
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
    """Yield the tokens in blocks of whole responses, each with the slice of its responses.

    On a CPU the intermediate results of a block fit into the cache, which makes a sweep fast. On a
    GPU all tokens are one block.
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
    """Return the tokens of the responses from `start` to `stop`."""
    first, last = int(tokens.offsets[start]), int(tokens.offsets[stop])
    columns = {name: getattr(tokens, name) for name in _TOKEN_FIELDS}
    return Tokens(
        **{name: x[first:last] for name, x in columns.items() if x is not None},
        offsets=tokens.offsets[start : stop + 1] - first,
        rewards=None if tokens.rewards is None else tokens.rewards[start:stop],
    )
