"""`--update`: which files of an input are to be written, and how a stopped update is repeated.

Each output of an update records its input (size, time of change, digest of its footer), the recipe
and the columns that were read. An output is up to date as long as these are the same. The others
are written by one run. Its numbers are those of a run over all files: a batch or prompt group that
a file to be written shares with one that is up to date is an error, or both are written.

`rlpost.pipeline.update.marker` completes runs that were killed while they published their files.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.formats.containers import is_dump_file
from rlpost.formats.whole import is_whole
from rlpost.io.locks import remove_leftovers
from rlpost.io.own_files import is_below
from rlpost.io.parquet.checks import read_metadata
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.paths import (
    glob_files,
    list_files,
    parse_path,
    relative_to_glob,
    resolved,
)
from rlpost.io.publish import StagedFiles
from rlpost.io.staged import file_errors
from rlpost.io.tokenizer import FILE as TOKENIZER_FILE
from rlpost.pipeline.output.journal import JOURNAL
from rlpost.pipeline.update.entry import REASONS, Entry, Identity, UpdateFile, recorded_path
from rlpost.pipeline.update.marker import MARKER, recover, stopped_files
from rlpost.pipeline.update.vanished import outputs_of_runs, vanished_outputs
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlpost.io.paths import AnyPath, PathText
    from rlpost.pipeline.options import Options
    from rlpost.pipeline.update.vanished import Vanished
    from rlpost.recipe.recipe import Recipe


Json = dict[str, Any]
_MOST_NAMES = 20  # in the summary


def recipe_digest(recipe: Recipe) -> str:
    """Return a digest of what a recipe computes; new options do not change it."""
    table = recipe.model_dump(mode="json", exclude_defaults=True, exclude={"estimator_name"})
    tokenizer = Path(recipe.tokenizer or "")
    files = {
        "estimator_file": Path(recipe.estimator.rpartition(":")[0]),
        "tokenizer_file": tokenizer / TOKENIZER_FILE if tokenizer.is_dir() else tokenizer,
    }
    for name, path in files.items():
        if path.is_file():
            with path.open("rb") as file, file_errors(path, "cannot be read"):
                table[name] = file_digest(file, "sha256").hexdigest()
    return sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:32]


@dataclass
class Update:
    """The files of an input: those to write, with the reason, and those that are up to date."""

    output: Path
    recipe: str
    """The digest of the recipe."""
    files: list[UpdateFile]
    """All, in the order of the input."""
    chosen: dict[UpdateFile, str] = field(default_factory=dict)
    """Those to write, and the reason, of `REASONS`."""
    kept: dict[UpdateFile, Entry] = field(default_factory=dict)
    """Those whose output is up to date."""
    incomplete: list[UpdateFile] = field(default_factory=list)
    """Those that another program still writes."""
    waiting: list[UpdateFile] = field(default_factory=list)
    """Those that must be written after an incomplete one."""
    skipped: list[UpdateFile] = field(default_factory=list)
    """Those that are no rollouts, as far as is known."""
    empty: list[UpdateFile] = field(default_factory=list)
    """Those without rows, if there are no others to write."""
    blocked: list[UpdateFile] = field(default_factory=list)
    """Those whose output cannot be replaced: `rlpost advantages` did not write what is there."""
    vanished: list[Vanished] = field(default_factory=list)
    """Outputs whose input was not found."""
    deletes: bool = False
    """Those whose input is gone for certain are deleted at the end."""
    deleted: list[Path] = field(default_factory=list)
    computed_with_deleted: list[Path] = field(default_factory=list)
    """Outputs that were computed together with deleted ones, and keep their numbers."""
    written: bool = False
    sources: dict[UpdateFile, Identity] = field(default_factory=dict)
    """The identity of chosen files when they were read."""

    def target(self, found: UpdateFile) -> Path:
        """Return the output of a file."""
        return self.output / found.name

    def entry(self, found: UpdateFile, roles: Mapping[str, str], device: str) -> str:
        """Return the entry of the output of a chosen file, for its metadata."""
        source, target = self.sources[found], self.target(found)
        size, changed = source.fingerprint or (-1, "")
        return Entry(
            found.name,
            recorded_path(found.path, target),
            size,
            changed,
            source.footer,
            self.recipe,
            SEMANTICS,
            dict(roles),
            device,
        ).to_json()

    def choose(self, more: Mapping[UpdateFile, str]) -> None:
        """Choose more files, which are up to date, for reasons of `REASONS`."""
        for found, reason in more.items():
            self.chosen[found] = reason
            del self.kept[found]
        self.chosen = {one: self.chosen[one] for one in self.files if one in self.chosen}

    def wait(self) -> bool:
        """Leave out chosen files that come after one that must wait; return whether there are any.

        That one may have an earlier step, which has to be written first.
        """
        position = {found: index for index, found in enumerate(self.files)}
        first = min(
            (position[one] for one in [*self.incomplete, *self.blocked]), default=len(self.files)
        )
        late = [found for found in self.chosen if position[found] > first]
        for found in late:
            del self.chosen[found]
        self.waiting += late
        return bool(late)

    def leave_out_empty(self) -> None:
        """Leave out the chosen files, none of which has a row."""
        self.empty += self.chosen
        self.chosen = {}

    def leave_out_changed(self) -> bool:
        """Leave out chosen files that another program writes; return whether there are any."""
        changed = [found for found in self.chosen if self._is_changing(found)]
        for found in changed:
            del self.chosen[found]
        self.incomplete += changed
        return bool(changed)

    def _is_changing(self, found: UpdateFile) -> bool:
        """Return whether a file changed since it was read, or is not complete any more."""
        try:
            source = self.sources.get(found)
            same = source is None or Identity.of(found) == source
            return not (same and is_whole(found.path, table=found.table))
        except ReadWriteError:
            return True

    @property
    def gone(self) -> list[Path]:
        """The outputs whose input is gone for certain."""
        return [one.output for one in self.vanished if not one.unproven]

    def delete(self) -> None:
        """Delete the outputs whose input is gone; note those of the same runs."""
        self.deleted = self.gone
        outputs = [self.target(found) for found in self.kept]
        self.computed_with_deleted = outputs_of_runs(outputs, self.deleted)
        for path in self.deleted:
            with file_errors(path, "cannot be deleted"):
                path.unlink(missing_ok=True)
        self.vanished = [one for one in self.vanished if one.unproven]

    def facts(self) -> Json:
        """Return the part of the summary."""
        reasons = [*self.chosen.values()]
        return {
            "files": len(self.files),
            "chosen": len(self.chosen),
            "written": len(self.chosen) if self.written else 0,
            "reasons": {reason: reasons.count(reason) for reason in REASONS},
            "names": {found.name: reason for found, reason in [*self.chosen.items()][:_MOST_NAMES]},
            "incomplete": [str(found.path) for found in self.incomplete],
            "waiting": [str(found.path) for found in self.waiting],
            "skipped": [str(found.path) for found in self.skipped],
            "empty": [str(found.path) for found in self.empty],
            "blocked": [str(self.target(found)) for found in self.blocked],
            "missing_inputs": [str(path) for path in self.gone],
            "unproven": {str(one.output): one.unproven for one in self.vanished if one.unproven},
            "deleted": [str(path) for path in self.deleted],
            "computed_with_deleted": [str(path) for path in self.computed_with_deleted],
        }


def check_options(output: AnyPath, options: Options) -> Path:
    """Return OUT of an update; raise UsageError if other options exclude each other."""
    for name, is_set, instead in (
        ("--resume", options.resume, "the next update writes what a stopped one left out"),
        ("--engine ray", options.engine != "local", "leave --engine out: new files are few"),
    ):
        if is_set:
            raise UsageError(f"--update with {name}: is not supported; {instead}")
    if not isinstance(output, Path):
        raise UsageError(
            f"{output}: --update needs a local directory as OUT, for locks and renamed files; "
            "write there, and copy it"
        )
    if output.is_file() or (output.suffix == ".parquet" and not output.is_dir()):
        raise UsageError(
            f"{output}: --update needs a directory as OUT, with one file for each input file"
        )
    return output


def find(inputs: Sequence[PathText], output: Path) -> list[UpdateFile]:
    """Return the files of an input: Parquet, or dumps; none of an empty directory.

    Files whose names begin with a dot or an underscore, or that are in such a folder, are left out,
    and so are those below OUT.

    Raises:
        ReadWriteError: a path does not exist, or cannot be read.
        UsageError: OUT is IN, or two files would have the same output.
    """
    found: dict[AnyPath, UpdateFile] = {}
    for one in inputs:
        for file in _expand(one, output):
            found.setdefault(
                file.path.absolute() if isinstance(file.path, Path) else file.path, file
            )
    names: dict[str, UpdateFile] = {}
    for file in found.values():
        if (other := names.setdefault(file.name, file)) is not file:
            raise UsageError(
                f"{other.path} and {file.path}: both would be written to {output / file.name}; "
                "pass their common directory: then the output keeps the folders"
            )
    return [*names.values()]


def _expand(text: PathText, output: Path) -> list[UpdateFile]:
    path = parse_path(text)
    with file_errors(path, "cannot be read"):
        if not isinstance(path, Path):
            return [UpdateFile(one.path, one.relative, table=True) for one in find_inputs([text])]
        if path.is_dir():
            if resolved(path) == resolved(output):
                raise UsageError(f"{output}: OUT and IN are the same directory; name another OUT")
            return _directory(path, output)
        if path.is_file():
            return [UpdateFile(path, Path(path.name), not is_dump_file(path))]
        matches = [(file, relative_to_glob(path, file)) for file in glob_files(path)]
        if not matches:
            find_inputs([text])  # raises the error
        return [UpdateFile(file, relative, not is_dump_file(file)) for file, relative in matches]


def _directory(top: Path, output: Path) -> list[UpdateFile]:
    """Return the tables of a directory; without any, its dumps."""
    below = output.absolute() if top.absolute() in output.absolute().parents else None
    tables, dumps = [], []
    for file, relative in list_files(top):
        hidden = any(part.startswith((".", "_")) for part in relative.parts)
        if hidden or (below is not None and below in (top.absolute() / relative).parents):
            continue
        if file.suffix == ".parquet":
            tables.append(UpdateFile(file, relative, table=True))
        elif is_dump_file(file):
            dumps.append(UpdateFile(file, relative, table=False))
    return tables or dumps


def select(update: Update, stopped: frozenset[str]) -> None:
    """Sort the files of an update: to be written, up to date, incomplete, blocked.

    Args:
        update: has the files.
        stopped: names of outputs of a run that was killed while it published them.

    Raises:
        ReadWriteError: a file cannot be read.
    """
    for found in update.files:
        reason = _reason(update, found, stopped)
        if reason is None:
            continue
        if reason == "unknown" and not _is_own(update.target(found)):
            update.blocked.append(found)
        elif is_whole(found.path, table=found.table):
            update.chosen[found] = reason
        else:
            update.incomplete.append(found)


def _reason(update: Update, found: UpdateFile, stopped: frozenset[str]) -> str | None:
    """Return why a file is to be written; None if its output is up to date."""
    target = update.target(found)
    if not target.exists():
        return "stopped" if found.name in stopped else "new"
    entry = Entry.read(target)
    if entry is None:
        return "unknown"
    reasons = {
        "stopped": found.name in stopped,
        "semantics": entry.semantics != SEMANTICS,
        "recipe": entry.recipe != update.recipe,
        "changed": not Identity.of(found).is_of(entry),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if reason is None:
        update.kept[found] = entry
    return reason


def _is_own(target: Path) -> bool:
    """Return whether `rlpost advantages` wrote an existing file; a damaged one may be anyone's."""
    try:
        metadata = read_metadata(target).metadata or {}
    except (DataError, ReadWriteError, OSError, ValueError):  # Arrow's errors are of the last two
        return False
    return b"rlpost.recipe" in metadata and b"rlpost.loss" not in metadata


@contextmanager
def updating(
    inputs: Sequence[PathText], output: AnyPath, recipe: Recipe, options: Options
) -> Iterator[Update]:
    """Lock OUT for an update, undo a run that was killed, and yield what is to be written.

    Raises:
        UsageError, ReadWriteError: as `check_options`, `find` and `select`.
        BusyError: another update of the same OUT is running.
    """
    folder = check_options(output, options)
    with StagedFiles([folder / MARKER]):
        stopped = recover(folder, options.state)
        update = _selected(inputs, folder, recipe, stopped)
        if options.delete and not update.files:
            raise UsageError("--delete: IN has no files at all, so nothing was deleted")
        update.deletes = options.delete
        if not (folder / JOURNAL).exists():  # its complete files have temporary names
            remove_leftovers(update.target(found) for found in update.kept)
        yield update


def planned(
    inputs: Sequence[PathText], output: AnyPath, recipe: Recipe, options: Options
) -> Update:
    """Return what an update would write; raises as `updating`, and writes nothing."""
    folder = check_options(output, options)
    return _selected(inputs, folder, recipe, stopped_files(folder))


def _selected(
    inputs: Sequence[PathText], folder: Path, recipe: Recipe, stopped: frozenset[str]
) -> Update:
    update = Update(folder, recipe_digest(recipe), find(inputs, folder))
    for parent in {update.target(found).parent for found in update.files}:
        with file_errors(parent, "cannot be read"):
            if not is_below(parent, folder):
                raise UsageError(
                    f"{parent}: leads out of {folder} by a symbolic link, and an update writes "
                    "below OUT alone; replace the link by a directory"
                )
    select(update, stopped)
    update.vanished = [*vanished_outputs(folder, update.files, inputs)]
    return update
