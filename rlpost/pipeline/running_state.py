"""What a batch passes to the next one, and the state file that passes it to the next run."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - a field of a dataclass
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from rlpost.errors import DataError
from rlpost.io.outputs import file_errors, read_file, write_file
from rlpost.io.parquet.inputs import parse
from rlpost.kernels.rewards import RunningMoments
from rlpost.recipe import semantics
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from pathlib import Path


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

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Return the state of a mapping from `to_json`.

        Raises:
            TypeError, ValueError, AttributeError, OverflowError: it is none.
        """
        moments, coefficient = table.get("running", {}).items(), table.get("kl_coef")
        return cls(
            {name: RunningMoments(**_floats(values)) for name, values in moments},
            None if coefficient is None else float(coefficient),
        )

    def to_json(self) -> Json:
        """Return the state as plain data, without what it has none of."""
        running = {name: asdict(moments) for name, moments in self.running.items()}
        coefficient = {} if self.kl_coef is None else {"kl_coef": self.kl_coef}
        return {"running": running, **coefficient}

    def after(self, notes: Mapping[str, Any]) -> RunState:
        """Return the state after the batches of some responses, from their notes."""
        running = {**self.running, **notes.get("running", {})}
        return RunState(running, notes.get("kl_coef", self.kl_coef))


def _floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def load_state(path: Path | None) -> RunState:
    """Return the state before a run; an empty one without a file.

    Raises:
        ReadWriteError: the file cannot be read.
        DataError: it is not a state file of this version, or it has other semantics: a mean over
            rewards of two definitions has no meaning.
    """
    if path is None:
        return RunState()
    text = read_file(path)
    if text is None:
        return RunState()
    try:
        table = parse(text)
        if table["version"] != _VERSION:
            raise DataError(f"{path}: state of version {table['version']}; {_VERSION} is needed")
        state = RunState.of(table | {"running": table["running"]})
        number = semantics.parse(table["semantics"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise DataError(
            f"{path}: is not a state file; --state needs a file that rlpost wrote, or a new path"
        ) from None
    if number != SEMANTICS:
        raise DataError(
            f"--state {path}: has {semantics.describe(number)}, and its statistics cannot be "
            "continued; a new path starts anew"
        )
    return state


def save_state(path: Path, state: RunState) -> None:
    """Write the state after a run; the old file stays until the new one is complete.

    Raises:
        ReadWriteError: the file cannot be written.
    """
    table = {"version": _VERSION, "semantics": SEMANTICS, **state.to_json()}
    with file_errors(path, "cannot be written"):
        write_file(path, f"{json.dumps(table, indent=1)}\n".encode())
