"""What signs of failures are worth, that no column names: their hits on planted and clean runs.

Two more were tried, and have none: a response with reward 0 that is far shorter than those of its
group (a policy gives short wrong answers, too), and a step with many zeros (hard prompts).
"""

import numpy as np
import polars as pl
import pytest

from rlpost.analysis.inspect.failures import signs_of_failures

STEPS, GROUPS, SIZE = 6, 24, 8
ROWS = STEPS * GROUPS * SIZE
SEEDS = 20
PLANTED = ("crash", "stub", "timeout", "judge", "burst")
CLEAN = ("usual", "short wrong answers", "hard step", "sparse rewards")


def run(kind, seed):
    """Rows as `inspect` reads them, which of them failed, and the step and group of each."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(STEPS * GROUPS), SIZE)
    step = group // GROUPS
    ease = rng.uniform(0.05, 0.9, STEPS * GROUPS)
    if kind == "hard step":
        ease[GROUPS * 3 : GROUPS * 4] *= 0.1
    if kind == "sparse rewards":
        ease *= 0.05
    reward = (rng.random(ROWS) < ease[group]).astype(float)
    scale = rng.lognormal(6, 0.6, STEPS * GROUPS)[group]
    tokens = np.maximum(1, scale * rng.lognormal(0, 0.5, ROWS)).astype(int)
    if kind == "short wrong answers":
        short = (reward == 0) & (rng.random(ROWS) < 0.15)
        tokens[short] = rng.integers(1, 6, short.sum())
    rate = np.where(step == 3, 0.8, 0.01) if kind == "burst" else 0.1
    failed = (rng.random(ROWS) < rate) & (kind in PLANTED)
    reward[failed] = 0.0
    if kind == "crash":  # before the first token
        tokens[failed] = 0
    if kind == "stub":  # an error text in place of an answer, which no policy wrote
        tokens[failed] = rng.integers(1, 4, failed.sum())
    if kind == "timeout":
        tokens[failed] = np.maximum(1, tokens[failed] * rng.uniform(0.02, 0.5, failed.sum()))
    means = np.where(failed & (kind == "stub"), 0.0, -rng.exponential(0.4, ROWS))
    rows = {"reward": reward, "tokens": tokens, "mean:old_log_probs": means}
    return pl.DataFrame(rows), failed, step, group


def tried(rows, step, group):
    """The two signs that are worth nothing."""
    reward, tokens = (rows[name].to_numpy() for name in ("reward", "tokens"))
    zero = reward == 0
    usual = np.array([np.median(tokens[group == one]) for one in range(group.max() + 1)])
    shares = zero.reshape(-1, SIZE).mean(1)
    burst = np.zeros(ROWS, bool)
    for one in range(STEPS):
        own = np.arange(STEPS * GROUPS) // GROUPS == one
        errors = [part.var(ddof=1) / len(part) for part in (shares[own], shares[~own])]
        z = (shares[own].mean() - shares[~own].mean()) / np.sqrt(sum(errors))
        burst |= zero & (step == one) & (z > 5)
    return {"far shorter": zero & (tokens > 0) & (tokens < usual[group] / 8), "burst": burst}


def hits(kind, *, discarded=False):
    """By sign: how many failed rows it has, how many others, and all that failed."""
    counts, every = {}, 0
    for seed in range(SEEDS):
        rows, failed, step, group = run(kind, seed)
        signs = tried(rows, step, group) if discarded else signs_of_failures(rows)
        every += int(failed.sum())
        for name, one in signs.items():
            flags, (true, false) = np.asarray(one), counts.get(name, (0, 0))
            own = int((flags & failed).sum()), int((flags & ~failed).sum())
            counts[name] = (true + own[0], false + own[1])
    return counts, every


def test_planted_failures_have_their_sign():
    for kind, sign in (("crash", "without tokens"), ("stub", "without log-probs")):
        counts, every = hits(kind)
        assert counts[sign] == (every, 0)
        assert every > 2000


@pytest.mark.parametrize("kind", CLEAN)
def test_clean_runs_have_no_sign(kind):
    assert {*hits(kind)[0].values()} == {(0, 0)}


@pytest.mark.parametrize("kind", ["timeout", "judge", "burst"])
def test_failures_that_look_like_answers_have_none(kind):
    """They need a column."""
    assert {*hits(kind)[0].values()} == {(0, 0)}


def test_the_signs_that_were_tried_accuse_clean_runs():
    assert hits("short wrong answers", discarded=True)[0]["far shorter"][1] > 1500
    assert hits("hard step", discarded=True)[0]["burst"][1] > 3000
