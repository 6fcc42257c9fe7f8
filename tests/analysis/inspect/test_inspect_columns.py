"""Columns as numpy and polars: partitions, types over files, lists of every type."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rlpost.analysis.inspect import tokens as decode
from rlpost.io.arrow import CellLocation


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1, 2], None, [], [3]], pa.list_(pa.int32())),
        pa.array([[1, 2], None, [], [3]], pa.large_list(pa.float64())),
        pa.array([[np.float16(1), np.float16(2)], None, [], [np.float16(3)]]),
        pa.array([[9], [1, 2], None, [], [3], [9]], pa.list_(pa.float32())).slice(1, 4),
    ],
    ids=lambda array: str(array.type),
)
def test_lists_of_every_type_are_read_with_nulls_as_empty(array):
    found = decode.lists_of(array, CellLocation("a", 0, "x"))
    assert found.offsets.tolist() == [0, 2, 2, 2, 3]
    assert found.values.tolist() == [1, 2, 3]


def test_equal_lists_have_equal_fingerprints_and_others_do_not():
    rows = [[1, 2, 3], [1, 2, 3], [3, 2, 1], [1, 2], [1, 2, 3, 0], [0], [], [0, 0]]
    for kind in (pa.int32(), pa.int64(), pa.float32()):
        found = decode.fingerprints_of(pa.array(rows, pa.list_(kind)), CellLocation("a", 0, "x"))
        assert found[0] == found[1]
        assert len(set(found.tolist())) == len(rows) - 1
