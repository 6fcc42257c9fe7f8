"""Tokens of the highest entropy keep their advantage: against plain loops, by batch."""

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from summaries import whole

import rlpost
from rlpost import LossOptions, Options, Recipe

ROWS, STEPS = 18, 2


def table(seed):
    """Responses of two steps with observations, and entropies of which some are equal."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 7, ROWS)
    lengths[0] = 6
    columns = {"prompt_id": np.arange(ROWS) // 3, "reward": rng.normal(0, 1, ROWS)}
    columns |= {"step": rng.permutation(np.arange(ROWS // 3) % STEPS)[np.arange(ROWS) // 3]}
    columns["response_mask"] = [(rng.random(n) < 0.8).astype(int) for n in lengths]
    columns["response_mask"][0][0] = 1
    columns["entropy"] = [rng.choice([0.0, 0.5, *rng.random(9)], n) for n in lengths]
    for name in ("old_log_probs", "log_probs", "infer_log_probs"):
        columns[name] = [-rng.random(n) for n in lengths]
    return pa.table(
        {
            k: pa.array([list(x) for x in v]) if isinstance(v, list) else v
            for k, v in columns.items()
        }
    )


def chosen(data, share):
    """Whether each token is at or above the quantile of its step, in plain loops."""
    masks, entropy = data["response_mask"].to_pylist(), data["entropy"].to_pylist()
    out = [[False] * len(row) for row in masks]
    steps = data["step"].to_pylist()
    for step in range(STEPS):
        rows = [i for i, own in enumerate(steps) if own == step]
        own = sorted(entropy[i][t] for i in rows for t, m in enumerate(masks[i]) if m)
        if own:
            least = own[math.ceil((1 - Fraction(str(share))) * (len(own) - 1))]
            for i in rows:
                out[i] = [bool(m) and x >= least for m, x in zip(masks[i], entropy[i], strict=True)]
    return out


@pytest.mark.parametrize("options", [{}, {"whiten_advantages": True}, {"estimator": "reinforce"}])
@pytest.mark.parametrize("share", [0.2, 0.75])
def test_the_advantages_of_other_tokens_are_0(share, options):
    data = table(3)
    emit = ("advantages", "returns", "raw_advantages")
    plain, _ = rlpost.enrich(data, Recipe(**options, emit=emit))
    recipe = Recipe(**options, emit=emit, top_entropy_quantile=share)
    kept = chosen(data, share)
    for device in ("cpu", "torch:cpu"):
        found, summary = rlpost.enrich(data, recipe, Options(device=device))
        pairs = zip(plain["advantages"].to_pylist(), kept, strict=True)
        want = [[a * own for a, own in zip(*pair, strict=True)] for pair in pairs]
        assert found["advantages"].to_pylist() == want
        for name in ("returns", "raw_advantages"):
            assert found[name].equals(plain[name])
        policy = sum(map(sum, data["response_mask"].to_pylist()))
        assert whole(summary, "below_top_entropy")["total"] == policy - sum(map(sum, kept)) > 0


def test_a_loss_counts_the_other_tokens_in_its_denominator():
    data, share = table(4), 0.4
    kept, masks = chosen(data, share), data["response_mask"].to_pylist()
    plain, _ = rlpost.enrich(data)
    columns = [plain["advantages"], data["log_probs"], data["old_log_probs"]]
    rows = zip(*(one.to_pylist() for one in columns), kept, data["step"].to_pylist(), strict=True)
    total, tokens = [0.0] * STEPS, [0] * STEPS
    for mask, (advantages, new, old, own, step) in zip(masks, rows, strict=True):
        tokens[step] += sum(mask)
        for a, x, y, k in zip(advantages, new, old, own, strict=True):
            r = math.exp(x - y)
            total[step] += k * max(-a * r, -a * min(max(r, 0.8), 1.2))
    want = sum(one / count for one, count in zip(total, tokens, strict=True)) / STEPS
    found = rlpost.loss(data, None, Recipe(top_entropy_quantile=share), LossOptions())
    assert found["facts"]["policy_loss"]["all"]["mean"] == pytest.approx(want, rel=1e-6)


def test_negative_entropies_count_as_0():
    data = pa.table({"prompt_id": [1, 1], "reward": [0.0, 1.0], "entropy": [[-1e-7, 0.0], [2.0]]})
    found, _ = rlpost.enrich(data, Recipe(top_entropy_quantile=0.5))
    assert [x != 0 for row in found["advantages"].to_pylist() for x in row] == [True, True, True]
