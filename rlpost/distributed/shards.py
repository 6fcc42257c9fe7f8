"""Runs in shards, for array jobs without a cluster engine: planned once, written by many processes.

`plan` runs all passes but the last, and stores the reduced responses in a state directory. Each
shard runs the last pass over every N-th partition. Shards share only that directory and the
output. They may run at any time, on any machine that sees both, and again after they were killed.
The shard that finds all files complete publishes them.

The state directory has `plan.json`, and a folder of the run with the blocks of reduced responses
and a note of each complete partition. Each plan has a folder of its own, so that shards of an
earlier plan that still run do not disturb a later one.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from rlpost.distributed.driver import (
    group_row,
    join_call,
    prepare,
    reduce_responses,
    whole_summary,
    work_seconds,
    write_calls,
    written_files,
)
from rlpost.distributed.executor import (
    FolderExecutor,
    TaskResult,
    delete_block,
    read_batches,
    write_block,
)
from rlpost.distributed.partition import check_inputs
from rlpost.distributed.plan_dir import (
    Manifest,
    RunDirectory,
    partition_lock,
    run_directories,
    try_lock,
)
from rlpost.distributed.staging import StagedOutputs
from rlpost.errors import DataError, ReadWriteError, RlpostError, UnavailableError, UsageError
from rlpost.io.clock import Clock
from rlpost.io.own_files import read_bytes, seal, unseal
from rlpost.io.parquet.fingerprint import check_overwritable
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import input_metadata
from rlpost.io.paths import PathText, RemotePath, location_of, parse_path, resolved
from rlpost.io.publish import StagedFiles, write_file
from rlpost.io.staged import file_errors
from rlpost.io.system import cores
from rlpost.io.threads import MOST_WORKERS
from rlpost.pipeline.device_choice import (
    AUTO,
    DeviceChoice,
    check_device,
    check_name,
    choose_device,
)
from rlpost.pipeline.expectations import check_findings, expectations_of
from rlpost.pipeline.output.files import check_writable, targets_of
from rlpost.pipeline.running_state import load_state, save_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.display.reporter import Reporter
    from rlpost.distributed.executor import Call
    from rlpost.distributed.partition import Json, TaskContext
    from rlpost.distributed.tasks import TaskOutput
    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.options import Options
    from rlpost.recipe.recipe import Recipe


_MANIFEST, _SUMMARY = "plan.json", "summary.json"
_PLAN_AGAIN = "since `rlpost plan` read it; plan again when no process writes it"
_START_UP = "start_up", "start_up_cpu"
"""Wall and CPU time of a shard's process until its first task, in the note of that task."""
_SLOTS = 64  # the input is divided finely enough for so many shards


def plan(
    inputs: Sequence[PathText],
    output: str | Path,
    state_dir: Path,
    recipe: Recipe,
    options: Options,
) -> Json:
    """Run all passes but the last, and store what the shards need in the state directory.

    Returns:
        `responses`, `files`, `lots` (how many shards can work at once), `tables` (on which
        responses were reduced), `together` (why on one table, if so), `bytes` of the state and
        the `device` of the shards.

    Raises:
        UsageError: the directory has a plan already, or is among the data; and as
            `rlpost.advantages`.
        DataError, ReadWriteError, UnavailableError: as `rlpost.advantages`.
    """
    if (state_dir / _MANIFEST).exists() and not options.overwrite:
        raise UsageError(
            f"--state-dir {state_dir}: has a plan already; --overwrite replaces it, another folder "
            "keeps it"
        )
    check_name(options.device)  # other machines compute on it
    expectations_of(options.expect)
    paths = [location_of(path) for path in inputs]
    _check_public([*paths, output])
    _check_apart(state_dir, paths, output)
    check_writable(options.state)
    files = find_inputs(paths)
    targets = targets_of(files, paths, parse_path(output), overwrite=options.overwrite)
    if options.overwrite:
        check_overwritable(targets)
    targets = [target.absolute() if isinstance(target, Path) else target for target in targets]
    with StagedFiles(targets):
        _remove_plan(state_dir)
        return _planned(files, targets, state_dir, recipe, options)


def _check_public(paths: Sequence[PathText]) -> None:
    """Raise UsageError for a URL with secrets: a plan stores the URLs that its shards read."""
    for path in map(parse_path, paths):
        if isinstance(path, RemotePath) and path.has_secrets:
            raise UsageError(
                f"{path}: has a password or a query, and a plan would store it for its shards",
                tip="name a URL without, with credentials in the environment, or a copy",
            )


def _check_apart(state_dir: Path, inputs: Sequence[PathText], output: str | Path) -> None:
    """Raise UsageError if the state would be stored among the files of the input or the output."""
    own = resolved(state_dir)
    for text in (*inputs, str(output)):
        path = parse_path(text)
        if not isinstance(path, Path):
            continue
        folder, is_out = resolved(path), text == str(output)
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
    """Plan a run whose outputs this process has locked, and store it in the state directory."""
    survey, staged = input_metadata(files), StagedOutputs(targets)
    before = load_state(options.state)
    run = prepare(survey, staged.paths, recipe, before, options, lambda _: _SLOTS)
    run_directory = RunDirectory(state_dir / staged.run, run.partitions)
    try:
        run_directory.create()
        executor = FolderExecutor(run_directory.blocks, options.reporter)
        context = replace(run.context, workers=_threads(options))
        reduced = reduce_responses(context, run.partitions, executor)
        executor.delete_all_but({batch.block for own in reduced.batches for batch in own})
        staged.create()
        state = None if options.state is None else str(options.state.absolute())
        names = [str(file.path) for file in files]
        manifest = Manifest(
            run.context,
            run.partitions,
            reduced,
            names,
            [*targets],
            staged.run,
            state,
            options.overwrite,
            options.fail_on,
            dict(options.expect),
        )
        write_file(state_dir / _MANIFEST, manifest.to_json().encode())
    except BaseException:
        staged.discard()
        shutil.rmtree(run_directory.folder, ignore_errors=True)
        raise
    staged.keep()
    return {
        "responses": run.plan.source.rows,
        "files": len(files),
        "partitions": len(run.partitions),
        "tables": run.context.buckets,
        "one_table_reason": run.plan.why_one_table,
        "bytes": sum(path.stat().st_size for path in run_directory.blocks.iterdir()),
        "device": run.context.device.facts(),
    }


def _remove_plan(state_dir: Path) -> None:
    """Remove an earlier plan, and the complete files of its shards."""
    with suppress(OSError, ValueError, KeyError, TypeError, RlpostError):
        # Also of a plan that this version cannot continue.
        earlier = unseal(read_bytes(state_dir / _MANIFEST) or b"")
        if (state_dir / earlier["run"]) in run_directories(state_dir):
            targets = [parse_path(one) for one in earlier["targets"]]
            StagedOutputs(targets, earlier["run"]).discard()
    for folder in run_directories(state_dir):
        shutil.rmtree(folder, ignore_errors=True)
    with file_errors(state_dir, "cannot be written"):
        for name in (_MANIFEST, _SUMMARY):
            (state_dir / name).unlink(missing_ok=True)


def _threads(options: Options) -> int:
    return options.workers or min(cores(), MOST_WORKERS)


def shard(state_dir: Path, index: int, count: int, options: Options) -> Json | None:
    """Run the last pass over one shard's files; return the summary if no shard is missing.

    Complete partitions are not written again, so a shard that was killed can be started again.

    Args:
        state_dir: from `plan`.
        index: of the shard, from 0.
        count: how many shards there are; it may differ from one call to the next.
        options: `workers`, `device`, `verify`, `reporter` and `started` are used.

    Returns:
        The summary of the whole run once every file is published; None before.

    Raises:
        UsageError: there is no such shard.
        UnavailableError: this machine does not have the device.
        ReadWriteError: there is no plan; an input was changed; reading or writing failed.
    """
    if not 0 <= index < count:
        raise UsageError(f"--shard-index {index}: 0 to {count - 1} is needed for {count} shards")
    clock = Clock(options.started, options.cpu_started)
    manifest = planned(state_dir)
    if (state_dir / _SUMMARY).exists():
        return _read(state_dir / _SUMMARY)
    context = replace(
        manifest.context,
        workers=_threads(options),
        device=_device(state_dir, manifest, options),
        verify=options.verify,
    )
    run_directory = RunDirectory(state_dir / manifest.run, manifest.partitions)
    try:
        own = range(index, len(manifest.partitions), count)
        _write(run_directory, manifest, context, own, options.reporter, clock)
        _join(run_directory, manifest, context)
        if not all(note.exists() for note in run_directory.notes):
            return None
        return _publish(state_dir, manifest, [_read(note) for note in run_directory.notes])
    except RlpostError:
        check_inputs(manifest.partitions, _PLAN_AGAIN)  # if it fails, another try is no use
        raise


def _device(state_dir: Path, manifest: Manifest, options: Options) -> DeviceChoice:
    """Return the device of a shard: its own, or the plan's, if this machine has that."""
    if options.device != AUTO:
        return choose_device(options.device, 0)
    try:
        check_device(manifest.context.device.name)
    except UnavailableError as error:
        raise UnavailableError(
            f"--state-dir {state_dir}: planned with {error}. A --device of this shard overrides "
            "that of the plan"
        ) from None
    return manifest.context.device


def planned(state_dir: Path) -> Manifest:
    """Return the plan in a state directory; raises ReadWriteError if it has none."""
    path = state_dir / _MANIFEST
    text = read_bytes(path)
    if text is None:
        raise ReadWriteError(
            f"--state-dir {state_dir}: has no plan; run `rlpost plan IN... OUT --state-dir "
            f"{state_dir}` first"
        )
    return Manifest.from_json(text, str(path))


def _write(
    run_directory: RunDirectory,
    manifest: Manifest,
    context: TaskContext,
    numbers: range,
    reporter: Reporter,
    clock: Clock,
) -> None:
    """Write the partitions of a shard that are not complete."""
    notes, partitions = run_directory.of_partitions, manifest.partitions
    missing = [number for number in numbers if not notes[number].exists()]
    reporter.start("write", sum(partitions[number].rows for number in missing))
    calls = list(write_calls(partitions, manifest.reduced))
    start_up = clock.now()
    for number in missing:
        partition, note = partitions[number], notes[number]
        files = partition.files if partition.part is None else ()  # a part has no file of its own
        targets = manifest.targets[partition.first : partition.first + len(files)]
        with partition_lock(note, numbers), StagedOutputs(targets, manifest.run).locked():
            if not note.exists():  # another process may have written it before this one's lock
                output = _run(run_directory, context, calls[number])
                if output.rows is not None:
                    write_block(run_directory.blocks, run_directory.encoded(number), output.rows)
                facts = {**output.note, **dict(zip(_START_UP, start_up, strict=True))}
                write_file(note, seal(facts).encode(), lock=False)
                start_up = 0.0, 0.0
        reporter.advance(partition.rows)


def _join(run_directory: RunDirectory, manifest: Manifest, context: TaskContext) -> None:
    """Join the divided files whose parts are all complete, unless another process does."""
    for own, note in zip(run_directory.divided, run_directory.of_divided, strict=True):
        parts = run_directory.of_partitions[own.start : own.stop]
        if note.exists() or not all(part.exists() for part in parts):
            continue
        with try_lock(note) as locked:
            if not locked or note.exists():
                continue
            results = [
                TaskResult(_read(run_directory.of_partitions[number]), block)
                for number, block in zip(own, map(run_directory.encoded, own), strict=True)
            ]
            call = join_call(manifest.partitions, manifest.reduced, own, results)
            first = manifest.partitions[own.start].first
            with StagedOutputs([manifest.targets[first]], manifest.run).locked():
                output = _run(run_directory, context, call)
            write_file(note, seal(output.note).encode(), lock=False)
        for number in own:
            delete_block(run_directory.blocks, run_directory.encoded(number))


def _run(run_directory: RunDirectory, context: TaskContext, call: Call) -> TaskOutput:
    return call.task(context, *call.arguments, read_batches(run_directory.blocks, call.batches))


def _read(path: Path) -> Json:
    """Return a note or the summary."""
    try:
        return unseal(read_bytes(path) or b"")
    except ValueError as error:
        raise DataError(
            f"{path}: is damaged ({error}); run `rlpost plan --overwrite` again"
        ) from None


def _publish(state_dir: Path, manifest: Manifest, notes: list[Json]) -> Json | None:
    """Publish all files; return None if another shard does."""
    with try_lock(state_dir / _SUMMARY) as locked:
        if not locked:
            return None
        if (state_dir / _SUMMARY).exists():
            return _read(state_dir / _SUMMARY)
        staged, begun = StagedOutputs(manifest.targets, manifest.run), perf_counter()
        summary = whole_summary(
            manifest.context.plan_on_responses(),
            manifest.reduced,
            notes,
            manifest.inputs,
            manifest.context.device,
            manifest.targets,
        )
        row = group_row(manifest.partitions, manifest.reduced)
        check_findings(summary, manifest.expect, manifest.fail_on, row)
        with staged.locked():
            check_inputs(manifest.partitions, _PLAN_AGAIN)
            digests = [file["digest"] for file in written_files(notes)]
            staged.publish(digests, overwrite=manifest.overwrite)
        if manifest.state is not None:
            save_state(Path(manifest.state), manifest.context.state.after(manifest.reduced.after))
        summary |= _facts_of_shards(manifest, notes, perf_counter() - begun)
        write_file(state_dir / _SUMMARY, seal(summary).encode(), lock=False)
        return summary


def _facts_of_shards(manifest: Manifest, notes: list[Json], publishing: float) -> Json:
    """Return the engine and the seconds of all shards together, for the summary."""
    start_up, cpu = (sum(note.get(key, 0.0) for note in notes) for key in _START_UP)
    write = sum(note["seconds"] for note in notes)
    return {
        "engine": {"name": "shards", "partitions": len(manifest.partitions)},
        "seconds": {
            "total": start_up + write + publishing,
            "start_up": start_up,
            "passes": {"write": write},
            "publishing": publishing,
            **work_seconds(notes, {"total": cpu, "start_up": cpu}),
            "limits": {},
        },
    }
