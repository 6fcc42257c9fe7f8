"""The mask of the tokens of a batch with the highest entropy: the advantage of the others is 0.

The others stay in the mask, so that they count in the denominators of a loss, as in the frameworks.
The cut of each batch is found in two passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.kernels import trimming
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlpost.kernels.arrays import Array
    from rlpost.pipeline.data import Batch, Column, Responses
    from rlpost.recipe.recipe import Recipe

ENTROPY = "entropy"
"""The role of the entropy of each token's distribution, in nats."""
CHOSEN = "top_entropy"
"""The column of tokens that keep their advantage."""


def map_leading(batch: Batch) -> dict[str, Array]:
    """Return the codes of the leading bits of entropies, [T] int64."""
    return {"codes": trimming.leading_codes(batch[ENTROPY], *_competitors(batch))}


def map_trailing(batch: Batch) -> dict[str, Array]:
    """Return the codes of the other bits of entropies in the bin of their batch's cut."""
    codes, competes = _competitors(batch)
    bins = batch.shared["entropy:bins"]
    return {"codes": trimming.trailing_codes(batch[ENTROPY], codes, competes, bins)}


def _competitors(batch: Batch) -> tuple[Array, Array]:
    """Return the batch of each token, and whether it competes, [T] each."""
    codes, kept = (spread(batch.responses[x], batch.offsets) for x in ("batch", "kept"))
    return codes, batch.mask & kept


def bins(responses: Responses, parts: Iterable[dict[str, Column]], *, recipe: Recipe) -> Responses:
    """Share the bin of each batch in which its cut is."""
    assert recipe.top_entropy_quantile is not None
    tally, batches = _tally(parts, trimming.LEADING), int(responses["batch"].max()) + 1
    edge = trimming.boundary(tally, batches, recipe.top_entropy_quantile)
    return responses.sharing(**{"entropy:bins": edge.bins, "entropy:rank": edge.rank})


def cuts(responses: Responses, parts: Iterable[dict[str, Column]]) -> Responses:
    """Share the cut of each batch."""
    edge = trimming.Boundary(*(responses.shared[f"entropy:{x}"] for x in ("bins", "rank")))
    return responses.sharing(**{"entropy:cuts": trimming.cuts(_tally(parts, 0), edge)})


def _tally(parts: Iterable[dict[str, Column]], dropped: int) -> trimming.Tally:
    """Return the counts of the codes of all batches."""
    tally = trimming.Tally.empty()
    for part in parts:
        tally = tally.plus(part["codes"], dropped)
    return tally


def keep_top_entropy(batch: Batch) -> Batch:
    """Set the advantages of a batch's tokens of lower entropy to 0; add `CHOSEN`."""
    codes = spread(batch.responses["batch"], batch.offsets)
    chosen = trimming.at_least(batch[ENTROPY], codes, batch.shared["entropy:cuts"])
    advantages = batch.xp.where(chosen, batch["advantages"], 0.0)
    return batch.with_(**{"advantages": advantages, CHOSEN: chosen})
