"""Sums and means of the losses of a batch."""

import numpy as np
import pytest

from rlpost.kernels import aggregate, moments

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


def test_the_loss_of_a_batch_without_policy_tokens_is_0():
    none = np.array([0])
    for responses in (0, 2):
        rows = np.array([responses])
        totals = aggregate.AggregateTotals(moments.zero_digits(1), none, none, rows, none)
        for how in ("token-mean", "seq-mean-token-sum-norm", "seq-mean-token-mean"):
            assert totals.loss(how=how).tolist() == [0.0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"how": "token-mean"}, [1.5, 7.0]),
        ({"how": "token-sum"}, [6.0, 7.0]),
        ({"how": "seq-mean-token-mean"}, [3.0, 7.0]),
        ({"how": "prompt-mean", "count_rows": "all"}, [2.0, 7.0]),
        ({"how": "seq-mean-token-sum-norm"}, [1.2, 3.5]),
        ({"how": "seq-mean-token-sum-norm", "norm": "rows", "length": 3}, [1.0, 7 / 3]),
    ],
)
def test_totals_of_batches_are_divided_by_what_counts(options, expected):
    totals = moments.exact_digits(np.array([4.0, 2.0, 7.0]), np.array([0, 0, 1]), 2)
    counts = (np.array(x) for x in ([4, 1], [2, 1], [3, 1], [5, 2]))
    found = aggregate.AggregateTotals(totals, *counts).loss(**options)
    assert found.tolist() == expected
