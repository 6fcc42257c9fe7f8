"""Differences between what a file holds and what it should hold: of columns, and of summaries."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.parquet.ragged import is_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

Json = dict[str, Any]
RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""How far scans over tokens may be apart that were made in other pieces, or on another device."""
_LONG = 60  # characters of a value in a sentence
GOOD = ("identical", "equal to rounding")


@dataclass
class Difference:
    """How far a column is from what it should be."""

    name: str
    rows: int = 0
    differing: int = 0
    first: int | None = None
    largest: float = 0.0
    """Of absolute differences."""
    rounded: bool = False
    """Some bits differ, all within rounding."""
    kinds: list[str] = field(default_factory=list)

    def add(self, held: pa.Array, made: pa.Array) -> None:
        """Compare the next rows: as the file has them, and as they are made."""
        start, self.rows = self.rows, self.rows + len(made)
        if held.type != made.type or held.null_count:
            self.kinds = [str(held.type), str(made.type)]
            self._note(start, np.ones(len(made), np.bool_))
            return
        if held.equals(made):
            return
        if is_list(made.type):
            wrong = _numbers(held.value_lengths()) != _numbers(made.value_lengths())
            if wrong.any():
                self._note(start, wrong)
                return
            owner = np.repeat(np.arange(len(made)), _numbers(made.value_lengths()).astype(int))
            far = self._far(_numbers(held.flatten()), _numbers(made.flatten()))
            self._note(start, np.bincount(owner[far], minlength=len(made)) > 0)
        else:
            self._note(start, self._far(_numbers(held), _numbers(made)))

    def _far(self, held: NDArray[Any], made: NDArray[Any]) -> NDArray[np.bool_]:
        """Which numbers are further apart than rounding explains."""
        apart = np.abs(held - made)
        self.largest = max(self.largest, float(apart.max(initial=0.0)))
        self.rounded = True
        near: NDArray[np.bool_] = apart <= ABSOLUTE + RELATIVE * np.abs(made)
        return ~near  # NaN is far from everything

    def _note(self, start: int, wrong: NDArray[np.bool_]) -> None:
        if wrong.any():
            self.differing += int(wrong.sum())
            if self.first is None:
                self.first = start + int(np.flatnonzero(wrong)[0])

    def facts(self) -> Json:
        """The verdict: `identical`, `equal to rounding` or `differs`, and where."""
        verdict = (
            "differs" if self.differing else "equal to rounding" if self.rounded else "identical"
        )
        largest = self.largest if math.isfinite(self.largest) else None
        return {
            "column": self.name,
            "verdict": verdict,
            "rows": self.differing,
            "first_row": self.first,
            "largest_difference": largest,
            **({"types": self.kinds} if self.kinds else {}),
        }


def _numbers(array: pa.Array) -> NDArray[np.float64]:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.float64)


def summary_differences(claimed: Json, made: Json) -> list[str]:
    """Where two summaries differ: each the path of a value, what is claimed and what it is."""
    found = []
    for path, left, right in _pairs(claimed, made, ""):
        close = left == right or (
            isinstance(left, float | int)
            and isinstance(right, float | int)
            and math.isclose(left, right, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        )
        # How a role's column was found, and warnings in words, depend on what stands beside it.
        if not close and not path.endswith(".found_by") and not path.startswith("warnings"):
            found.append(f"{path}: {_short(left)} is claimed, {_short(right)} it is")
    return found


def _short(value: Any) -> str:
    """A value that may be a table, in a line."""
    text = str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def _pairs(left: Any, right: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The values of two structures at the same places."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in {**left, **right}:
            below = f"{path}.{key}".lstrip(".")
            yield from _pairs(left.get(key), right.get(key), below)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for place, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _pairs(one, other, f"{path}[{place}]")
    else:
        yield path, left, right
