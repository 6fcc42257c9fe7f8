"""`--to jsonl`: a JSON object per response, with all columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.display.text import counted
from rlpost.formats.exported import SUFFIX, is_text_in_json, schema_text
from rlpost.formats.targets.base import ExportColumns, ExportTarget, Lines, Writable, is_plain
from rlpost.formats.targets.rows import Rows, nonfinite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.errors import DataError


class JsonlSink:
    """Writes rows as lines, as they come."""

    def __init__(self, files: Sequence[Writable], held: ExportColumns, step: int) -> None:
        del step
        self._held = held
        self._lines = Lines(files[0])
        self._replaced: Counter[str] = Counter()

    def add(self, rows: Rows) -> None:
        """Write a line for each row."""
        for name in self._held.others:
            if count := nonfinite(rows.table.column(name)):
                self._replaced[name] += count
                if not self._held.lossy:
                    raise _no_such_number(rows, name)
        self._lines.append(_with_texts(rows.table.select([*self._held.others])).to_pylist())

    def finish(self) -> list[str]:
        """Return what was replaced."""
        return [
            f"{name}: {counted(count, 'number')} that JSON has not (NaN, infinite) became null"
            for name, count in self._replaced.items()
        ]


def _with_texts(table: pa.RecordBatch) -> pa.RecordBatch:
    """Return a table with texts in place of columns that have no JSON of their own."""
    for i, one in enumerate(table.schema):
        if is_text_in_json(one.type):
            table = table.set_column(i, one.name, table.column(i).cast(pa.string()))
    return table


def _no_such_number(rows: Rows, name: str) -> DataError:
    one = next(i for i in range(len(rows)) if nonfinite(rows.table.column(name).slice(i, 1)))
    return rows.error(
        one, f"`{name}` has a number that JSON has not (NaN or infinite); --lossy writes null"
    )


TARGET = ExportTarget(
    name="jsonl",
    title="JSONL, an object per response",
    layout="file",
    suffix=".jsonl",
    fields={},
    needs={},
    others="fields of the same names",
    source="any reader of JSON; `rlpost convert` (format jsonl)",
    open=JsonlSink,
    use="rlpost convert {out} back.parquet --from jsonl",
    limits="NaN and infinite numbers become null, which needs --lossy. Dates, timestamps and "
    "decimals are texts.",
    beside=lambda held: {f"{{name}}{SUFFIX}": schema_text(held.schema)},
    is_held=lambda kind: is_plain(kind) or is_text_in_json(kind),
)
"""All columns are `others`."""
