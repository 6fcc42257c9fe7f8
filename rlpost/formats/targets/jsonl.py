"""`--to jsonl`: a JSON object per response, with all columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.display.text import counted
from rlpost.formats.targets.base import ExportTarget, Lines, is_plain
from rlpost.io.arrow import fill_nulls, is_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlpost.formats.targets.base import ExportColumns, Rows
    from rlpost.io.outputs import OutputFile


def is_text_in_json(kind: pa.DataType) -> bool:
    """Return whether values are a text in JSON: dates, timestamps and decimals."""
    types = pa.types
    return bool(types.is_date(kind) or types.is_timestamp(kind) or types.is_decimal(kind))


def nonfinite(array: pa.Array) -> int:
    """Return the number of NaN and infinite numbers in a column, in lists and structs, too."""
    if is_list(array.type):
        return nonfinite(array.flatten())
    if pa.types.is_struct(array.type):
        return sum(map(nonfinite, array.flatten()))
    if not pa.types.is_floating(array.type):
        return 0
    return int((~np.isfinite(fill_nulls(array, 0.0))).sum())


def write(
    parts: Iterable[Rows], files: Sequence[OutputFile], held: ExportColumns, _: int
) -> list[str]:
    """Write a line for each row; return what was replaced."""
    lines, replaced = Lines(files[0]), Counter[str]()
    for rows in parts:
        table = rows.table.select([*held.others])
        for i, column in enumerate(table.schema):
            array = table.column(i)
            if count := nonfinite(array):
                replaced[column.name] += count
                if not held.lossy:
                    raise rows.error(
                        next(row for row in range(len(rows)) if nonfinite(array.slice(row, 1))),
                        f"`{column.name}` has a number that JSON has not (NaN or infinite); "
                        "--lossy writes null",
                    )
            if is_text_in_json(column.type):
                table = table.set_column(i, column.name, array.cast(pa.string()))
        lines.append(table.to_pylist())
    return [
        f"{name}: {counted(count, 'number')} that JSON has not (NaN, infinite) became null"
        for name, count in replaced.items()
    ]


TARGET = ExportTarget(
    name="jsonl",
    title="JSONL, an object per response",
    layout="file",
    suffix=".jsonl",
    fields={},
    needs={},
    others="fields of the same names",
    source="any reader of JSON; `rlpost convert` (format jsonl)",
    write=write,
    use="rlpost convert {out} back.parquet --from jsonl",
    is_held=lambda kind: is_plain(kind) or is_text_in_json(kind),
)
"""All columns are `others`."""
