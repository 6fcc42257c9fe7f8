"""The rows of a bundle: whole prompt groups, or what else the recipe couples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.display.controls import in_utf8
from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError, no_such
from rlpost.io.arrow import string_array, to_numpy
from rlpost.io.keys import KeyColumn
from rlpost.io.parquet.source import CHUNK_TOKENS
from rlpost.kernels.codes import joint_codes
from rlpost.pipeline.coupled_files import OF_BATCH, key_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.io.parquet.source import Source
    from rlpost.pipeline.coupling import Coupling
    from rlpost.recipe.numerics import Numerics
    from rlpost.recipe.roles import ColumnMap

    Integers = NDArray[np.int64]
    Mask = NDArray[np.bool_]


FEW_GROUPS = 4
"""Groups of a bundle whose rows are not chosen."""


@dataclass(frozen=True)
class RowChoice:
    """Rows that the user chose: by number, by prompt id, or the first groups."""

    rows: str | Sequence[int] | None = None
    """Row numbers from 0 over all files, such as `3,17,40-45`."""
    groups: int | None = None
    prompt_ids: Sequence[str] = ()

    def check(self) -> None:
        """Raise UsageError for several choices at once, and for wrong numbers."""
        chosen = {
            "--rows": self.rows is not None,
            "--groups": self.groups is not None,
            "--prompt-id": bool(self.prompt_ids),
        }
        flags = [flag for flag, is_chosen in chosen.items() if is_chosen]
        if len(flags) > 1:
            raise UsageError(f"{' and '.join(flags)}: both choose the rows; leave one out")
        if self.groups is not None and self.groups < 1:
            raise UsageError(f"--groups {self.groups}: at least 1 is needed")
        _ = [*self.ranges()]

    def ranges(self) -> Iterator[range]:
        """Yield the ranges of row numbers; raises UsageError for other texts than `3,17,40-45`."""
        if self.rows is None:
            return
        parts = self.rows.split(",") if isinstance(self.rows, str) else map(str, self.rows)
        for part in parts:
            first, dash, last = part.strip().partition("-")
            if not (first.isdecimal() and (last.isdecimal() or not dash)):
                raise UsageError(
                    f"--rows {part.strip()!r}: numbers of rows from 0, and ranges of them, are "
                    "needed: 3,17,40-45"
                )
            if int(last or first) < int(first):
                raise UsageError(f"--rows {part.strip()}: the range ends before it begins")
            yield range(int(first), int(last or first) + 1)


@dataclass(frozen=True)
class ChosenRows:
    """The rows of a bundle."""

    numbers: Integers
    """[n] row numbers in the input, ascending."""
    total: int
    """Rows of the input."""
    groups: int
    """Prompt groups; 0 without a column of prompt ids."""
    steps: int
    """Batches; 1 without a column of steps."""
    why: str
    """Why these rows: the words of a sentence."""
    split: str = ""
    """The part of the recipe that couples these rows to rows that are left out."""

    @property
    def ranges(self) -> str:
        """The row numbers as text, such as `3,17,40-45`."""
        starts = np.flatnonzero(np.diff(self.numbers, prepend=-2) != 1).tolist()
        parts = []
        for start, stop in pairwise([*starts, len(self.numbers)]):
            first, last = int(self.numbers[start]), int(self.numbers[stop - 1])
            parts.append(str(first) if first == last else f"{first}-{last}")
        return ",".join(parts)


def choose_rows(
    source: Source,
    columns: ColumnMap,
    choice: RowChoice,
    coupling: Coupling,
    numerics: Numerics,
    *,
    groups_only: bool,
) -> ChosenRows:
    """Return the rows of the chosen prompt groups, and all rows that the recipe couples to them.

    Args:
        source: the input.
        columns: its columns by role.
        choice: the user's.
        coupling: of the recipe; scope `group` without a recipe.
        numerics: of the recipe: which rows are one batch.
        groups_only: whole prompt groups alone, whatever the recipe couples.

    Raises:
        UsageError: a row or prompt id does not exist, or the input has no prompt ids to choose by.
    """
    labels = _labels(source, columns)
    batch_roles = OF_BATCH[numerics.batch]
    batches = _codes(labels, batch_roles, source.rows)
    groups = np.arange(source.rows)
    if "group" in labels:
        groups = _codes(labels, (*batch_roles, "group"), source.rows)
    chosen = _chosen(source, columns, choice, labels, groups)
    own = _with_equal(groups, chosen)
    scope = coupling.scope
    wider = np.ones_like(own) if scope == "run" else _with_equal(batches, own)
    wider = wider if scope in ("run", "batch") else own
    why, split = _named(choice, len(np.unique(groups)) if "group" in labels else 0), ""
    if not np.array_equal(own, wider):
        whole = "the whole input" if scope == "run" else "with their whole steps"
        of = "the run" if scope == "run" else "a step"
        if groups_only:
            split = coupling.why
        else:
            own = wider
            why = f"{why}; {whole}, because {coupling.why} couples the responses of {of}"
    numbers = np.flatnonzero(own)
    return ChosenRows(
        numbers,
        source.rows,
        len(np.unique(groups[numbers])) if "group" in labels else 0,
        len(np.unique(_codes(labels, ("batch",), source.rows)[numbers])),
        why,
        split,
    )


def _named(choice: RowChoice, groups: int) -> str:
    """Return the choice in words, without prompt ids, for so many groups of the input."""
    if choice.rows is not None:
        return "the chosen rows" + (" with their prompt groups" if groups else "")
    if choice.prompt_ids:
        return f"the prompt groups of {counted(len(choice.prompt_ids), 'prompt id')}"
    return f"the first {counted(min(choice.groups or FEW_GROUPS, groups), 'prompt group')}"


def _chosen(
    source: Source,
    columns: ColumnMap,
    choice: RowChoice,
    labels: Mapping[str, pa.ChunkedArray],
    groups: Integers,
) -> Mask:
    """Return which rows the user chose, [N]."""
    mask = np.zeros(source.rows, np.bool_)
    if choice.rows is not None:
        for part in choice.ranges():
            if part[-1] >= source.rows:
                raise UsageError(
                    f"--rows {part[-1]}: {source.name} has {counted(source.rows, 'row')}, "
                    f"0 to {source.rows - 1}"
                )
            mask[part.start : part.stop] = True
        return mask
    if "group" not in labels:
        raise UsageError(
            f"{source.name}: no column for group (prompt groups are chosen by it); choose rows "
            "with --rows, or the column with --map group=COLUMN"
        )
    if choice.prompt_ids:
        for value in choice.prompt_ids:
            equal = to_numpy(
                pc.equal(labels["group"], string_array([in_utf8(value)])[0]).combine_chunks()
            )
            if not equal.any():
                text = f"--prompt-id {value}: no row has this {columns.column('group')}"
                raise UsageError(no_such(text, value, pc.unique(labels["group"]).to_pylist()))
            mask |= equal
        return mask
    _, first = np.unique(groups, return_index=True)
    starts = np.sort(first)[: choice.groups or FEW_GROUPS]
    mask[starts] = True
    return mask


def _with_equal(codes: Integers, mask: Mask) -> Mask:
    """Return the rows whose code is that of a row of the mask, [N]."""
    return np.isin(codes, np.unique(codes[mask]))


def _labels(source: Source, columns: ColumnMap) -> dict[str, pa.ChunkedArray]:
    """Return the texts of step, domain and prompt id of each row, as far as these have columns."""
    roles = [role for role in ("batch", "domain", "group") if role in columns]
    names = [columns.column(role) for role in roles]
    parts: dict[str, list[pa.Array]] = {role: [] for role in roles}
    for chunk in source.read(names, CHUNK_TOKENS, "") if roles else ():
        for role, name in zip(roles, names, strict=True):
            column = chunk.table.column(name)
            try:
                parts[role].append(key_text(column))
            except MemoryError:  # an ArrowException, too, but not about the data
                raise
            except pa.ArrowException:
                raise DataError(
                    f"{source.name}: `{name}` is {column.type}; {role} needs a text or an integer "
                    f"per row: choose another column with --map {role}=COLUMN, or --map {role}=none"
                ) from None
    return {role: pa.chunked_array(own, pa.string()) for role, own in parts.items()}


def _codes(labels: Mapping[str, pa.ChunkedArray], roles: Sequence[str], count: int) -> Integers:
    """Return the code of each row's combination of labels, [N]; 0 for roles without a column."""
    keys = (KeyColumn.of(labels[role].chunks).codes for role in roles if role in labels)
    return joint_codes(np.zeros(count, np.int64), *keys)
