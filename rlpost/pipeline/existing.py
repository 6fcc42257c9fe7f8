"""`--skip-existing`: every file is a run of its own, and outputs that are up to date are skipped.

An output records its input, the recipe and the semantics of its numbers, and is up to date as long
as these are the same. Files appear one by one, so a run that is killed is continued by the same
command. The numbers are those of one run over all files: what couples responses of several files is
an error.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.display.text import counted
from rlpost.errors import DataError, ErrorPart, InputsError, ReadWriteError, UsageError
from rlpost.io.clock import Clock
from rlpost.io.outputs import OutputFiles, file_errors
from rlpost.io.parquet.fingerprint import check_overwritable, fingerprint_of, last_entry
from rlpost.io.parquet.footer import MAGIC, MAGIC_ENCRYPTED
from rlpost.io.parquet.inputs import find_inputs, parse
from rlpost.io.parquet.schemas import SOURCE_KEY
from rlpost.io.parquet.source import Source
from rlpost.io.paths import check_replaceable, parse_path
from rlpost.io.ranges import close_file, open_file, read_at
from rlpost.pipeline import run
from rlpost.pipeline.coupled_files import check_separate
from rlpost.pipeline.output.files import targets_of
from rlpost.pipeline.summary import JointSummary
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.parquet.source import TableSource
    from rlpost.io.paths import AnyPath, PathText
    from rlpost.pipeline.options import Options
    from rlpost.pipeline.plan import Plan
    from rlpost.recipe.recipe import Recipe


Json = dict[str, Any]
ROLES = "roles"
"""The key of an entry with the column of each role that was read."""
_STALE = {
    "file": "of another input",
    "size": "of an earlier version of its input",
    "changed": "of an earlier version of its input",
    "recipe": "of another recipe",
    "semantics": "of other semantics",
}
_UNKNOWN = "not written with --skip-existing"


@dataclass
class SortedFiles:
    """The files of an input, by what a run does with them."""

    current: dict[InputFile, Json] = field(default_factory=dict)
    """Those whose output is up to date, with its entry."""
    chosen: dict[InputFile, Json] = field(default_factory=dict)
    """Those to write, with the entry of the output."""
    waiting: list[InputFile] = field(default_factory=list)
    """Those that another program still writes: without a footer or without rows, or changed."""
    failed: dict[InputFile, DataError] = field(default_factory=dict)
    """Those that cannot be processed."""
    before: dict[InputFile, object] = field(default_factory=dict)
    """The identity of the output of each chosen file as it was; None if there was none."""

    def fail(self, file: InputFile, error: DataError) -> None:
        """Leave out a chosen file."""
        self.failed[file] = error
        del self.chosen[file]

    def wait(self, file: InputFile) -> None:
        """Leave a chosen file to a later run."""
        self.waiting.append(file)
        del self.chosen[file]


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
    files = _sorted(targets, recipe, options)
    plans = _check(files, recipe)
    sources: list[Source | TableSource] = []
    joint = JointSummary()
    results: list[Json] = []
    clock = Clock(options.started)
    for file, entry in [*files.chosen.items()]:
        try:
            if not _is_same(entry, _identity(file.path, targets[file])):
                files.wait(file)
                continue
            with OutputFiles([targets[file]]) as outputs:
                if fingerprint_of(targets[file]) != files.before[file]:
                    raise ReadWriteError(
                        f"{targets[file]}: another run wrote it meanwhile",
                        tip="run the command again: it skips what is up to date",
                    )
                metadata = {SOURCE_KEY.decode(): json.dumps(entry)}
                plan = plans.pop(file)
                summary, part = run.write(plan, outputs, options, metadata, clock)
        except DataError as error:
            files.fail(file, error)
        else:
            sources.append(plan.source)
            joint.add(part)
            results.append(summary)
    files.failed = {file: files.failed[file] for file in targets if file in files.failed}
    summary = _summary(files, recipe, sources, joint, results)
    if files.failed:
        raise _failure(files, summary)
    return summary


def _sorted(targets: dict[InputFile, AnyPath], recipe: Recipe, options: Options) -> SortedFiles:
    """Return the files, sorted by their outputs and ends.

    Raises:
        UsageError: an output is stale, and `overwrite` is not set.
    """
    files = SortedFiles()
    stale: dict[AnyPath, str] = {}
    how = {"recipe": recipe_digest(recipe), "semantics": SEMANTICS}
    for file, target in targets.items():
        wanted, before = _identity(file.path, target) | how, fingerprint_of(target)
        exists = target.is_file()
        entry = _entry(target) if exists else {}
        if _is_same(entry, wanted) and isinstance(entry.get(ROLES), dict):
            files.current[file] = entry
            continue
        try:
            if not _is_whole(file.path):
                files.waiting.append(file)
                continue
        except DataError as error:
            files.failed[file] = error
            continue
        files.chosen[file], files.before[file] = wanted, before
        if exists:
            differing = (text for name, text in _STALE.items() if entry.get(name) != wanted[name])
            stale[target] = next(differing, _UNKNOWN) if entry else _UNKNOWN
    if stale and not options.overwrite:
        target, why = next(iter(stale.items()))
        more = f" and {len(stale) - 1:,} more" if len(stale) > 1 else ""
        raise UsageError(
            f"{target}{more}: exists already, {why}",
            tip="--overwrite  # writes stale outputs again",
        )
    check_overwritable([*stale])
    return files


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


def _is_same(entry: Json, wanted: Json) -> bool:
    return all(entry.get(name) == value for name, value in wanted.items())


def _is_whole(path: AnyPath) -> bool:
    """Return whether a Parquet file has its end; raise DataError if it has not its beginning."""
    with file_errors(path, "cannot be read"):
        file, size = open_file(path)
        try:
            begin = read_at(file, min(size, len(MAGIC)), 0)
            end = read_at(file, min(size, len(MAGIC)), max(size - len(MAGIC), 0))
        finally:
            close_file(file)
    if begin != MAGIC[: len(begin)] and begin != MAGIC_ENCRYPTED[: len(begin)]:
        raise DataError(
            f"{path}: is no Parquet file: it does not begin with PAR1",
            tip="of a dump, `rlpost convert` makes one",
        )
    return size > 2 * len(MAGIC) and end in (MAGIC, MAGIC_ENCRYPTED)


def _check(files: SortedFiles, recipe: Recipe) -> dict[InputFile, Plan]:
    """Bind the recipe to each chosen file, and compare roles and keys with those of all others.

    Files that lack columns, or have other ones than most, fail.

    Raises:
        UsageError: as `check_separate`.
    """
    plans: dict[InputFile, Plan] = {}
    for file, entry in [*files.chosen.items()]:
        try:
            source = Source([file])
            if not source.rows:
                files.wait(file)
                continue
            plans[file] = plan = run.bind(source, recipe)
            columns = plan.columns.columns.items()
            entry[ROLES] = {role: x for role, x in columns if role in plan.roles}
        except DataError as error:
            files.fail(file, error)
    texts = {
        file: json.dumps(entry.get(ROLES), sort_keys=True)
        for file, entry in {**files.current, **files.chosen}.items()
    }
    usual = Counter(texts.values()).most_common(1)
    for file in [file for file in files.chosen if texts[file] != usual[0][0]]:
        roles = files.chosen[file][ROLES]
        files.fail(file, _other_roles(file, roles, json.loads(usual[0][0]), plans[file]))
    if files.chosen:
        chosen = {file: plans[file] for file in files.chosen}
        for file, damaged in check_separate(chosen, files.current).items():
            files.fail(file, damaged)
    return plans


def _other_roles(file: InputFile, roles: Json, usual: Json, plan: Plan) -> DataError:
    """Return the error of a file of which other roles are read than of most."""
    differing = [role for role in {**usual, **roles} if usual.get(role) != roles.get(role)]
    role = next((role for role in differing if role not in plan.columns), differing[0])
    here, there = (f"`{one[role]}`" if role in one else "no column" for one in (roles, usual))
    return DataError(
        f"{file.path}: has {here} as {role}, and the other files have {there}; one run over all "
        "files would use the columns that all of them have"
    )


def _summary(
    files: SortedFiles,
    recipe: Recipe,
    sources: Sequence[Source | TableSource],
    joint: JointSummary,
    results: Sequence[Json],
) -> Json:
    """Return the summary of the written files, with the names of the others."""
    names = {
        "up_to_date": [str(file.path) for file in files.current],
        "waiting": [str(file.path) for file in files.waiting],
        "failed": [str(file.path) for file in files.failed],
    }
    skipped = {"skip_existing": {"written": len(results), **names}}
    lists = {name: [row for one in results for row in one[name]] for name in _LISTS}
    if not results:
        empty: Json = {"responses": 0, "facts": {}, "findings": []}
        return {**empty, **lists, "recipe": recipe.model_dump(mode="json"), **skipped}
    plan = run.bind(Source.joined(sources), recipe)
    return {**results[-1], **joint.of(plan), **lists, **skipped}


_LISTS = ("inputs", "outputs")


def _failure(files: SortedFiles, summary: Json) -> InputsError:
    """Return the error of a run that left out bad inputs, whose names come last."""
    parts = [part for error in files.failed.values() for part in error.parts]
    names = ", ".join(summary["skip_existing"]["failed"])
    every = len(files.current) + len(files.chosen) + len(files.waiting) + len(files.failed)
    last = f"{len(files.failed):,} of {counted(every, 'input')} not written: {names}"
    return InputsError(*parts, ErrorPart(last), summary=summary)
