"""`--to jsonl`: a JSON object per response, with all columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.display.text import counted
from rlpost.formats.targets.base import ExportTarget, Lines
from rlpost.io.arrow import fill_nulls, is_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlpost.formats.targets.base import Held, Rows
    from rlpost.io.outputs import OutputFile


def nonfinite(array: pa.Array) -> int:
    """Return the number of NaN and infinite numbers in a column, in lists and structs, too."""
    if is_list(array.type):
        return nonfinite(array.flatten())
    if pa.types.is_struct(array.type):
        return sum(map(nonfinite, array.flatten()))
    if not pa.types.is_floating(array.type):
        return 0
    return int((~np.isfinite(fill_nulls(array, 0.0))).sum())


def write(parts: Iterable[Rows], files: Sequence[OutputFile], held: Held, _: int) -> list[str]:
    """Write a line for each row; return what became null."""
    lines, replaced = Lines(files[0]), Counter[str]()
    for rows in parts:
        table = rows.plain(held.others)
        replaced.update(dict(zip(held.others, map(nonfinite, table.columns), strict=True)))
        lines.append(table.to_pylist())
    return [
        f"{name}: {counted(count, 'number')} that JSON has not (NaN, infinite) became null"
        for name, count in replaced.items()
        if count
    ]


TARGET = ExportTarget(
    name="jsonl",
    title="JSONL, an object per response",
    files=("{out}",),
    others="fields of the same names",
    source="any reader of JSON; `rlpost convert` (format jsonl)",
    write=write,
    use="rlpost convert {out} back.parquet --from jsonl",
)
"""All columns are `others`."""
