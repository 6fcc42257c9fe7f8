"""Runs on Ray: over files with `--engine ray`, and over a Ray Dataset.

In a Ray Data pipeline:

    import rlpost.ray
    enriched = rlpost.ray.advantages(dataset, rlpost.Recipe(estimator="grpo"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.optional import need

if TYPE_CHECKING:
    import ray.data

    from rlpost.pipeline.options import Options
    from rlpost.recipe.recipe import Recipe


__all__ = ["advantages"]


def advantages(
    dataset: ray.data.Dataset, recipe: Recipe | None = None, options: Options | None = None
) -> ray.data.Dataset:
    """The dataset with the columns that `rlpost.advantages` writes beside its own.

    It runs at once, as `Dataset.materialize` does: a group may have its rows in any block. Blocks
    stay where they are in the cluster; the numbers are those of `rlpost.enrich` on all rows.

    Args:
        dataset: one row a response, with the columns that rollout files have.
        recipe: what is done; the default is plain GRPO.
        options: `device`, `chunk_tokens` and `workers` (threads of a task) count here.

    Returns:
        A materialized dataset with as many blocks and rows, in the same order.

    Raises:
        UsageError, DataError, UnavailableError: as `rlpost.enrich`; UsageError, too, for
            arguments that are none of these.
    """
    need("rlpost.ray", "ray", "ray")
    from rlpost.distributed import ray as blocks  # noqa: PLC0415 - Ray takes a second to import
    from rlpost.pipeline.options import Options  # noqa: PLC0415
    from rlpost.recipe.recipe import Recipe  # noqa: PLC0415

    recipe = Recipe() if recipe is None else recipe
    return blocks.enriched(dataset, recipe, Options() if options is None else options)
