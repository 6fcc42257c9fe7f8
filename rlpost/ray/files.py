"""A run over files on Ray: `rlpost advantages --engine ray`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlpost.kernels.rewards import RunningMoments
from rlpost.parquet.survey import joined
from rlpost.ray.crew import RayCrew, connected, slots
from rlpost.state import load_state, save_state
from rlpost.targets import Outputs, check_writable
from rlpost.tasks.drive import settled
from rlpost.tasks.last import busy, files_of, summary_from, written
from rlpost.tasks.lots import check_inputs
from rlpost.tasks.prepare import prepare
from rlpost.tasks.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.parquet.inputs import InputFile
    from rlpost.parquet.places import Place
    from rlpost.parquet.survey import Survey
    from rlpost.recipe import Recipe
    from rlpost.run_options import Options
    from rlpost.tasks.lots import Json

_FILES_A_LOOK = 64  # footers that one task reads


def advantages(
    files: Sequence[InputFile], targets: Sequence[Place], recipe: Recipe, options: Options
) -> Json:
    """Write every file's twin, enriched; raises and returns as `rlpost.api.advantages`."""
    running = load_state(options.state)
    check_writable(options.state)
    begun = time.perf_counter()
    with connected(options.ray_address), Outputs(targets):
        waiting, crew = Waiting(targets), RayCrew(options.reporter)
        connect = time.perf_counter()
        free = slots(options.workers or 1, options.device)
        look = surveyed(crew, files)
        run = prepare(look, waiting.places, recipe, running, options, free)
        waiting.begin()
        try:
            found = settled(run.work, run.lots, crew)
            settle = time.perf_counter()
            notes, _ = written(run.work, run.lots, found, crew)
            check_inputs(run.lots, "since the run began; run again when nobody writes it")
            marks = [file["mark"] for file in files_of(notes)]
            waiting.publish(marks, overwrite=options.overwrite)
        except BaseException:
            waiting.discard()
            raise
    if options.state is not None:
        own = {name: RunningMoments(**values) for name, values in found.running.items()}
        save_state(options.state, {**running, **own})
    end = time.perf_counter()
    passes = {"connect": connect - begun, "settle": settle - connect, "write": end - settle}
    return {
        **summary_from(run.job, found, notes, [str(file.path) for file in files], targets),
        "engine": {"name": "ray", "tasks_at_once": free, "lots": len(run.lots)},
        "seconds": {"total": end - begun, "passes": passes, "busy": busy(notes)},
    }


def surveyed(crew: RayCrew, files: Sequence[InputFile]) -> Survey:
    """The survey of all files, whose footers tasks read."""
    parts = [files[at : at + _FILES_A_LOOK] for at in range(0, len(files), _FILES_A_LOOK)]
    return joined(crew.look(parts))
