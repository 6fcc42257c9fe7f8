"""Runs in shards, for array jobs without a cluster engine: planned once, written by many.

`plan` makes all passes but the last and leaves the settled responses in a state directory. Each
shard makes the last pass over every N-th lot of files. Shards share no more than that directory
and the output; they may run at any time, on any machine that sees both, and again where one was
killed. The one that finds all files complete gives them their names.

The state directory has `plan.json`, and a folder of the run that is planned there, with the sheets
of settled responses and a note of each lot that is complete. So shards of an earlier plan, should
some still run, do not disturb a later one.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.distributed.driver import prepare, settled
from rlpost.distributed.executor import TaskResult
from rlpost.distributed.folder import FolderExecutor, drop, keep, read, write_whole
from rlpost.distributed.last_pass import busy, call_to_join, calls_to_write, files_of, summary_from
from rlpost.distributed.partition import check_inputs
from rlpost.distributed.plan_dir import Manifest, RunDirectory, claimed, run_directories, turn
from rlpost.distributed.staging import StagedOutputs
from rlpost.errors import ReadWriteError, RlpostError, UsageError
from rlpost.io.parquet.fingerprint import check_overwritable
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import input_metadata
from rlpost.io.paths import parse_path
from rlpost.io.staged import file_errors
from rlpost.io.threads import MOST_WORKERS, cores
from rlpost.kernels.rewards import RunningMoments
from rlpost.pipeline.outputs import Outputs, check_writable, targets_of
from rlpost.pipeline.running_state import load_state, save_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.distributed.executor import Call
    from rlpost.distributed.partition import Json, TaskContext
    from rlpost.distributed.tasks import TaskOutput
    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.options import Options
    from rlpost.recipe.recipe import Recipe


_MANIFEST, _SUMMARY = "plan.json", "summary.json"
_PLAN_AGAIN = "since `rlpost plan` read it; plan again when nobody writes it"
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
        UsageError: the directory has a plan already, or is among the data; and as
            `rlpost.advantages`.
        DataError, ReadWriteError, UnavailableError: as `rlpost.advantages`.
    """
    if (state_dir / _MANIFEST).exists() and not options.overwrite:
        raise UsageError(
            f"{state_dir}: has a plan already; --overwrite replaces it, another folder keeps it"
        )
    paths = [str(path) for path in inputs]
    _check_apart(state_dir, paths, output)
    check_writable(options.state)
    files = find_inputs(paths)
    targets = targets_of(files, paths, parse_path(output), overwrite=options.overwrite)
    check_overwritable(targets)
    targets = [target.absolute() if isinstance(target, Path) else target for target in targets]
    with Outputs(targets):
        _forget(state_dir)
        return _planned(files, targets, state_dir, recipe, options)


def _check_apart(state_dir: Path, inputs: Sequence[str], output: str | Path) -> None:
    """Raise UsageError where the state would lie among the input's files, or the output's."""
    own = state_dir.resolve()
    for text in (*inputs, str(output)):
        place = parse_path(text)
        if not isinstance(place, Path):
            continue
        folder, is_out = place.resolve(), text == str(output)
        if folder == own or (not is_out and folder in own.parents):
            raise UsageError(
                f"--state-dir {state_dir}: is {'OUT' if is_out else f'IN ({text}), or inside it'}; "
                "name a folder beside them"
            )


def _planned(
    files: Sequence[InputFile],
    targets: Sequence[AnyPath],
    state_dir: Path,
    recipe: Recipe,
    options: Options,
) -> Json:
    """Plan a run over outputs that are claimed, and leave it in the state directory."""
    running, waiting = load_state(options.state), StagedOutputs(targets)
    run = prepare(input_metadata(files), waiting.places, recipe, running, options, _SLOTS)
    run_directory = RunDirectory(state_dir / waiting.run, run.partitions)
    try:
        run_directory.make()
        executor = FolderExecutor(run_directory.blocks, options.reporter)
        found = settled(replace(run.work, workers=_threads(options)), run.partitions, executor)
        executor.drop_all_but({part.block for parts in found.parts for part in parts})
        waiting.begin()
        state = None if options.state is None else str(options.state.absolute())
        names = [str(file.path) for file in files]
        manifest = Manifest(
            run.work,
            run.partitions,
            found,
            names,
            [*targets],
            waiting.run,
            state,
            options.overwrite,
        )
        write_whole(state_dir / _MANIFEST, manifest.to_json().encode())
    except BaseException:
        waiting.discard()
        shutil.rmtree(run_directory.folder, ignore_errors=True)
        raise
    waiting.stay()
    return {
        "responses": run.plan.source.rows,
        "files": len(files),
        "lots": len(run.partitions),
        "tables": run.work.buckets,
        "together": run.plan.together,
        "bytes": sum(path.stat().st_size for path in run_directory.blocks.iterdir()),
    }


def _forget(state_dir: Path) -> None:
    """Remove an earlier plan, and what its shards have complete."""
    with suppress(RlpostError):
        earlier = planned(state_dir)
        StagedOutputs(earlier.targets, earlier.run).discard()
    for folder in run_directories(state_dir):
        shutil.rmtree(folder, ignore_errors=True)
    with file_errors(state_dir, "cannot be written"):
        for name in (_MANIFEST, _SUMMARY):
            (state_dir / name).unlink(missing_ok=True)


def _threads(options: Options) -> int:
    return options.workers or min(cores(), MOST_WORKERS)


def shard(state_dir: Path, index: int, count: int, options: Options) -> Json | None:
    """The last pass over one shard's files; the summary where no shard is left to be waited for.

    Lots that are complete are not written again, so a shard that was killed can be started again.

    Args:
        state_dir: from `plan`.
        index: of the shard, from 0.
        count: how many shards there are; it may differ from one call to the next.
        options: `workers`, `device`, `verify`, `reporter` count here.

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
    work = replace(manifest.work, workers=_threads(options), device=device, verify=options.verify)
    run_directory = RunDirectory(state_dir / manifest.run, manifest.partitions)
    try:
        _write(
            run_directory, manifest, work, range(index, len(manifest.partitions), count), options
        )
        _join(run_directory, manifest, work)
        if not all(note.exists() for note in run_directory.notes):
            return None
        return _publish(state_dir, manifest, [_read_json(note) for note in run_directory.notes])
    except RlpostError:
        check_inputs(manifest.partitions, _PLAN_AGAIN)  # if that is why, running again is no use
        raise


def planned(state_dir: Path) -> Manifest:
    """What was planned there; raises ReadWriteError where nothing was."""
    path = state_dir / _MANIFEST
    if not path.exists():
        raise ReadWriteError(
            f"{state_dir}: there is no plan: `rlpost plan IN... OUT --state-dir {state_dir}` first"
        )
    with file_errors(path, "cannot be read"):
        return Manifest.from_json(path.read_text(encoding="utf-8"), str(path))


def _write(
    run_directory: RunDirectory,
    manifest: Manifest,
    work: TaskContext,
    partitions: range,
    options: Options,
) -> None:
    """Write the lots of a shard that are not complete."""
    todo = [place for place in partitions if not run_directory.of_partitions[place].exists()]
    options.reporter.start("write", sum(manifest.partitions[place].rows for place in todo))
    calls = list(calls_to_write(manifest.partitions, manifest.settled))
    for place in todo:
        partition, note = manifest.partitions[place], run_directory.of_partitions[place]
        files = (
            partition.files if partition.part is None else ()
        )  # a part is not written to its file
        targets = manifest.targets[partition.first : partition.first + len(files)]
        with claimed(note, partitions), StagedOutputs(targets, manifest.run).claimed():
            if not note.exists():  # another process wrote it before this one had the lock
                outcome = _done(run_directory, work, calls[place])
                if outcome.rows is not None:
                    keep(run_directory.blocks, run_directory.encoded(place), outcome.rows)
                write_whole(note, json.dumps(outcome.note).encode())
        options.reporter.advance(partition.rows)


def _join(run_directory: RunDirectory, manifest: Manifest, work: TaskContext) -> None:
    """Put divided files together, whose parts are complete, and which nobody else is at."""
    for own, note in zip(run_directory.joins, run_directory.of_joins, strict=True):
        parts = run_directory.of_partitions[own.start : own.stop]
        if note.exists() or not all(part.exists() for part in parts):
            continue
        with turn(note) as mine:
            if not mine or note.exists():
                continue
            done = [
                TaskResult(
                    _read_json(run_directory.of_partitions[partition]),
                    run_directory.encoded(partition),
                )
                for partition in own
            ]
            call = call_to_join(manifest.partitions, manifest.settled, own, done)
            first = manifest.partitions[own.start].first
            with StagedOutputs([manifest.targets[first]], manifest.run).claimed():
                outcome = _done(run_directory, work, call)
            write_whole(note, json.dumps(outcome.note).encode())
        for partition in own:
            drop(run_directory.blocks, run_directory.encoded(partition))


def _done(run_directory: RunDirectory, work: TaskContext, call: Call) -> TaskOutput:
    return call.task(work, *call.given, read(run_directory.blocks, call.parts))


def _read_json(path: Path) -> Json:
    with file_errors(path, "cannot be read"):
        found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def _publish(state_dir: Path, manifest: Manifest, notes: list[Json]) -> Json | None:
    """Give all files their names; None where another shard is about it."""
    with turn(state_dir / _SUMMARY) as mine:
        if not mine:
            return None
        if (state_dir / _SUMMARY).exists():
            return _read_json(state_dir / _SUMMARY)
        waiting = StagedOutputs(manifest.targets, manifest.run)
        with waiting.claimed():
            check_inputs(manifest.partitions, _PLAN_AGAIN)
            marks = [file["mark"] for file in files_of(notes)]
            waiting.publish(marks, overwrite=manifest.overwrite)
        if manifest.state is not None:
            after = manifest.settled.running.items()
            moments = {name: RunningMoments(**values) for name, values in after}
            save_state(Path(manifest.state), {**manifest.work.running, **moments})
        summary = _summary_of(manifest, notes)
        write_whole(state_dir / _SUMMARY, json.dumps(summary, indent=1).encode())
        return summary


def _summary_of(manifest: Manifest, notes: list[Json]) -> Json:
    plan, taken = manifest.work.plan_on_responses(), sum(note["seconds"] for note in notes)
    return {
        **summary_from(plan, manifest.settled, notes, manifest.inputs, manifest.targets),
        "engine": {"name": "shards", "lots": len(manifest.partitions)},
        "seconds": {"total": taken, "passes": {"write": taken}, "busy": busy(notes)},
    }
