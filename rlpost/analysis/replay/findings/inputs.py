"""Single changes of the inputs: what a trainer may have read in place of the recorded columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.findings.roundings import ROUNDINGS, to_bfloat16
from rlpost.analysis.replay.rollouts import Column
from rlpost.analysis.replay.stages import with_column
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from rlpost.analysis.replay.compute import Replayer
    from rlpost.pipeline.resolved import ResolvedRecipe

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Input:
    """Other inputs."""

    finding: str
    text: str
    """What was read, in a sentence after `The recorded numbers are reproduced ...`."""
    table: pa.Table


def input_changes(
    replayer: Replayer, resolved: ResolvedRecipe, roles: Collection[str]
) -> Iterator[Input]:
    """Yield single changes of the columns of tokens that a recipe reads.

    Args:
        replayer: of the recorded stages.
        resolved: the recipe.
        roles: the token roles that it reads.
    """
    if not resolved.rows_only:
        yield from _rounded(replayer, roles)
        yield from _swapped(replayer, roles)
        for role in ("values", *LOG_PROBS):
            if role in roles:
                name = "values" if role == "values" else "log-probs"
                yield from _shifted(replayer, role, f"input:{name}-shifted")
        yield from _masks(replayer)


def _column(replayer: Replayer, role: str) -> tuple[str, Column] | None:
    columns = replayer.rollouts.columns
    if role not in columns:
        return None
    name = columns.column(role)
    column = Column.of(replayer.inputs.column(name))
    return (name, column) if column.offsets is not None else None


def _lists(column: Column, values: Numbers) -> pa.Array:
    """Return lists of float32 numbers, of the lengths of a column."""
    assert column.offsets is not None
    offsets = column.offsets.astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(values.astype(np.float32)))


def _rounded(replayer: Replayer, roles: Collection[str]) -> Iterator[Input]:
    """Yield log-probs rounded to a dtype: all, or those of one policy."""
    read = [role for role in LOG_PROBS if role in roles]
    found = {role: own for role in read if (own := _column(replayer, role))}
    sets = [(*found,), *((role,) for role in found if len(found) > 1)]
    for dtype, (rounded, _) in ROUNDINGS.items():
        for some in sets:
            table = replayer.inputs
            for role in some:
                name, column = found[role]
                table = with_column(table, name, _lists(column, rounded(column.values)))
            if not some:
                continue
            names = " and ".join(f"`{found[role][0]}`" for role in some)
            if not table.equals(replayer.inputs):
                yield Input(f"input:log-probs-{dtype}", f"with {names} rounded to {dtype}", table)
    own = _column(replayer, "values") if "values" in roles else None
    if own:
        table = with_column(replayer.inputs, own[0], _lists(own[1], to_bfloat16(own[1].values)))
        yield Input("input:values-bfloat16", f"with `{own[0]}` rounded to bfloat16", table)


def _swapped(replayer: Replayer, roles: Collection[str]) -> Iterator[Input]:
    """Yield log-probs of one policy in place of another's, and two policies exchanged."""
    names = {r: own[0] for r in LOG_PROBS if (own := _column(replayer, r))}
    table = replayer.inputs
    for role, name in names.items():
        for other, source in names.items():
            if role not in roles or other == role or name == source:
                continue
            read = with_column(table, name, table.column(source))
            yield Input(
                "input:policies-swapped", f"with `{source}` read in place of `{name}`", read
            )
            if LOG_PROBS.index(role) < LOG_PROBS.index(other):
                both = with_column(read, source, table.column(name))
                text = f"with `{name}` and `{source}` exchanged"
                yield Input("input:policies-swapped", text, both)


def neighbours(rows: Codes, by: int, among: Codes) -> tuple[Codes, Codes]:
    """Return elements and their neighbours in the same response, among some elements."""
    own, other = (among[:-1], among[1:]) if by > 0 else (among[1:], among[:-1])
    same = rows[own] == rows[other]
    return own[same], other[same]


def _shifted(replayer: Replayer, role: str, name: str) -> Iterator[Input]:
    """Yield a column of tokens shifted by one token, of all tokens or of policy tokens."""
    found = _column(replayer, role)
    if found is None or len(found[1].values) != len(replayer.rollouts.mask):
        return
    column_name, column = found
    rows = np.repeat(np.arange(len(replayer.rollouts)), replayer.rollouts.lengths)
    sets = {"token": np.arange(len(rows)), "policy token": np.flatnonzero(replayer.rollouts.mask)}
    if len(sets["policy token"]) == len(rows):
        del sets["policy token"]
    for token, among in sets.items():
        for by, which in ((1, "next"), (-1, "previous")):
            own, other = neighbours(rows, by, among)
            for edge in ("its own", "0"):
                values = column.values.copy() if edge != "0" else np.zeros_like(column.values)
                values[own] = column.values[other]
                at = "last" if by > 0 else "first"
                yield Input(
                    name,
                    f"with `{column_name}` shifted: each token has the number of the {which} "
                    f"{token}, and the {at} one {edge}",
                    with_column(replayer.inputs, column_name, _lists(column, values)),
                )


def _masks(replayer: Replayer) -> Iterator[Input]:
    """Yield the mask shifted by one token, and without observation tokens."""
    found = _column(replayer, "mask")
    if found is None:
        return
    name, column = found
    rows = np.repeat(np.arange(len(replayer.rollouts)), replayer.rollouts.lengths)
    every = np.arange(len(rows))
    for by, which in ((1, "next"), (-1, "previous")):
        own, other = neighbours(rows, by, every)
        for edge in (1.0, 0.0, None):
            values = column.values.copy() if edge is None else np.full_like(column.values, edge)
            values[own] = column.values[other]
            if not np.array_equal(values, column.values):
                text = f"with `{name}` shifted: each token has the mask of the {which} token"
                table = with_column(replayer.inputs, name, _mask(replayer, name, column, values))
                yield Input("input:mask-shifted", text, table)
    if (column.values == 0).any():
        ones = _mask(replayer, name, column, np.ones_like(column.values))
        table = with_column(replayer.inputs, name, ones)
        yield Input("input:mask-ones", f"without `{name}`: every token counts", table)


def _mask(replayer: Replayer, name: str, column: Column, values: Numbers) -> pa.Array:
    assert column.offsets is not None
    kind = replayer.inputs.schema.field(name).type.value_type
    own = pa.array(values.astype(np.int64)).cast(pa.uint8()).cast(kind)
    return pa.ListArray.from_arrays(column.offsets.astype(np.int32), own)


def with_groups(replayer: Replayer, group: pa.Array | None) -> pa.Table:
    """Return the inputs with other prompt groups, and with all steps as one."""
    columns, table = replayer.rollouts.columns, replayer.inputs
    if group is not None:
        table = with_column(table, columns.column("group"), group)
    if "batch" in columns:
        zeros = pa.array(np.zeros(table.num_rows, np.int64))
        table = with_column(table, columns.column("batch"), zeros)
    return table


def other_groups(replayer: Replayer) -> Iterator[tuple[str, pa.Table]]:
    """Yield the inputs with groups over steps, and by position."""
    rollouts = replayer.rollouts
    if "group" not in rollouts.columns:
        return
    prompts = rollouts.codes("group")
    if len(np.unique(prompts)) < len(np.unique(rollouts.groups)):
        text = "with the responses of a prompt in one group, over all steps"
        yield text, with_groups(replayer, None)
    sizes = np.bincount(np.bincount(rollouts.groups))
    for size in np.argsort(-sizes, kind="stable")[:2]:
        if size > 1 and sizes[size]:
            positions = np.arange(len(rollouts)) // size
            text = f"with groups of {size} consecutive rows, whatever their prompts"
            yield text, with_groups(replayer, pa.array(positions))


def positions_in(codes: Codes) -> Codes:
    """Return the position of each row among those of its set, in the order of the rows."""
    order = np.argsort(codes, kind="stable")
    starts = np.cumsum(np.bincount(codes)) - np.bincount(codes)
    out = np.empty(len(codes), np.int64)
    out[order] = np.arange(len(codes)) - starts[codes[order]]
    return out
