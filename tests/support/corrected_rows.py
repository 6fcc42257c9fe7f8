"""Rows with log-probs of engine and trainer, and what is compared of them."""

import numpy as np
from reference import Response

LEVELS = ("token", "segment", "geometric", "sequence")


def close(got, want, **tolerance):
    tolerance = tolerance or {"rtol": 1e-6, "atol": 1e-7}
    joined = [np.concatenate([np.asarray(xs, float).ravel() for xs in x]) for x in (got, want)]
    np.testing.assert_allclose(*joined, **tolerance)


def row(old, infer, mask=None, **more):
    mask = mask or [1] * len(old)
    return Response(group="g", reward=1.0, mask=mask, old=old, infer=infer, **more)
