"""What a batch passes to the next one, and the state file that passes it to the next run."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - a field of a dataclass
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from rlpost.errors import DataError, ReadWriteError
from rlpost.io.publish import write_file
from rlpost.io.staged import file_errors
from rlpost.kernels.rewards import RunningMoments
from rlpost.pipeline.columns import columns_of
from rlpost.recipe import semantics
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from pathlib import Path

    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.recipe.recipe import Recipe


Json = dict[str, Any]
_VERSION = 1


@dataclass(frozen=True)
class RunState:
    """What a batch passes to the next one: running reward statistics, the adaptive KL coefficient.

    The state of a run is that before its first batch, and a state file has that after the last.
    """

    running: Mapping[str, RunningMoments] = field(default_factory=dict)
    """Running reward statistics, by domain."""
    kl_coef: float | None = None
    """The KL coefficient of the next batch, if it adapts; None: that of the recipe."""
    step: str | None = None
    """The step of the last batch; None if the last run had no --update."""

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Return the state of a mapping from `to_json`; TypeError or ValueError if it is none."""
        moments = table.get("running", {}).items()
        coefficient = table.get("kl_coef")
        return cls(
            {name: RunningMoments(**values) for name, values in moments},
            None if coefficient is None else float(coefficient),
            table.get("step"),
        )

    def to_json(self) -> Json:
        """Return the state as plain data, without what it has none of."""
        running = {name: asdict(moments) for name, moments in self.running.items()}
        coefficient = {} if self.kl_coef is None else {"kl_coef": self.kl_coef}
        step = {} if self.step is None else {"step": self.step}
        return {"running": running, **coefficient, **step}

    def after(self, notes: Mapping[str, Any]) -> RunState:
        """Return the state after the batches of some responses, from their notes."""
        later = {
            name: one if isinstance(one, RunningMoments) else RunningMoments(**one)
            for name, one in notes.get("running", {}).items()
        }
        return RunState({**self.running, **later}, notes.get("kl_coef", self.kl_coef))


def load_state(
    path: Path | None, recipe: Recipe, source: Source | TableSource
) -> tuple[RunState, list[str]]:
    """Return the state before a run, and warnings.

    It is empty if the file does not exist yet, or if it has older semantics and a change since
    then concerns the recipe: a mean over rewards of two definitions has no meaning.

    Args:
        path: of the file; None for an empty state.
        recipe: of the run.
        source: its input.

    Raises:
        ReadWriteError: the file cannot be read.
        DataError: it is not a state file of this version.
        UsageError: the recipe does not fit the input.
    """
    if path is None:
        return RunState(), []
    try:
        if not path.exists():
            return RunState(), []
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["version"] != _VERSION:
            raise DataError(f"{path}: state of version {table['version']}; {_VERSION} is needed")
        state = RunState.of(table | {"running": table["running"]})
        number = semantics.parse(table.get("semantics"))
    except OSError as error:
        raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{path}: is not a state file; --state needs a file that rlpost wrote, or a new path"
        ) from None
    if number == SEMANTICS:
        return state, []
    changes = semantics.applying(number, recipe, columns_of(source, recipe).columns)
    text = f"--state {path}: has {semantics.describe(number, changes)}"
    if number < SEMANTICS and not changes:
        return state, [text]
    kept = _older(path, number)
    anew = "running statistics start anew, and the old ones are kept in"
    return RunState(), [f"{text}; {anew} {kept}"]


def state_text(state: RunState) -> str:
    """Return the text of a state file."""
    table = {"version": _VERSION, "semantics": SEMANTICS, **state.to_json()}
    return json.dumps(table, indent=1) + "\n"


def save_state(path: Path, state: RunState) -> None:
    """Write the state after a run; the old file stays until the new one is complete.

    A file of other semantics is kept under another name.

    Raises:
        ReadWriteError: the file cannot be written.
    """
    with file_errors(path, "cannot be written"):
        write_file(path, state_text(state).encode(), before=partial(_keep_older, path))


def _older(path: Path, number: int) -> Path:
    """Return where the statistics of other semantics are kept."""
    return path.with_name(f"{path.name}.semantics-{number}")


def _keep_older(path: Path) -> None:
    """Rename a state file of other semantics."""
    with suppress(FileNotFoundError, ValueError):
        number = semantics.parse(json.loads(path.read_text(encoding="utf-8")).get("semantics"))
        if number != SEMANTICS:
            path.replace(_older(path, number))
