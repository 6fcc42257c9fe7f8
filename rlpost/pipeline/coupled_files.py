"""Which files share coupled responses, so that they must be written by one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rlpost.errors import DataError, UsageError
from rlpost.io.arrow import string_array
from rlpost.io.parquet.source import CHUNK_TOKENS, Source
from rlpost.pipeline.needs import coupling_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.pipeline.plan import Plan


OF_BATCH = {"all": (), "step": ("batch",), "step_domain": ("batch", "domain")}
"""Roles that name a batch, by the scope in the recipe's numerics."""
_SEPARATOR = "\x1f"


def _columns(plan: Plan, *more: str) -> list[str]:
    """Return the columns that name a batch, and those of more roles; none if all is one batch."""
    roles = (*OF_BATCH[plan.resolved.recipe.numerics.batch], *more)
    return [plan.columns.column(role) for role in roles if role in plan.columns]


def _labels(source: Source, columns: Sequence[str]) -> set[str]:
    """Return the distinct labels of the rows of a file; none if it lacks a column."""
    labels: set[str] = set()
    if not {*columns} <= {*source.columns}:
        return labels
    for chunk in source.read_file(0, columns, CHUNK_TOKENS, columns[0]):
        texts = [_key_text(chunk.table.column(name)) for name in columns]
        joined = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, _SEPARATOR)
        labels.update(pc.unique(joined).to_pylist())
    return labels


def _key_text(column: pa.Array) -> pa.Array:
    """Return keys, such as prompt ids, as texts; a null is an empty one."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):  # as ids they are whole numbers
        column = column.cast(pa.int64())
    column = column.cast(pa.string())
    # A Python value would import pandas, if it is installed, for half a second.
    return pc.fill_null(column, string_array([""])[0]) if column.null_count else column


def check_separate(
    plans: Mapping[InputFile, Plan], written: Iterable[InputFile]
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
    coupling, columns = coupling_of(plan.resolved), _columns(plan)
    if coupling.scope == "run" or (coupling.scope == "batch" and not columns):
        steps = coupling.scope == "batch" and plan.resolved.recipe.numerics.batch != "all"
        text = f"--skip-existing writes each file by itself, and {coupling.why} couples all"
        or_steps = "; if a column has the steps, --map batch=COLUMN names it" if steps else ""
        raise UsageError(text, tip=f"leave --skip-existing out: one run writes all{or_steps}")
    if coupling.scope == "response" or (coupling.scope == "group" and "group" not in plan.columns):
        return failed
    files = [*written, *plans]
    shared = _shared(files, plans, columns, failed) if columns else {"": files}
    if coupling.scope == "group":
        near, columns = {file for some in shared.values() for file in some}, _columns(plan, "group")
        shared = _shared([file for file in files if file in near], plans, columns, failed)
    for label, (first, second, *_) in sorted(shared.items(), key=lambda item: item[0]):
        unit = "prompt group" if coupling.scope == "group" else "batch"
        values = [*zip(columns, label.split(_SEPARATOR), strict=False)]
        name = " of ".join(f"{column} {value}" for column, value in reversed(values))
        raise UsageError(
            f"{first.path} and {second.path}: share the {unit} {name}, and {coupling.why} couples "
            "its responses, but --skip-existing writes each file by itself",
            tip="leave --skip-existing out, or write the rows of a group or batch to one file",
        )
    return failed


def _shared(
    some: Iterable[InputFile],
    plans: Mapping[InputFile, Plan],
    columns: Sequence[str],
    failed: dict[InputFile, DataError],
) -> dict[str, list[InputFile]]:
    """Return the files of each label that several of some files have, one of them to be written."""
    owners: dict[str, list[InputFile]] = {}
    for file in some:
        try:
            labels = _labels(Source([file]), columns)
        except DataError as error:
            if file not in plans:
                raise
            failed[file] = error
            continue
        for label in labels:
            owners.setdefault(label, []).append(file)
    return {
        label: files
        for label, files in owners.items()
        if len(files) > 1 and not plans.keys().isdisjoint(files)
    }
