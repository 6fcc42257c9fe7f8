"""Baselines per group and position of a token, in one flat array that no padding enters.

A group has as many slots as its longest response has positions. What is summed over the input is
one number per slot, far fewer than there are tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import keep, spread
from rlpost.reward_stages import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from rlpost.batch import Batch, Responses
    from rlpost.estimators import Estimator
    from rlpost.recipe import Recipe


def lay_out(responses: Responses, *, recipe: Recipe) -> Responses:
    """Adds `slot`, the first slot of each response's group, and who `counted`."""
    by_row = recipe.numerics.otb_position == "token"
    size, group = responses["length" if by_row else "tokens"], responses["group"]
    longest = torch.zeros(responses.count("group"), dtype=torch.int64)
    longest = longest.scatter_reduce(0, group, size, "amax")
    first = (longest.cumsum(0) - longest)[group]
    rows = counted(responses, recipe)
    if recipe.numerics.single == "raw":  # a group of one then has no baseline
        rows = rows & (torch.bincount(group, rows)[group] > 1)
    responses = responses.with_(slot=first, counted=rows)
    return responses.noting(slots=int(longest.sum()))


def measure(batch: Batch, *, recipe: Recipe, estimator: Estimator) -> dict[str, Tensor]:
    """Slot, return times weight, and weight of each policy token that counts."""
    assert estimator.token_weights is not None
    mask, offsets = batch.mask, keep(batch.mask, batch.offsets)
    returns = reverse_scan(batch["token_level_rewards"][mask], offsets, recipe.gamma)
    columns = {name: batch[name][mask] for name in reads(recipe, estimator)}
    weights = estimator.token_weights(**columns, offsets=offsets, otb_is_cap=recipe.otb_is_cap)
    there = spread(batch.responses["counted"], offsets)
    slot = _slots(batch, recipe)[mask]
    return {
        "slot": slot[there],
        "above": (returns * weights)[there],
        "below": weights[there],
    }


def reads(recipe: Recipe, estimator: Estimator) -> frozenset[str]:
    """The token roles that weights are made of; the engine's log-probs only where they weigh."""
    unused = set() if recipe.otb_is_cap is not None else {"infer_log_probs"}
    return frozenset(estimator.weight_columns) - unused


def gather(
    responses: Responses, parts: Iterable[dict[str, Tensor]], *, recipe: Recipe
) -> Responses:
    """Adds the baselines of all slots to what batches share."""
    numerics = recipe.numerics
    above, below, number = torch.zeros(3, responses.notes["slots"], dtype=torch.float64)
    for part in parts:
        above.index_add_(0, part["slot"], part["above"])
        below.index_add_(0, part["slot"], part["below"])
        number.index_add_(0, part["slot"], torch.ones_like(part["below"]))
    baselines = above / (below + numerics.otb_eps)
    if numerics.otb_lone == "none":
        baselines = torch.where(number > 1, baselines, 0.0)
    return responses.sharing(position_baselines=baselines)


def add_baselines(batch: Batch, *, recipe: Recipe) -> Batch:
    """Adds `position_baseline`, per token; 0 on observations."""
    baselines = batch.shared["position_baselines"]
    found = baselines[torch.where(batch.mask, _slots(batch, recipe), 0)] if len(baselines) else 0.0
    return batch.with_(position_baseline=torch.where(batch.mask, found, 0.0))


def _slots(batch: Batch, recipe: Recipe) -> Tensor:
    """The slot of each token, [T]; of observations only where positions are those of the row."""
    first = spread(batch.responses["slot"], batch.offsets)
    if recipe.numerics.otb_position == "token":
        place = torch.arange(batch.mask.numel(), device=batch.mask.device)
        return first + place - spread(batch.offsets[:-1], batch.offsets)
    before = keep(batch.mask, batch.offsets)[:-1]
    return first + batch.mask.cumsum(0) - 1 - spread(before, batch.offsets)
