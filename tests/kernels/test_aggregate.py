"""Sums and means of the losses of a batch."""

import numpy as np
import pytest

from rlpost.kernels import aggregate

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"how": "token-mean"}, [4, 1]),
        ({"how": "token-sum"}, [1, 1]),
        ({"how": "seq-mean-token-mean"}, [2, 1]),
        ({"how": "prompt-mean", "count_rows": "all"}, [3, 1]),
        ({"how": "seq-mean-token-sum-norm"}, [5, 2]),
        ({"how": "seq-mean-token-sum-norm", "norm": "rows", "length": 3}, [6, 3]),
    ],
)
def test_sums_of_batches_are_divided_by_what_counts(options, expected):
    names = ("tokens", "valid", "rows", "longest")
    counts = dict(zip(names, map(np.array, ([4, 1], [2, 1], [3, 1], [5, 2])), strict=True))
    assert aggregate.denominator(**counts, **options).tolist() == expected
