"""Segments by hand: ranges of positions, runs of policy tokens; test_arrays.py has the loops."""

import numpy as np
import pytest

from rlpost.kernels import segments

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


# Ranges of positions


def test_the_last_position_range_has_no_end():
    found = segments.PositionSegments.of(np.array([0, 2**21 + 5, 2**30 + 2**21 + 5]))
    assert np.diff(found.offsets)[19].item() == 5
    assert np.diff(found.offsets)[-1].item() == 2**30 - 2**21
    assert found.places.tolist() == [*range(20), *range(20)]


# Runs
