"""Rows with log-probs of engine and trainer, and what is compared of them."""

import numpy as np

LEVELS = ("token", "segment", "geometric", "sequence")


def close(got, want, **tolerance):
    tolerance = tolerance or {"rtol": 1e-6, "atol": 1e-7}
    joined = [np.concatenate([np.asarray(xs, float).ravel() for xs in x]) for x in (got, want)]
    np.testing.assert_allclose(*joined, **tolerance)
