"""Which files share coupled responses, so that they must be written by one run."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rlpost.io.arrow import string_array
from rlpost.io.parquet.source import CHUNK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.parquet.source import Source
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
