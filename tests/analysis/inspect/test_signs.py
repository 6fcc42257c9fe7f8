"""Signs of failures that no column names: no token of their own, or log-probs of no policy."""

import numpy as np
import polars as pl

from rlpost.analysis.inspect.failures import signs_of_failures


def test_planted_failures_have_their_sign_and_short_wrong_answers_have_none():
    rng = np.random.default_rng(0)
    kinds = rng.choice(["", "crash", "stub", "short"], 2000, p=[0.7, 0.1, 0.1, 0.1])
    crash, stub = kinds == "crash", kinds == "stub"
    reward = np.where(kinds == "", rng.random(2000) < 0.5, 0.0)
    tokens = np.where(kinds == "", rng.integers(40, 900, 2000), rng.integers(1, 6, 2000))
    rows = {
        "reward": reward,
        "tokens": np.where(crash, 0, tokens),
        "mean:old_log_probs": np.where(stub, 0.0, -rng.exponential(0.4, 2000) - 1e-3),
    }
    signs = signs_of_failures(pl.DataFrame(rows))
    assert np.array_equal(np.asarray(signs["without tokens"]), crash)
    assert np.array_equal(np.asarray(signs["without log-probs"]), stub)
