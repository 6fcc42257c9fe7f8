"""Runs in shards, for array jobs without a cluster engine: planned once, written by many.

`plan` makes all passes but the last and leaves the settled responses in a state directory. Each
shard makes the last pass over every N-th lot of files. Shards share no more than that directory
and the output; they may run at any time, on any machine that sees both, and again where one was
killed. The one that finds all files complete gives them their names.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError, UsageError
from rlpost.kernels.rewards import RunningMoments
from rlpost.parallel import MOST_WORKERS, cores
from rlpost.parquet.inputs import find_inputs
from rlpost.parquet.places import place_of
from rlpost.parquet.staged import naming
from rlpost.parquet.survey import survey
from rlpost.state import load_state, save_state
from rlpost.targets import check_writable, targets_of
from rlpost.tasks.drive import busy, calls_to_write, settled, summary_from
from rlpost.tasks.folder import FolderCrew, read, write_whole
from rlpost.tasks.manifest import Manifest
from rlpost.tasks.prepare import prepare
from rlpost.tasks.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.recipe import Recipe
    from rlpost.run_options import Options
    from rlpost.tasks.lots import Json, Work

_MANIFEST, _SHEETS, _DONE, _SUMMARY = "plan.json", "sheets", "done", "summary.json"
_SLOTS = 64  # shards that an input is divided finely enough for


def plan(
    inputs: Sequence[str | Path],
    output: str | Path,
    state_dir: Path,
    recipe: Recipe,
    options: Options,
) -> Json:
    """All passes but the last; what the shards need is left in the state directory.

    Returns:
        `responses`, `files`, `lots` (as many shards can work at once), `tables` (that responses
        were settled on), `together` (why on one, if so) and `bytes` of the state.

    Raises:
        UsageError: the directory has a plan already; and as `rlpost.advantages`.
        DataError, ReadWriteError, UnavailableError: as `rlpost.advantages`.
    """
    if (state_dir / _MANIFEST).exists() and not options.overwrite:
        raise UsageError(
            f"{state_dir}: has a plan already; --overwrite replaces it, another folder keeps it"
        )
    running = load_state(options.state)
    check_writable(options.state)
    paths = [str(path) for path in inputs]
    files = find_inputs(paths)
    targets = targets_of(files, paths, place_of(output), overwrite=options.overwrite)
    targets = [target.absolute() if isinstance(target, Path) else target for target in targets]
    waiting = Waiting(targets)
    run = prepare(survey(files), waiting.places, recipe, running, options, _SLOTS)
    sheets = _emptied(state_dir)
    crew = FolderCrew(sheets, options.reporter)
    found = settled(replace(run.work, workers=_threads(options)), run.lots, crew)
    crew.drop_all_but({part.sheet for parts in found.parts for part in parts})
    for target in targets:
        if isinstance(target, Path):
            with naming(target, "cannot be written"):
                target.parent.mkdir(parents=True, exist_ok=True)
    waiting.begin()
    state = None if options.state is None else str(options.state.absolute())
    manifest = Manifest(run.work, run.lots, found, [str(f.path) for f in files], targets, state)
    write_whole(state_dir / _MANIFEST, manifest.to_json().encode())
    return {
        "responses": run.job.source.rows,
        "files": len(files),
        "lots": len(run.lots),
        "tables": run.work.bundles,
        "together": run.job.together,
        "bytes": sum(path.stat().st_size for path in sheets.iterdir()),
    }


def _emptied(state_dir: Path) -> Path:
    """Make the state directory, without what an earlier plan left; the folder of its sheets."""
    with naming(state_dir, "cannot be written"):
        for name in (_MANIFEST, _SUMMARY):
            (state_dir / name).unlink(missing_ok=True)
        for name in (_SHEETS, _DONE):
            (state_dir / name).mkdir(parents=True, exist_ok=True)
            for path in (state_dir / name).iterdir():
                path.unlink()
    return state_dir / _SHEETS


def _threads(options: Options) -> int:
    return options.workers or min(cores(), MOST_WORKERS)


def shard(state_dir: Path, index: int, count: int, options: Options) -> Json | None:
    """The last pass over one shard's files; the summary where no shard is left to be waited for.

    Lots that are complete are not written again, so a shard that was killed can be started again.

    Args:
        state_dir: from `plan`.
        index: of the shard, from 0.
        count: how many shards there are; it may differ from one call to the next.
        options: `workers`, `device`, `reporter` count here.

    Returns:
        The summary of the whole run once every file has its name; None before.

    Raises:
        UsageError: there is no such shard.
        ReadWriteError: there is no plan; an input was changed; reading or writing failed.
    """
    if not 0 <= index < count:
        raise UsageError(f"--shard-index {index}: 0 to {count - 1} is needed for {count} shards")
    manifest = planned(state_dir)
    if (state_dir / _SUMMARY).exists():
        return _read_json(state_dir / _SUMMARY)
    device = options.device if options.device != "auto" else manifest.work.device
    work = replace(manifest.work, workers=_threads(options), device=device)
    _write(state_dir, manifest, work, range(index, len(manifest.lots), count), options)
    notes = [_note_of(state_dir, place) for place in range(len(manifest.lots))]
    if not all(path.exists() for path in notes):
        return None
    return _publish(state_dir, manifest, [_read_json(path) for path in notes])


def planned(state_dir: Path) -> Manifest:
    """What was planned there; raises ReadWriteError where nothing was."""
    path = state_dir / _MANIFEST
    if not path.exists():
        raise ReadWriteError(
            f"{state_dir}: there is no plan: `rlpost plan IN... OUT --state-dir {state_dir}` first"
        )
    with naming(path, "cannot be read"):
        return Manifest.from_json(path.read_text(encoding="utf-8"), str(path))


def _write(state_dir: Path, manifest: Manifest, work: Work, own: range, options: Options) -> None:
    """Write the lots of a shard that are not complete."""
    todo = [place for place in own if not _note_of(state_dir, place).exists()]
    options.reporter.start("write", sum(manifest.lots[place].rows for place in todo))
    calls = list(calls_to_write(manifest.lots, manifest.settled))
    for place in todo:
        call = calls[place]
        outcome = call.task(work, *call.given, read(state_dir / _SHEETS, call.parts))
        write_whole(_note_of(state_dir, place), json.dumps(outcome.note).encode())
        options.reporter.advance(call.rows)


def _note_of(state_dir: Path, lot: int) -> Path:
    return state_dir / _DONE / f"{lot:06d}.json"


def _read_json(path: Path) -> Json:
    with naming(path, "cannot be read"):
        found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def _publish(state_dir: Path, manifest: Manifest, notes: list[Json]) -> Json:
    """Give all files their names; two shards that do so at once do no harm."""
    Waiting(manifest.targets).publish()
    after = {name: RunningMoments(**values) for name, values in manifest.settled.running.items()}
    if manifest.state is not None:
        save_state(Path(manifest.state), {**manifest.work.running, **after})
    job, taken = manifest.work.job_on_responses(), sum(note["seconds"] for note in notes)
    summary = {
        **summary_from(job, manifest.settled, notes, manifest.inputs, manifest.targets),
        "engine": {"name": "shards", "lots": len(manifest.lots)},
        "seconds": {"total": taken, "passes": {"write": taken}, "busy": busy(notes)},
    }
    write_whole(state_dir / _SUMMARY, json.dumps(summary, indent=1).encode())
    return summary
