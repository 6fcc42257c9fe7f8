"""Tokens of the highest entropy keep their advantage: against plain loops, by batch and part."""

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

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


def units(data, responses, tokens):
    """The rows that are ordered together: of a step, or of a micro-batch, dealt in order."""
    found = []
    for step in range(STEPS):
        rows = [i for i, own in enumerate(data["step"].to_pylist()) if own == step]
        if tokens is None:
            size = responses or len(rows)
            found += [rows[i : i + size] for i in range(0, len(rows), size)]
            continue
        parts, used = [[]], 0
        for i in rows:
            own = len(data["entropy"][i])
            if parts[-1] and used + own > tokens:
                parts, used = [*parts, []], 0
            parts[-1].append(i)
            used += own
        found += parts
    return found


def chosen(data, share, responses=None, tokens=None):
    """Whether each token is at or above the quantile of its unit, in plain loops."""
    masks, entropy = data["response_mask"].to_pylist(), data["entropy"].to_pylist()
    out = [[False] * len(row) for row in masks]
    for rows in units(data, responses, tokens):
        own = sorted(entropy[i][t] for i in rows for t, m in enumerate(masks[i]) if m)
        if own:
            least = own[math.ceil((1 - Fraction(str(share))) * (len(own) - 1))]
            for i in rows:
                out[i] = [bool(m) and x >= least for m, x in zip(masks[i], entropy[i], strict=True)]
    return out


LAYOUTS = [{}, {"micro_batch": 4}, {"micro_batch_tokens": 9}]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("options", [{}, {"whiten_advantages": True}, {"estimator": "reinforce"}])
@pytest.mark.parametrize("share", [0.2, 0.75])
def test_the_advantages_of_other_tokens_are_0(share, options, layout):
    data = table(3)
    emit = ("advantages", "returns", "raw_advantages")
    plain, _ = rlpost.enrich(data, Recipe(**options, emit=emit))
    recipe = Recipe(**options, emit=emit, top_entropy_quantile=share, **layout)
    kept = chosen(data, share, *(layout.get(x) for x in ("micro_batch", "micro_batch_tokens")))
    for device in ("cpu", "torch:cpu"):
        found, summary = rlpost.enrich(data, recipe, Options(device=device))
        pairs = zip(plain["advantages"].to_pylist(), kept, strict=True)
        want = [[a * own for a, own in zip(*pair, strict=True)] for pair in pairs]
        assert found["advantages"].to_pylist() == want
        for name in ("returns", "raw_advantages"):
            assert found[name].equals(plain[name])
        policy = sum(map(sum, data["response_mask"].to_pylist()))
        assert summary["top_entropy"]["masked"] == policy - sum(map(sum, kept)) > 0


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
    assert found["settings"][0]["loss"]["policy"] == pytest.approx(want, rel=1e-6)


def test_a_layout_of_a_loss_orders_each_of_its_micro_batches():
    data = table(5)
    for recipe in (Recipe(top_entropy_quantile=0.4), Recipe(is_filter=("batch:k2::0.01",))):
        dealt = recipe.model_copy(update={"micro_batch": 4})
        found = rlpost.loss(data, None, recipe, micro_batch=4)["settings"][0]
        want = rlpost.loss(data, None, dealt)["settings"][0]
        whole = rlpost.loss(data, None, recipe)["settings"][0]
        assert found["loss"] == want["loss"] != whole["loss"]


def test_negative_entropies_count_as_0():
    data = pa.table({"prompt_id": [1, 1], "reward": [0.0, 1.0], "entropy": [[-1e-7, 0.0], [2.0]]})
    found, _ = rlpost.enrich(data, Recipe(top_entropy_quantile=0.5))
    assert [x != 0 for row in found["advantages"].to_pylist() for x in row] == [True, True, True]
