"""Types that columns of several files have in common."""

import pyarrow as pa
import pytest

from rlpost.errors import DataError
from rlpost.io.arrow import CellLocation, common_type, key

TEXTS = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    ("kinds", "want"),
    [
        ([pa.int8(), pa.int64()], pa.int64()),
        ([pa.int8(), pa.uint8()], pa.int16()),
        ([pa.int64(), pa.uint64()], pa.float64()),
        ([pa.uint64(), pa.uint8()], pa.uint64()),
        ([pa.bool_(), pa.int16()], pa.int16()),
        ([pa.bool_(), pa.uint64()], pa.uint64()),
        ([pa.bool_(), pa.float32()], pa.float32()),
        ([pa.int64(), pa.float32()], pa.float64()),
        ([TEXTS, pa.string()], pa.string()),
        ([TEXTS], pa.string()),
        ([pa.string(), pa.string_view()], pa.large_string()),
        ([pa.null(), pa.date32()], pa.date32()),
        ([pa.null(), pa.null()], pa.null()),
        ([], pa.null()),
        ([pa.timestamp("s"), pa.timestamp("ms")], pa.timestamp("ms")),
        ([pa.list_(pa.bool_()), pa.list_(pa.float64(), 2)], pa.large_list(pa.float64())),
        ([pa.list_view(pa.int8()), pa.list_(pa.null())], pa.large_list(pa.int8())),
        ([pa.list_(pa.int8())] * 2, pa.list_(pa.int8())),
        ([pa.int64(), pa.string()], None),
        ([pa.list_(pa.int64()), pa.int64()], None),
        ([pa.list_(pa.int64()), pa.list_(pa.string())], None),
    ],
)
def test_a_common_type_has_the_values_of_all_in_any_order(kinds, want):
    assert common_type(kinds) == want
    assert common_type(kinds[::-1]) == want


WHERE = CellLocation("a.parquet", 10, "uid")


def test_keys_beyond_signed_integers_are_texts():
    values = [2**63 - 5, 2**63 + 11]
    assert key(pa.array(values, pa.uint64()), WHERE).to_pylist() == [str(x) for x in values]
    assert key(pa.array(values[:1], pa.uint64()), WHERE).to_pylist() == values[:1]


@pytest.mark.parametrize(("value", "kind"), [(0.5, "d"), (2.0**53, "d"), (2.0**24, "f")])
def test_a_float_that_is_no_exact_whole_number_is_no_key(value, kind):
    kind = {"d": pa.float64(), "f": pa.float32()}[kind]
    with pytest.raises(DataError, match=f"a.parquet, row 11: `uid` is {value}"):
        key(pa.array([3.0, value], kind), WHERE)
    assert key(pa.array([3.0, 2.0**23], kind), WHERE).to_pylist() == [3, 1 << 23]


def test_equal_messages_are_one_key_in_any_chunk():
    chats = [[{"role": "user", "content": "1+1?"}], [{"role": "user", "content": "1+2?"}], []]
    keys = key(pa.array([*chats, chats[0]]), WHERE).to_pylist()
    assert len({*keys}) == 3
    assert keys[0] == keys[3]
    other = [{"content": "1+1?", "name": None, "role": "user"}]
    assert (
        key(
            pa.array([other, chats[1]]).cast(pa.large_list(pa.array(other).type)), WHERE
        ).to_pylist()
        == keys[:2]
    )
    swapped = pa.array([[[1, 2], [3]], [[1], [2, 3]], [[1, 2], [3]]])
    first, second, third = key(swapped, WHERE).to_pylist()
    assert first == third != second
