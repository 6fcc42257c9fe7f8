"""Preparing a run in tasks: what a recipe and an input come to, before the first task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from rlpost.output import emitted
from rlpost.provenance import whole_of
from rlpost.run import bind, check_clash
from rlpost.tasks.drive import bundles_of
from rlpost.tasks.lots import Lot, Work, lots_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.kernels.rewards import RunningMoments
    from rlpost.parquet.places import Place
    from rlpost.parquet.source import Source
    from rlpost.parquet.survey import Survey
    from rlpost.plan import Job
    from rlpost.recipe import Recipe
    from rlpost.run_options import Options


class Prepared(NamedTuple):
    """A run over files, ready to be driven."""

    job: Job
    work: Work
    lots: list[Lot]


def prepare(
    survey: Survey,
    places: Sequence[Place],
    recipe: Recipe,
    running: Mapping[str, RunningMoments],
    options: Options,
    slots: int,
) -> Prepared:
    """Bind a recipe to files, and divide these into lots.

    Args:
        survey: of the files.
        places: where each file's twin is written.
        recipe: what is done.
        running: where each domain's running reward moments stand.
        options: how it is done; `workers` are the threads of one task, one where it is open.
        slots: how many tasks may run at once.

    Raises:
        UsageError, DataError: the recipe does not fit the input, or the columns clash.
    """
    job = bind(cast("Source", survey), recipe, running)  # it has what binding asks of a source
    check_clash(job, emitted(job.shape))
    used = running if "running" in job.shape.norm else {}
    work = Work(
        recipe,
        job.columns,
        running,
        bundles_of(job, survey.rows),
        whole_of(survey.files, survey.first_rows, used, options.asked),
        "cpu" if options.device == "auto" else options.device,
        options.chunk_tokens,
        options.workers or 1,
        str(Path.cwd()),
        options.verify,
    )
    return Prepared(job, work, lots_of(survey, places, slots))
