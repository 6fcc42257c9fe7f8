"""The last stages of `rlpost loss`: from advantages and log-probs to the loss of each token."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rlpost.errors import DataError
from rlpost.kernels.arrays import is_tensor, on_host
from rlpost.kernels.segments import lengths
from rlpost.kernels.selection import Floors, HighestOf, Ranked, distinct_keys
from rlpost.losses.kl import KlLoss
from rlpost.losses.tokens import BatchMeans, InBatch, ResponseSums, Tokens
from rlpost.pipeline.columns import FINAL_MASK
from rlpost.pipeline.output.columns import token_column
from rlpost.pipeline.stages import Stage
from rlpost.pipeline.stages.ages import VERSION, ages
from rlpost.pipeline.stages.loss_weights import rounded, step_gradient, weight_stages
from rlpost.pipeline.stages.tokens import kept_mask
from rlpost.recipe.roles import is_read_by_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rlpost.kernels.arrays import Array
    from rlpost.losses.config import LossConfig
    from rlpost.losses.tokens import Selection
    from rlpost.pipeline.data import Batch, Responses
    from rlpost.pipeline.resolved import ResolvedRecipe


STORED = frozenset({"advantages", "is_weight"})
"""Token columns that a loss reads from stages or from a file."""
_PREFIX = "select:"  # of the columns and shared numbers of a selection
_BLOCK = 1 << 16  # tokens whose intermediate results fit into the caches of a core


def use_final_mask(batch: Batch) -> Batch:
    """Add `accepted`: the tokens that the run which computed the advantages left to training."""
    return batch.with_(accepted=batch[FINAL_MASK] != 0)


def stages_of_losses(
    reads: frozenset[str],
    resolved: ResolvedRecipe,
    configs: Sequence[LossConfig],
    *,
    rejects: bool,
    weighted: bool = False,
) -> list[Stage]:
    """Return the stages between advantages and losses.

    A loss that selects tokens by their rank in a batch needs two more passes: one for the means of
    each batch, and one for the lowest token that is selected. A mean over the tokens of prompts or
    rollouts needs one more if single tokens are rejected, to count the others.

    Args:
        reads: the token roles that losses read.
        resolved: the recipe that computes the advantages.
        configs: the losses.
        rejects: single tokens of responses may be rejected.
        weighted: the gradients of losses are needed.
    """
    stored = {role for role in ("advantages", "is_weight") if role in reads}
    store = partial(as_stored, resolved=resolved)
    stages = [Stage("stored columns", frozenset(stored), apply=store, uses=STORED, makes=STORED)]
    stages += weight_stages(configs, weighted=weighted, grouped=resolved.grouped, rejects=rejects)
    if any(config.loss.grouped for config in configs):
        stages.append(Stage("whole groups", reduce=count_groups, apply=check_groups))
    named = {x.name: x for config in configs if (x := config.selection) is not None}
    if named:
        log_probs = frozenset({"log_probs", "old_log_probs", "infer_log_probs"}) & reads
        of_batch = partial(map_selections, selections=[*named.values()])
        gather = partial(gather_selections, selections=[*named.values()])
        stages += [
            Stage("batch means", log_probs, map=map_sums, reduce=batch_means, uses=STORED),
            Stage("token selection", log_probs, map=of_batch, gather=gather, uses=STORED),
        ]
    return stages


def as_stored(batch: Batch, *, resolved: ResolvedRecipe) -> Batch:
    """Add `advantages`, and `is_weight` if there are weights, rounded to float32.

    The loss is then the same whether the advantages are computed in this run or read from a file.
    """
    columns = {"advantages": token_column(batch, resolved, "advantages")}
    columns |= {"is_weight": batch["is_weight"]} if "is_weight" in batch else {}
    return batch.with_(**{name: rounded(x) for name, x in columns.items()})


def count_groups(responses: Responses) -> Responses:
    """Add `group:rows`, the rows of each response's prompt group."""
    group = responses["group"]
    return responses.with_(**{"group:rows": np.bincount(group)[group]})


def check_groups(batch: Batch) -> Batch:
    """Return the batch; raise DataError if it has a part of a prompt group."""
    group, rows = batch.table["group"], batch.table["group:rows"]
    if len(group) and (np.bincount(group)[group] != rows).any():
        raise DataError(
            "a loss that reads `group` needs all rows of a prompt group in one file and in memory: "
            "write each group to one file, or compute on the CPU"
        )
    return batch


def map_sums(batch: Batch) -> dict[str, Array]:
    """Return `ResponseSums` of a batch."""
    sums = ResponseSums.of(tokens_of(batch))
    return {f"{_PREFIX}{name}": column for name, column in sums._asdict().items()}


def batch_means(responses: Responses) -> Responses:
    """Add the key of each response, and the means of each batch."""
    sums = ResponseSums(*(responses[f"{_PREFIX}{name}"] for name in ResponseSums._fields))
    batch, weight = responses["batch"], responses.columns.get("sample_weight")
    means = BatchMeans.of(sums, batch, len(responses.labels["batch"]))
    ties = (sums.old, responses["reward"], *([] if weight is None else [weight]))
    shared = {f"{_PREFIX}{name}": column for name, column in means._asdict().items()}
    key = distinct_keys(sums.hashes, batch, *ties)
    return responses.with_(**{f"{_PREFIX}key": key}).sharing(**shared)


def map_selections(batch: Batch, *, selections: Sequence[Selection]) -> dict[str, Array]:
    """Return the highest tokens of a batch, by selection."""
    tokens, code = tokens_of(batch), batch.responses["batch"]
    of_batches = on_host(batch.shared[f"{_PREFIX}tokens"])
    size = lengths(on_host(batch.offsets))
    sizes = np.zeros_like(of_batches)
    np.add.at(sizes, batch.table["batch"], size)
    mapped: dict[str, Array] = {}
    for selection in selections:
        counts, name = selection.counts(of_batches), f"{_PREFIX}{selection.name}"
        highest = selection.candidates(tokens, code).highest(counts, sizes)
        mapped |= {f"{name}:{field}": x for field, x in highest._asdict().items()}
    return mapped


def gather_selections(
    responses: Responses, parts: Iterable[dict[str, Array]], *, selections: Sequence[Selection]
) -> Responses:
    """Add the lowest token that is selected of each batch, by selection."""
    tokens, batches = responses.shared[f"{_PREFIX}tokens"], len(responses.labels["batch"])
    totals = {f"{_PREFIX}{x.name}": HighestOf(x.counts(tokens)) for x in selections}
    for part in parts:
        for name, total in totals.items():
            total.add(Ranked(*(part[f"{name}:{field}"] for field in Ranked._fields)))
    shared: dict[str, Array] = {}
    for name, total in totals.items():
        floors = Floors.of(total.result(), batches)
        shared |= {f"{name}:{field}": x for field, x in floors._asdict().items()}
    return responses.sharing(**shared)


def add_loss(
    batch: Batch, *, config: LossConfig | None, rewarded: bool, gradient: bool = False
) -> Batch:
    """Add `pg_loss`, the loss of each token before any mean, and `clip_state`, 0 to 4.

    Args:
        batch: all other stages were applied to it.
        config: the loss that is written; None if nothing is written.
        rewarded: the input has rewards.
        gradient: add `loss_gradient`, that of the loss of a step, its KL loss included.
    """
    if config is None:
        return batch
    tokens = tokens_of(batch, rewarded=rewarded)
    surrogate = config.loss(tokens, config.options)
    batch = batch.with_(pg_loss=surrogate.values, clip_state=surrogate.clip)
    if not gradient:
        return batch
    kl_loss = KlLoss(tokens, config.options)
    gradient_of = step_gradient(config, tokens, surrogate, batch.responses, kl_loss)
    return batch.with_(loss_gradient=gradient_of)


def tokens_of(batch: Batch, *, rewarded: bool = False) -> Tokens:
    """Return the tokens of a batch; their mask is 0 for dropped responses and rejected tokens.

    Args:
        batch: has `advantages`.
        rewarded: the input has rewards, which some losses read.
    """
    infer = batch.tokens.get("infer_log_probs")
    # An input without old log-probs is valid if all losses divide by those of the rollout engine.
    old = batch.tokens.get("old_log_probs", infer)
    assert old is not None, "a batch without log-probs of a policy before the update"
    columns, of_rows = (
        {role.partition(":")[2] or role: x for role, x in part.items() if is_read_by_name(role)}
        for part in (batch.tokens, batch.responses)
    )
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
        age=ages(batch) if VERSION in batch else None,
        group=batch.responses.get("group"),
        columns=columns,
        of_rows=of_rows,
        in_batch=_in_batch(batch),
    )


def _in_batch(batch: Batch) -> InBatch | None:
    """Return what connects the responses with their batches; None before the means are computed."""
    if f"{_PREFIX}key" not in batch.responses:
        return None
    shared = {
        name.removeprefix(_PREFIX): column[batch.responses["batch"]]
        for name, column in batch.shared.items()
        if name.startswith(_PREFIX)
    }
    names = {name.rpartition(":")[0] for name in shared if name.endswith(":rank")}
    floors = {name: Floors(shared[f"{name}:rank"], shared[f"{name}:key"]) for name in names}
    key = batch.responses[f"{_PREFIX}key"]
    return InBatch(key, shared["advantage"], shared["log_prob"], floors)


def blocks(tokens: Tokens, *, whole: bool = False) -> Iterator[tuple[slice, Tokens]]:
    """Yield the tokens in blocks of whole responses, each with the slice of its responses.

    On a CPU the intermediate results of a block fit into the cache, which makes a sweep fast. On a
    GPU, or for a loss of whole prompt groups, all tokens are one block.
    """
    count = len(tokens.offsets) - 1
    if whole or is_tensor(tokens.mask):
        yield slice(0, count), tokens
        return
    start = 0
    while start < count:
        end = np.searchsorted(tokens.offsets, tokens.offsets[start] + _BLOCK, side="right")
        stop = min(count, max(start + 1, int(end) - 1))
        yield slice(start, stop), tokens.rows(start, stop)
        start = stop
