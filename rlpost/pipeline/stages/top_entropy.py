"""The mask of the tokens of a batch with the highest entropy: the advantage of the others is 0.

The others stay in the mask, so that they count in the denominators of a loss, as in the frameworks.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from rlpost.kernels.trimming import TopShare
from rlpost.pipeline.stages.batch_order import kept_in_order

if TYPE_CHECKING:
    from rlpost.pipeline.data import Batch
    from rlpost.pipeline.stages.batch_order import Ordered
    from rlpost.recipe.recipe import Recipe

ENTROPY = "entropy"
"""The role of the entropy of each token's distribution, in nats."""
CHOSEN = "top_entropy"
"""The column of tokens that keep their advantage."""


def roles(recipe: Recipe) -> frozenset[str]:
    """Return the roles that the mask reads."""
    return frozenset() if recipe.top_entropy_quantile is None else frozenset({ENTROPY})


def ordered(recipe: Recipe) -> Ordered:
    """Return the entropy of tokens, and the rule which of them keep their advantage."""
    share = recipe.top_entropy_quantile
    return {} if share is None else {ENTROPY: (itemgetter(ENTROPY), TopShare(share))}


def keep_top_entropy(batch: Batch, *, recipe: Recipe) -> Batch:
    """Set the advantages of a batch's tokens of lower entropy to 0; add `CHOSEN`."""
    chosen = kept_in_order(batch, ENTROPY, batch[ENTROPY], ordered(recipe)[ENTROPY][1])
    advantages = batch.xp.where(chosen, batch["advantages"], 0.0)
    return batch.with_(**{"advantages": advantages, CHOSEN: chosen})
