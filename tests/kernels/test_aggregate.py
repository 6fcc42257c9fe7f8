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
