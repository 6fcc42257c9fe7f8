"""A run over the blocks of a Ray Dataset."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import ray
import ray.data

from rlpost.errors import UsageError
from rlpost.output import emitted
from rlpost.parquet.memory import TableSource
from rlpost.ray.crew import RayCrew, connected, slots
from rlpost.recipe import Recipe
from rlpost.run import bind, check_clash
from rlpost.run_options import Options
from rlpost.state import load_state
from rlpost.tasks.drive import bundles_of, settled
from rlpost.tasks.last import written
from rlpost.tasks.lots import Block, Work


class _Known(TableSource):
    """What binding asks of a source, of a table whose rows are elsewhere."""

    name = "dataset"

    def __init__(self, schema: pa.Schema, rows: int) -> None:
        super().__init__(schema.empty_table())
        self.rows = rows


def enriched(dataset: ray.data.Dataset, recipe: Recipe, options: Options) -> ray.data.Dataset:
    """The dataset with new columns; raises and returns as `rlpost.ray.advantages`."""
    _check_kinds(dataset, recipe, options)
    with connected(options.ray_address):
        refs: list[Any] = dataset.materialize().to_arrow_refs()
        slots(options.workers or 1, options.device)
        crew = RayCrew(options.reporter)
        known = crew.described(refs)
        schema = pa.unify_schemas([schema for schema, rows in known if rows] or [known[0][0]])
        running = load_state(options.state)
        job = bind(_Known(schema, sum(rows for _, rows in known)), recipe, running)
        check_clash(job, emitted(job.shape))
        work = Work(
            recipe,
            job.columns,
            running,
            bundles_of(job, job.source.rows),
            device="cpu" if options.device == "auto" else options.device,
            chunk_tokens=options.chunk_tokens,
            workers=options.workers or 1,
        )
        lots = [Block(ref, rows) for ref, (_, rows) in zip(refs, known, strict=True) if rows]
        _, tables = written(work, lots, settled(work, lots, crew), crew)
        return ray.data.from_arrow_refs(tables)


def _check_kinds(dataset: object, recipe: object, options: object) -> None:
    """Raise UsageError where an argument is not what it should be."""
    for name, value, kind, how in (
        ("dataset", dataset, ray.data.Dataset, "ray.data.read_parquet or from_arrow makes one"),
        ("recipe", recipe, Recipe, "rlpost.Recipe(estimator=...) makes one"),
        ("options", options, Options, "rlpost.Options(...) makes them"),
    ):
        if not isinstance(value, kind):
            raise UsageError(
                f"rlpost.ray.advantages: {name} is of type {type(value).__name__}, and "
                f"{kind.__name__} is needed: {how}"
            )
