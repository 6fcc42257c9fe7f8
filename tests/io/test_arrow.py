"""Types that columns of several files have in common."""

import pyarrow as pa
import pytest

from rlpost.io.arrow import common_type, is_string, without_dictionary

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


def test_texts_are_stored_in_several_ways():
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert is_string(kind)
    for kind in (pa.string(), pa.large_string()):
        encoded = pa.array(["a", None, "a"], kind).dictionary_encode()
        assert not is_string(encoded.type)
        assert without_dictionary(encoded).equals(pa.array(["a", None, "a"], kind))
    plain = pa.array([1])
    assert without_dictionary(plain) is plain
