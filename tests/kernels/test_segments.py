"""Segments by hand: ranges of positions, runs of policy tokens; test_arrays.py has the loops."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_values import DOUBLE

from rlpost.kernels import segments

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


# Ranges of positions


@given(
    st.lists(st.integers(0, 40) | st.sampled_from([7, 8, 9, 15, 16, 17, 31, 32, 33]), max_size=6)
)
def test_position_segments_end_at_the_ends_of_ranges(lengths):
    found = segments.PositionSegments.of(segments.offsets_of(np.array(lengths, dtype=np.int64)))
    edges = [0, 8, 16, 32, 64]
    cells = [
        (row, place, min(n, edges[place + 1]) - edges[place])
        for row, n in enumerate(lengths)
        for place in range(4)
        if n > edges[place]
    ]
    assert np.diff(found.offsets).tolist() == [size for _, _, size in cells]
    assert found.places.tolist() == [place for _, place, _ in cells]
    owners = [row for row, _, _ in cells]
    assert np.diff(found.rows).tolist() == [owners.count(row) for row in range(len(lengths))]
    values = np.arange(sum(lengths), dtype=DOUBLE)
    pieces = [values[a:b].tolist() for a, b in pairwise(found.offsets.tolist())]
    assert found.sum(values).tolist() == [sum(part) for part in pieces]
    numbers = np.arange(len(cells), dtype=DOUBLE)
    want = [float(i) for i, part in enumerate(pieces) for _ in part]
    assert found.spread(numbers).tolist() == want


def test_the_last_position_range_has_no_end():
    found = segments.PositionSegments.of(np.array([0, 2**21 + 5, 2**30 + 2**21 + 5]))
    assert np.diff(found.offsets)[19].item() == 5
    assert np.diff(found.offsets)[-1].item() == 2**30 - 2**21
    assert found.places.tolist() == [*range(20), *range(20)]


# Runs
