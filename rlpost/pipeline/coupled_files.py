"""Which files share coupled responses, so that they must be written by one run."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rlpost.errors import DataError, UsageError
from rlpost.io.arrow import string_array
from rlpost.io.parquet.source import CHUNK_TOKENS, Source
from rlpost.pipeline.needs import coupling_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.pipeline.plan import Plan


OF_BATCH = {"all": (), "step": ("batch",), "step_domain": ("batch", "domain")}
"""Roles that name a batch, by the scope in the recipe's numerics."""
_SEPARATOR = "\x1f"


class Keys:
    """Reads the batches and the prompt groups of files, as labels of coupled responses.

    Args:
        plan: of the run; the files have its columns.
    """

    def __init__(self, plan: Plan) -> None:
        self.columns = plan.columns
        self.scope = plan.resolved.recipe.numerics.batch

    @cached_property
    def batch(self) -> list[str]:
        """The columns that name a batch; none if the whole input is one."""
        own = (role for role in OF_BATCH[self.scope] if role in self.columns)
        return [self.columns.column(role) for role in own]

    @cached_property
    def group(self) -> list[str]:
        """The columns that name a prompt group."""
        return [*self.batch, *([self.columns.column("group")] if "group" in self.columns else [])]

    def batches(self, source: Source, index: int) -> set[str]:
        """Return the labels of the batches of one file."""
        if len(self.batch) == 1 and (only := _only_value(source, index, self.batch[0])) is not None:
            return {only}
        return self._labels(source, index, self.batch)

    def groups(self, source: Source, index: int) -> set[str]:
        """Return the labels of the prompt groups of one file."""
        return self._labels(source, index, self.group)

    def _labels(self, source: Source, index: int, columns: Sequence[str]) -> set[str]:
        """Return the distinct labels of the rows; none if the file lacks a column."""
        partitions = dict(source.files[index].partitions)
        if not {*columns} <= {*source.schemas[index].names, *partitions}:
            return set()
        labels: set[str] = set()
        for chunk in source.read_file(index, columns, CHUNK_TOKENS, columns[0]):
            texts = [key_text(chunk.table.column(name)) for name in columns]
            joined = (
                texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, _SEPARATOR)
            )
            labels.update(pc.unique(joined).to_pylist())
        return labels

    def name_of(self, label: str) -> str:
        """Return a label of a group or batch in words."""
        values = label.split(_SEPARATOR)
        columns = self.group if len(values) == len(self.group) > len(self.batch) else self.batch
        return " of ".join(f"{c} {v}" for c, v in reversed([*zip(columns, values, strict=True)]))


def key_text(column: pa.Array) -> pa.Array:
    """Return keys, such as prompt ids, as texts; a null is an empty one."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):  # as ids they are whole numbers
        column = column.cast(pa.int64())
    column = column.cast(pa.string())
    # A Python value would import pandas, if it is installed, for half a second.
    return pc.fill_null(column, string_array([""])[0]) if column.null_count else column


def _only_value(source: Source, index: int, column: str) -> str | None:
    """Return the only value of an integer column of a file, by the statistics in its footer."""
    footer = source.footers[index]
    names = source.schemas[index].names
    if column not in names or not pa.types.is_integer(source.schemas[index].field(column).type):
        return None
    found = set()
    for group in range(footer.num_row_groups):
        own = footer.row_group(group)
        at = next(i for i in range(own.num_columns) if own.column(i).path_in_schema == column)
        statistics = own.column(at).statistics
        if statistics is None or not statistics.has_min_max or statistics.null_count:
            return None
        found |= {statistics.min, statistics.max}
    return str(found.pop()) if len(found) == 1 else None


def check_separate(plan: Plan, files: Mapping[InputFile, bool]) -> dict[InputFile, DataError]:
    """Check that no coupled group or batch spans files; return those whose keys are damaged.

    Args:
        plan: of the recipe on one of the files.
        files: whether each is to be written; the others were.

    Raises:
        UsageError: a group or batch spans files, or the recipe couples all responses.
        DataError: the keys of a file that was written are damaged.
    """
    coupling, keys = coupling_of(plan.resolved), Keys(plan)
    failed: dict[InputFile, DataError] = {}
    if coupling.scope == "run" or (coupling.scope == "batch" and not keys.batch):
        steps = coupling.scope == "batch" and keys.scope != "all"
        text = f"--skip-existing writes each file by itself, and {coupling.why} couples all"
        or_steps = "; if a column has the steps, --map batch=COLUMN names it" if steps else ""
        raise UsageError(text, tip=f"leave --skip-existing out: one run writes all{or_steps}")
    if coupling.scope == "response" or (coupling.scope == "group" and "group" not in plan.columns):
        return failed
    shared = _shared(files, files, keys.batches, failed) if keys.batch else {"": [*files]}
    if coupling.scope == "group":
        near = {file for own in shared.values() for file in own}
        shared = _shared([file for file in files if file in near], files, keys.groups, failed)
    for label, (first, second, *_) in sorted(shared.items(), key=lambda item: item[0]):
        unit = "prompt group" if coupling.scope == "group" else "batch"
        raise UsageError(
            f"{first.path} and {second.path}: share the {unit} {keys.name_of(label)}, and "
            f"{coupling.why} couples its responses, but --skip-existing writes each file by itself",
            tip="leave --skip-existing out, or write the rows of a group or batch to one file",
        )
    return failed


def _shared(
    some: Iterable[InputFile],
    files: Mapping[InputFile, bool],
    read: Callable[[Source, int], set[str]],
    failed: dict[InputFile, DataError],
) -> dict[str, list[InputFile]]:
    """Return the files of each label that several of some files have, one of them to be written."""
    owners: dict[str, list[InputFile]] = {}
    for file in some:
        try:
            labels = read(Source([file]), 0)
        except DataError as error:
            if not files[file]:
                raise
            failed[file] = error
            continue
        for label in labels:
            owners.setdefault(label, []).append(file)
    return {
        label: own
        for label, own in owners.items()
        if len(own) > 1 and any(files[file] for file in own)
    }
