"""A directory of golden cases, packed or with one Parquet file per entry."""

import json
import os
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

OWN = Path(__file__).parent


@dataclass(frozen=True)
class Column:
    """Expected numbers, row by row; `values` of a row the framework could not take is None."""

    level: str  # "tokens" or "rows"
    rows: list[np.ndarray | None]


@dataclass(frozen=True)
class Cases:
    path: Path

    @cached_property
    def entries(self) -> list[dict]:
        entries = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
        defaults = {"columns": [], "same_as": {}, "config": {}, "metrics": {}}
        texts = {"notes": "", "error": "", "expected": None}
        return [{**defaults, **texts, **entry} for entry in entries]

    @cache  # noqa: B019 - there is one Cases, and it lives as long as the tests
    def table(self, name: str) -> pa.Table:
        return pq.read_table(self.path / name)

    @cached_property
    def packed(self) -> dict[str, dict[str, Column]] | None:
        path = self.path / "expected.parquet"
        if not path.exists():
            return None
        inputs = {entry["expected"]: entry["input"] for entry in self.entries}
        records = pq.read_table(path)
        values = records["values"].combine_chunks()
        found: dict[str, dict[str, Column]] = {}
        for record in records.drop_columns(["values"]).to_pylist():
            flat = values[record["stored_at"]].values.to_numpy().astype(np.float64)
            column = self._unpacked(record, flat, inputs[record["file"]])
            found.setdefault(record["file"], {})[record["column"]] = column
        return found

    def _unpacked(self, record: dict, flat: np.ndarray, source: str) -> Column:
        if record["level"] == "rows":
            return Column("rows", list(flat[:, None]))
        lengths = pc.list_value_length(self.table(source)["response_mask"]).to_numpy().copy()
        lengths[record["null_rows"]] = 0
        rows: list[np.ndarray | None] = list(np.split(flat, np.cumsum(lengths)[:-1]))
        for row in record["null_rows"]:
            rows[row] = None
        return Column("tokens", rows)

    def expected(self, entry: dict) -> dict[str, Column]:
        """The columns of an entry, those that the framework returned twice under both names."""
        if self.packed is not None:
            found = self.packed[entry["expected"]]
        else:
            table = pq.read_table(self.path / entry["expected"])
            found = {name: column_of(table[name]) for name in table.column_names}
        return found | {name: found[equal] for name, equal in entry["same_as"].items()}


def column_of(column: pa.ChunkedArray) -> Column:
    """A column of a table as Python lists of arrays."""
    if not pa.types.is_list(column.type):
        values = column.cast(pa.float64()).to_numpy()
        return Column("rows", list(values[:, None]))
    rows = [
        None if row is None else np.array([np.nan if value is None else value for value in row])
        for row in column.to_pylist()
    ]
    return Column("tokens", [None if row is None else row.astype(np.float64) for row in rows])


CASES = Cases(Path(os.environ.get("RLPOST_GOLDEN_DIR") or OWN))
