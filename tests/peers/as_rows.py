"""rlpost's side of a comparison with a framework that has no preset.

Each row is a response of its own, and none has failed: frameworks read neither `rollout_id` nor
`failure`. By default rlpost reads both: it joins the rows of a rollout and leaves failures out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost import Options, Recipe, enrich

if TYPE_CHECKING:
    import pyarrow as pa
    from peers.peer_rollouts import PeerRollouts


def enriched(data: PeerRollouts, *emit: str, **options: Any) -> pa.Table:
    """Return the rollouts with the columns of a recipe's options."""
    recipe = Recipe(emit=emit, **{"unit": "row", "failures": "keep", **options})
    return enrich(data.table(), recipe, Options(device="cpu"))[0]
