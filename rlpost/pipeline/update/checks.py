"""Checks that the numbers of an update are those of one run over all files."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from rlpost.errors import DataError, UsageError
from rlpost.io.parquet.inputs import InputFile, partitions_of
from rlpost.io.parquet.source import Source
from rlpost.pipeline.coupled_files import Keys
from rlpost.pipeline.coupling import coupling_of
from rlpost.pipeline.update.entry import REASONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.pipeline.coupling import Coupling
    from rlpost.pipeline.options import Options
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.running_state import RunState
    from rlpost.pipeline.update.entry import UpdateFile
    from rlpost.pipeline.update.files import Update


class _Written(NamedTuple):
    """An output that is up to date, or whose input was not found."""

    name: str
    """The input."""
    file: InputFile
    """The output."""
    found: UpdateFile | None
    """None if the input was not found."""


class _DamagedOutputError(Exception):
    """An output cannot be read."""

    def __init__(self, found: UpdateFile) -> None:
        super().__init__()
        self.found = found


def roles_of(plan: Plan) -> dict[str, str]:
    """Return the column of each role that a run reads."""
    return {role: column for role, column in plan.columns.columns.items() if role in plan.roles}


def is_carried(plan: Plan) -> bool:
    """Return whether a run passes statistics from batch to batch, so that their order matters."""
    return bool(coupling_of(plan.resolved).carried)


def coupled(update: Update, plan: Plan) -> dict[UpdateFile, str]:
    """Return the files that are up to date and must be computed with the chosen ones, with reasons.

    If the output of one is damaged, it is returned alone, with an empty reason.

    Args:
        update: has the files.
        plan: of a run over the chosen ones.

    Raises:
        UsageError: the input of such a file was not found.
        DataError: the output of one that was not found is damaged.
    """
    roles, coupling = roles_of(plan), coupling_of(plan.resolved)
    found = {
        one: _other_roles(one, update.kept[one].roles, roles, plan.columns.columns)
        for one in update.kept
        if update.kept[one].roles != roles
    }
    if coupling.carried == coupling.why:  # then `check_steps` checks what follows what
        return found
    try:
        for written, why in _sharing(update, plan, coupling):
            if written.found is None:
                raise UsageError(
                    f"{why}, but its input {written.name} was not found; restore it, or delete "
                    f"the output {written.file.path}"
                )
            found.setdefault(written.found, why)
    except _DamagedOutputError as error:
        return {error.found: ""}
    return found


def _other_roles(
    found: UpdateFile, before: Mapping[str, str], now: Mapping[str, str], columns: Mapping[str, str]
) -> str:
    differing = [role for role in {**before, **now} if before.get(role) != now.get(role)]
    role = next((role for role in differing if role not in columns), differing[0])
    old, new = (f"`{one[role]}`" if role in one else "no column" for one in (before, now))
    return (
        f"{found.path}: was computed with {old} as {role}, and the files to be written have {new}; "
        "one run over all files would use the columns that all of them have"
    )


def _written(update: Update) -> Iterator[_Written]:
    for found in update.kept:
        partitions = partitions_of(found.path)
        file = InputFile(update.target(found), found.relative, partitions)
        yield _Written(str(found.path), file, found)
    for one in update.vanished:
        if one.unproven or not update.deletes:
            own = partitions_of(PurePath(one.input))
            yield _Written(one.input, InputFile(one.output, one.output, own), None)


def _sharing(update: Update, plan: Plan, coupling: Coupling) -> Iterator[tuple[_Written, str]]:
    """Yield the outputs that share a coupled batch or group with chosen files, with the reason."""
    if coupling.scope == "response":
        return
    keys, first = Keys(plan), next(iter(update.chosen)).path
    if coupling.scope == "run" or (coupling.scope == "batch" and not keys.batch):
        beyond = coupling.scope == "run"
        what = "uses the responses of several steps" if beyond else _one_batch(plan)
        for written in _written(update):
            yield written, f"{first} and {written.name}: {coupling.why} {what}"
        return
    if coupling.scope == "group" and "group" not in plan.columns:
        return
    touched = _touched(update, keys, coupling)
    batches = {label.rpartition("\x1f")[0] for label in touched}
    for written in _written(update):
        own = _labels(written, keys, coupling, batches)
        shared = sorted(own & touched.keys())
        if shared:
            label = keys.name_of(shared[0])
            unit = "prompt group" if coupling.scope == "group" else "batch"
            text = (
                f"{touched[shared[0]]} and {written.name}: share the {unit} {label}, and "
                f"{coupling.why} couples its responses; the output of the latter is up to date, "
                "and one run must write both"
            )
            yield written, text


def _labels(written: _Written, keys: Keys, coupling: Coupling, batches: set[str]) -> set[str]:
    """Return the labels of batches or groups of an output; none if it has none of some batches."""
    try:
        source = Source([written.file])
        if coupling.scope == "batch":
            return keys.batches(source, 0)
        other_batches = keys.batch and batches.isdisjoint(keys.batches(source, 0))
        return set() if other_batches else keys.groups(source, 0)
    except DataError:
        if written.found is None:
            raise
        raise _DamagedOutputError(written.found) from None


def _one_batch(plan: Plan) -> str:
    if plan.resolved.recipe.numerics.batch == "all":
        return "couples all responses (--numerics batch=all)"
    return (
        "couples all responses of a batch, and without steps all files are one batch; if a column "
        "has the steps, name it with --map batch=COLUMN"
    )


def _touched(update: Update, keys: Keys, coupling: Coupling) -> dict[str, str]:
    """Return the labels of batches or groups of chosen files, now and before, with a file each."""
    labels: dict[str, str] = {}
    read = keys.batches if coupling.scope == "batch" else keys.groups
    for index, found in enumerate(update.chosen):
        labels |= dict.fromkeys(read(keys.source, index), str(found.path))
        target = update.target(found)
        if target.exists() and update.chosen[found] != "damaged":
            before = Source([InputFile(target, found.relative, partitions_of(found.path))])
            for label in read(before, 0):
                labels.setdefault(label, f"{found.path} (before it was changed)")
    return labels


def check_steps(update: Update, plan: Plan, state: RunState, options: Options) -> None:
    """Check that statistics that are carried from batch to batch continue with the chosen files.

    Args:
        update: has the files.
        plan: of a run over the chosen ones.
        state: before that run.
        options: of the run.

    Raises:
        UsageError: there is no state file, or the chosen files do not follow those before them.
    """
    coupling = coupling_of(plan.resolved)
    if not coupling.carried:
        return
    why, path = f"{coupling.carried} (carried from batch to batch)", options.state
    over = "start over: an empty OUT, and --state FILE as it was before the first run"
    if path is None:
        raise UsageError(f"--update: {why}: needs --state FILE, which later updates continue from")
    again = next((one for one, why in update.chosen.items() if why not in ("new", "stopped")), None)
    if again is not None:
        raise UsageError(
            f"{again.path}: {REASONS[update.chosen[again]]}, and its output was written before; "
            f"{why}: later files depend on it; {over}"
        )
    written = [*_written(update)]
    if written and not path.exists():
        raise UsageError(
            f"--state {path}: does not exist, and {update.output} has {len(written)} files of "
            f"earlier runs; {why}: name the file of those runs, or {over}"
        )
    _check_order(update, plan, state, written, over)


def _check_order(
    update: Update, plan: Plan, state: RunState, written: list[_Written], over: str
) -> None:
    keys = Keys(plan)
    if written and not keys.batch:
        raise UsageError(
            f"{written[0].name}: was a batch of its own, and without steps all files are one "
            f"batch; name the column of steps with --map batch=COLUMN, and {over}"
        )
    if not keys.batch:
        return
    new = {
        label.partition("\x1f")[0]: str(found.path)
        for index, found in enumerate(update.chosen)
        for label in keys.batches(keys.source, index)
    }
    old = {
        label.partition("\x1f")[0]: one.name
        for one in written
        for label in keys.batches(Source([one.file]), 0)
    }
    if state.step is not None:
        old.setdefault(state.step, "the state file")
    if not old:
        return
    try:
        first, last = min(new, key=int), max(old, key=int)
        late = int(first) <= int(last)
    except ValueError:  # then their order is that of the files
        first, last = next(iter(new)), [*old][-1]
        position = {found: index for index, found in enumerate(update.files)}
        late = not old.keys().isdisjoint(new) or (
            min(position[one] for one in update.chosen)
            < max((position[one.found] for one in written if one.found), default=-1)
        )
    if late:
        raise UsageError(
            f"{new[first]}: has step {first}, and {old[last]} has step {last}, which the state "
            f"includes; steps must be written in order: {over}"
        )
