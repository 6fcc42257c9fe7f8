"""Runs over a Ray Dataset; for files on Ray see the option `--engine ray`.

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
    """Return the dataset with the columns that `rlpost.advantages` writes beside its own.

    It runs at once, like `Dataset.materialize`, since responses of a group may be in any block.
    Blocks stay on their nodes. The numbers equal those of `rlpost.enrich` on all rows.

    Args:
        dataset: one row per response, with the columns of rollout files.
        recipe: what is computed; the default is plain GRPO.
        options: only `device`, `chunk_tokens` and `workers` (threads of a task) are used.

    Returns:
        A materialized dataset with the same rows, in the same order.

    Raises:
        UsageError, DataError, UnavailableError: as `rlpost.enrich`; UsageError for arguments of
            other types.
    """
    need("rlpost.ray", "ray", "ray", "pandas")
    from rlpost.distributed import ray as blocks  # noqa: PLC0415 - Ray takes a second to import
    from rlpost.pipeline.options import Options  # noqa: PLC0415
    from rlpost.recipe.recipe import Recipe  # noqa: PLC0415

    recipe = Recipe() if recipe is None else recipe
    return blocks.enriched(dataset, recipe, Options() if options is None else options)
