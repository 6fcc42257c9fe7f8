"""Key columns: codes in order of first appearance, labels, nulls, chunks of several types."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpost.io.keys import KeyColumn, encode_keys, step_order

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
