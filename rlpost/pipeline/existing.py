"""`--skip-existing`: every file is a run of its own, and outputs that are up to date are skipped.

An output records its input, the recipe and the semantics of its numbers, and is up to date as long
as these are the same. Files appear one by one, so a run that is killed is continued by the same
command. What couples responses of several files is an error.
"""

from __future__ import annotations

import json
import os
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.display.text import counted
from rlpost.errors import DataError, ErrorPart, InputsError, ReadWriteError, UsageError
from rlpost.io.arrow import CellLocation, fingerprints, key
from rlpost.io.clock import Clock
from rlpost.io.outputs import OutputFiles, file_errors
from rlpost.io.parquet.fingerprint import check_overwritable, fingerprint_of, last_entry
from rlpost.io.parquet.inputs import find_inputs, parse
from rlpost.io.parquet.schemas import SOURCE_KEY
from rlpost.io.parquet.source import CHUNK_TOKENS, Source
from rlpost.io.paths import check_replaceable, parse_path
from rlpost.pipeline import run
from rlpost.pipeline.needs import coupling_of
from rlpost.pipeline.output.files import targets_of
from rlpost.pipeline.summary import JointSummary
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.parquet.source import TableSource
    from rlpost.io.paths import AnyPath, PathText
    from rlpost.pipeline.options import Options
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.summary import SummaryPart
    from rlpost.recipe.recipe import Recipe


Json = dict[str, Any]
_OF_BATCH = {"all": (), "step": ("batch",), "step_domain": ("batch", "domain")}
"""Roles that name a batch, by the scope in the recipe's numerics."""
_STALE = {
    "file": "of another input",
    "size": "of an earlier version of its input",
    "changed": "of an earlier version of its input",
    "recipe": "of another recipe",
    "semantics": "of other semantics",
}
_UNKNOWN = "not written with --skip-existing"


class Enrichment(NamedTuple):
    """An output to write."""

    target: AnyPath
    entry: Json
    """What it records of its input."""
    before: object
    """The identity of the output as it was; None if there was none."""


def recipe_digest(recipe: Recipe) -> str:
    """Return a digest of what a recipe computes, with the file of code that it names."""
    table = recipe.model_dump(mode="json", exclude_defaults=True, exclude={"estimator_name"})
    code = Path(recipe.estimator.rpartition(":")[0])
    if code.is_file():
        with code.open("rb") as file, file_errors(code, "cannot be read"):
            table["estimator_file"] = file_digest(file, "sha256").hexdigest()
    return sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:32]


def advantages(
    paths: Sequence[PathText], output: AnyPath, recipe: Recipe, options: Options
) -> Json:
    """Write the files that are not up to date, and return the summary of these.

    Raises:
        UsageError: files share a group or batch, or the recipe couples all responses; an output is
            stale, and `overwrite` is not set; options exclude each other.
        InputsError: some inputs are bad; the others are written.
        DataError, ReadWriteError, FindingsError: as a run over one file.
    """
    for flag, is_set, why in (
        ("--state", options.state is not None, "passes statistics from file to file"),
        (f"--engine {options.engine}", options.engine != "local", "is for many files at a time"),
    ):
        if is_set:
            raise UsageError(f"--skip-existing: excludes {flag}, which {why}")
    inputs = find_inputs(paths)
    if any(parse_path(path) in output.parents for path in paths):  # OUT is in IN
        inputs = [file for file in inputs if output not in file.path.parents]
    targets = dict(zip(inputs, targets_of(inputs, paths, output, overwrite=True), strict=True))
    check_replaceable()
    jobs = _stale(targets, recipe, overwrite=options.overwrite)
    current = [file for file in inputs if file not in jobs]
    plans, failed = _bound(jobs, recipe)
    if plans:
        failed |= _check_separate(plans, current)
    sources: list[Source | TableSource] = []
    joint, results, clock = JointSummary(), list[Json](), Clock(options.started)
    for file in [file for file in plans if file not in failed]:
        try:
            summary, part = _write(file, jobs[file], plans[file], options, clock)
        except DataError as error:
            failed[file] = error
        else:
            sources.append(plans.pop(file).source)
            joint.add(part)
            results.append(summary)
    errors = {file: failed[file] for file in inputs if file in failed}
    summary = _summary(recipe, sources, joint, results)
    summary["skip_existing"] = {
        "written": len(results),
        "up_to_date": [str(file.path) for file in current],
        "failed": [str(file.path) for file in errors],
    }
    if errors:
        names = ", ".join(summary["skip_existing"]["failed"])
        last = f"{len(errors):,} of {counted(len(inputs), 'input')} not written: {names}"
        parts = [part for error in errors.values() for part in error.parts]
        raise InputsError(*parts, ErrorPart(last), summary=summary)
    return summary


def _write(
    file: InputFile, job: Enrichment, plan: Plan, options: Options, clock: Clock
) -> tuple[Json, SummaryPart]:
    """Write the output of a file; raises and returns as `rlpost.pipeline.run.write`."""
    if not job.entry.items() >= _identity(file.path, job.target).items():
        raise DataError(f"{file.path}: was written again since this run began")
    with OutputFiles([job.target]) as outputs:
        if fingerprint_of(job.target) != job.before:
            raise ReadWriteError(
                f"{job.target}: another run wrote it meanwhile",
                tip="run the command again: it skips what is up to date",
            )
        metadata = {SOURCE_KEY.decode(): json.dumps(job.entry)}
        return run.write(plan, outputs, options, metadata, clock)


def _stale(
    targets: Mapping[InputFile, AnyPath], recipe: Recipe, *, overwrite: bool
) -> dict[InputFile, Enrichment]:
    """Return the files whose outputs are not up to date.

    Raises:
        UsageError: one exists, and `overwrite` is not set.
    """
    jobs: dict[InputFile, Enrichment] = {}
    stale: dict[AnyPath, str] = {}
    how = {"recipe": recipe_digest(recipe), "semantics": SEMANTICS}
    for file, target in targets.items():
        job = Enrichment(target, _identity(file.path, target) | how, fingerprint_of(target))
        exists = target.is_file()
        entry = _entry(target) if exists else {}
        differing = [text for name, text in _STALE.items() if entry.get(name) != job.entry[name]]
        if exists and differing:
            stale[target] = differing[0] if entry else _UNKNOWN
        if differing:
            jobs[file] = job
    if stale and not overwrite:
        target, why = next(iter(stale.items()))
        more = f" and {len(stale) - 1:,} more" if len(stale) > 1 else ""
        raise UsageError(
            f"{target}{more}: exists already, {why}",
            tip="--overwrite  # writes stale outputs again",
        )
    check_overwritable([*stale])
    return jobs


def _identity(path: AnyPath, target: AnyPath) -> Json:
    """Return what identifies the input of an output: its path, size, and time or ETag."""
    with file_errors(path, "cannot be read"):
        size, changed, _ = fingerprint_of(path) or (-1, "", False)
    return {"file": _recorded_path(path, target), "size": size, "changed": changed}


def _recorded_path(path: AnyPath, target: AnyPath) -> str:
    """Return an input's path from the folder of its output, as far as both are local, or its URL.

    Both folders are real ones, so the path does not depend on links by which they are reached.
    """
    if not isinstance(path, Path):
        return str(path)
    file = path.absolute().parent.resolve() / path.name
    if not isinstance(target, Path):
        return file.as_posix()
    return Path(os.path.relpath(file, target.absolute().parent.resolve())).as_posix()


def _entry(target: AnyPath) -> Json:
    """Return what an output records of its input; empty if it records nothing."""
    try:
        with file_errors(target, "cannot be read"):
            return parse(last_entry(target, SOURCE_KEY) or b"{}")
    except ValueError:
        return {}


def _bound(
    files: Collection[InputFile], recipe: Recipe
) -> tuple[dict[InputFile, Plan], dict[InputFile, DataError]]:
    """Return the plan of each file that can be processed, and the errors of the others."""
    plans: dict[InputFile, Plan] = {}
    failed: dict[InputFile, DataError] = {}
    for file in files:
        try:
            plans[file] = run.bind(Source([file]), recipe)
        except DataError as error:
            failed[file] = error
    return plans, failed


def _check_separate(
    plans: Mapping[InputFile, Plan], written: Sequence[InputFile]
) -> dict[InputFile, DataError]:
    """Check that no coupled group or batch spans files; return those whose keys are damaged.

    Args:
        plans: of the files to write, at least one.
        written: the others, which were written.

    Raises:
        UsageError: a group or batch spans files, or the recipe couples all responses.
        DataError: the keys of a file that was written are damaged.
    """
    failed: dict[InputFile, DataError] = {}
    plan = next(iter(plans.values()))
    coupling, batch = coupling_of(plan.resolved), plan.resolved.recipe.numerics.batch
    columns = [plan.columns.column(x) for x in _OF_BATCH[batch] if x in plan.columns]
    if coupling.scope == "run" or (coupling.scope == "batch" and not columns):
        steps = coupling.scope == "batch" and batch != "all"
        text = f"--skip-existing writes each file by itself, and {coupling.why} couples all"
        or_steps = "; if a column has the steps, --map batch=COLUMN names it" if steps else ""
        raise UsageError(text, tip=f"leave --skip-existing out: one run writes all{or_steps}")
    if coupling.scope == "response" or (coupling.scope == "group" and "group" not in plan.columns):
        return failed
    if coupling.scope == "group":
        columns.append(plan.columns.column("group"))
    files, keys = [*written, *plans], []
    for file in files:
        try:
            keys.append(_keys(file, columns))
        except DataError as error:
            if file not in plans:
                raise
            failed[file] = error
            keys.append(np.zeros(0, np.uint64))
    labels, owner = np.concatenate(keys), np.arange(len(files)).repeat([*map(len, keys)])
    order = np.lexsort((owner, labels))
    labels, owner = labels[order], owner[order]
    shared = np.flatnonzero((labels[1:] == labels[:-1]) & (owner[1:] >= len(written)))
    if len(shared):
        first, second = (files[owner[at]].path for at in (shared[0], shared[0] + 1))
        unit = "prompt group" if coupling.scope == "group" else "batch"
        by = " and ".join(f"`{column}`" for column in columns)
        raise UsageError(
            f"{first} and {second}: share a {unit} by {by}, and {coupling.why} couples its "
            "responses, but --skip-existing writes each file by itself",
            tip="leave --skip-existing out, or write the rows of a group or batch to one file",
        )
    return failed


def _keys(file: InputFile, columns: Sequence[str]) -> NDArray[np.uint64]:
    """Return 64 bits of each distinct key of the rows of a file; none if it lacks a column."""
    source, keys = Source([file]), [np.zeros(0, np.uint64)]
    if not {*columns} <= {*source.columns}:
        return keys[0]
    for chunk in source.read_file(0, columns, CHUNK_TOKENS, columns[0]):
        rows = np.zeros(chunk.table.num_rows, np.uint64)
        for name in columns:
            location = CellLocation(str(file.path), chunk.first_row, name)
            rows = rows * np.uint64(31) + fingerprints(key(chunk.table.column(name), location))
        keys.append(np.unique(rows))
    return np.unique(np.concatenate(keys))


def _summary(
    recipe: Recipe,
    sources: Sequence[Source | TableSource],
    joint: JointSummary,
    results: Sequence[Json],
) -> Json:
    """Return the summary of the written files."""
    lists = {name: [x for file in results for x in file[name]] for name in ("inputs", "outputs")}
    if not results:
        empty: Json = {"responses": 0, "facts": {}, "findings": []}
        return {**empty, **lists, "recipe": recipe.model_dump(mode="json")}
    plan = run.bind(Source.joined(sources), recipe)
    return {**results[-1], **joint.of(plan), **lists}
