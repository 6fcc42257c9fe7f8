"""`--to jsonl`: a JSON object per response, with all columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rlpost.display.text import counted
from rlpost.formats.targets.base import Held, Lines, Staged, Target
from rlpost.formats.targets.rows import Rows, nonfinite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.errors import DataError


class JsonlSink:
    """Writes rows as lines, as they come."""

    def __init__(self, files: Sequence[Staged], held: Held, step: int) -> None:
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
        table = rows.table.select([*self._held.others])
        self._lines.append(table.to_pylist())

    def finish(self) -> list[str]:
        """Return what was replaced."""
        return [
            f"{name}: {counted(count, 'number')} that JSON has not (NaN, infinite) became null"
            for name, count in self._replaced.items()
        ]


def _no_such_number(rows: Rows, name: str) -> DataError:
    one = next(i for i in range(len(rows)) if nonfinite(rows.table.column(name).slice(i, 1)))
    return rows.error(
        one, f"`{name}` has a number that JSON has not (NaN or infinite); --lossy writes null"
    )


TARGET = Target(
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
    note="NaN and infinite numbers become null, which needs --lossy.",
)
"""All columns are `others`."""
