"""Key columns: codes in order of first appearance, labels, nulls, chunks of several types."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpost.io.arrow import plain_keys
from rlpost.io.keys import KeyColumn, encode_keys, of_one_type, step_order

KEYS = st.sampled_from(["b", "a", "", "ä", None])
CHUNKS = st.lists(st.lists(KEYS, max_size=5), min_size=1, max_size=4)


def column(chunks, kind=None):
    return [pa.array(chunk, kind or pa.string()) for chunk in chunks]


@given(CHUNKS, st.booleans())
def test_codes_number_the_keys_as_they_appear_and_null_is_the_last(chunks, encoded):
    arrays = column(chunks)
    keys = KeyColumn.of([encode_keys(one) for one in arrays] if encoded else arrays)
    rows = [key for chunk in chunks for key in chunk]
    labels = sorted(dict.fromkeys(rows), key=lambda key: key is None)
    assert keys.labels.to_pylist() == labels
    assert keys.codes.dtype == np.int64
    assert keys.codes.tolist() == [labels.index(key) for key in rows]
    assert [keys.label(code) for code in keys.codes] == rows


@given(CHUNKS)
def test_no_chunk_boundary_changes_a_code(chunks):
    whole = KeyColumn.of(column([[key for chunk in chunks for key in chunk]]))
    parts = KeyColumn.of(column(chunks))
    assert parts.codes.tolist() == whole.codes.tolist()
    assert parts.labels.equals(whole.labels)


@pytest.mark.parametrize("encode", [encode_keys, lambda array: array])
def test_numbers_in_one_file_are_the_texts_of_another(encode):
    chunks = [encode(pa.array([7, 10, None], pa.int64())), encode(pa.array(["10", "x", None]))]
    keys = KeyColumn.of(chunks)
    assert keys.labels.to_pylist() == ["7", "10", "x", None]
    assert keys.codes.tolist() == [0, 1, 3, 1, 2, 3]
    assert [part.to_pylist() for part in of_one_type(chunks)] == [
        ["7", "10", None],
        ["10", "x", None],
    ]


def test_plain_keys_are_integers_or_texts():
    for values, kind in (([1, None], pa.int8()), ([1, None], pa.uint16())):
        assert plain_keys(pa.array(values, kind)).equals(pa.array(values, pa.int64()))
    texts = pa.array(["a", None, "a"])
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        assert plain_keys(texts.cast(kind)).equals(texts)
    assert plain_keys(pa.array([1.5])).to_pylist() == ["1.5"]


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        ([10, 9, 2], [2, 1, 0]),
        (["10", "9", "-1"], [2, 1, 0]),
        (["b", "a", "1"], [0, 1, 2]),
        ([2, None, 1], [0, 1, 2]),
        ([], []),
    ],
)
def test_steps_are_in_the_order_of_their_numbers_or_of_the_input(labels, order):
    assert step_order(labels) == order
