"""What `rlpost export` adds to JSONL, so that `rlpost convert` returns the same columns."""

from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exported_rows import rollouts
from exports import records
from format_writers import lines

import rlpost
from rlpost.errors import DataError


def every_type():
    """A column of each type that JSON has no type for, and one of null alone in a list."""
    day, cents = date(2026, 1, 2), Decimal("1.10")
    at = datetime.combine(day, time(3, 4, 5, 6))
    kinds = {
        "i8": (pa.int8(), 3), "u64": (pa.uint64(), 2**64 - 1), "f16": (pa.float16(), 0.5),
        "f32": (pa.float32(), np.float32(0.1).item()), "flags": (pa.list_(pa.bool_()), [True]),
        "whole": (pa.list_(pa.float64()), [1.0]), "none": (pa.list_(pa.float32()), []),
        "fixed": (pa.list_(pa.float32(), 2), [1, 2]), "large": (pa.large_list(pa.int16()), [1]),
        "deep": (pa.list_(pa.list_(pa.float32())), [[1.0], []]), "empty": (pa.int32(), None),
        "struct": (pa.struct({"a": pa.int8(), "b": pa.list_(pa.string())}), {"a": 1, "b": []}),
        "words": (pa.dictionary(pa.int32(), pa.string()), "x"), "text": (pa.large_string(), "7"),
        "day": (pa.date32(), day), "at": (pa.timestamp("us"), at),
        "zone": (pa.timestamp("ms", "UTC"), datetime(2026, 1, 2, tzinfo=UTC)),
        "cents": (pa.decimal128(5, 2), cents),
    }  # fmt: skip
    table = {name: pa.array([x, None], kind) for name, (kind, x) in kinds.items()}
    return pa.table({**table, "uid": ["q", "q"]})


@pytest.mark.parametrize("table", [rollouts(), every_type()], ids=["rollouts", "types"])
def test_convert_of_jsonl_returns_the_columns_in_their_types(table, tmp_path):
    path = tmp_path / "in" / "o.jsonl"
    rlpost.export(table, path, "jsonl")
    url = f"memory://{tmp_path}/o.jsonl"
    rlpost.export(table, url, "jsonl")
    for name, source in {"file": path, "folder": path.parent, "url": url}.items():
        found = rlpost.convert(source, tmp_path / f"{name}.parquet")
        assert (found.format, found.skipped_files, found.note) == ("jsonl", [], "")
        back = pq.read_table(tmp_path / f"{name}.parquet")
        assert back.select(table.column_names).equals(table)
        assert back.num_columns == table.num_columns


def test_fields_that_jsonl_got_since_are_an_error_until_the_types_are_removed(tmp_path):
    path, back = tmp_path / "o.jsonl", tmp_path / "back.parquet"
    rlpost.export(every_type(), path, "jsonl")
    own = records(path)
    lines(path, [{**own[0], "i8": 400}])
    with pytest.raises(
        DataError, match=r"`i8` has a value that is not int8 .*remove o.jsonl.schem"
    ):
        rlpost.convert(path, back)
    lines(path, [own[0], {**own[1], "new": 1}])
    with pytest.raises(DataError, match=r"line 2: has other fields than the export \(new\)"):
        rlpost.convert(path, back)
    (tmp_path / "o.jsonl.schema").write_text("{}")
    with pytest.raises(DataError, match=r"o.jsonl.schema: damaged"):
        rlpost.convert(path, back)
    (tmp_path / "o.jsonl.schema").unlink()
    rlpost.convert(path, back, "jsonl")
    assert "new" in pq.read_schema(back).names
