"""Tables with a column for each field of the targets of `rlpost export`, and what a Datum has."""

import numpy as np
import pyarrow as pa

from rlpost.formats.targets import TARGETS
from rlpost.recipe.roles import ROLES

FLOATS, IDS, MASK = pa.list_(pa.float32()), pa.list_(pa.int32()), pa.list_(pa.uint8())


def rollouts(rows=7, seed=0):
    """Rows of two steps, in turn, with observation tokens, a response that is left out."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, rows)
    lengths[-1] = 0

    def floats():
        return pa.array([random.normal(size=n).astype(np.float32) for n in lengths], FLOATS)

    return pa.table(
        {
            "step": pa.array([i % 2 + 5 for i in range(rows)], pa.int32()),
            "prompt_id": [f"q{i // 2}" for i in range(rows)],
            "sample_id": [f"s{i}" for i in range(rows)],
            "reward": random.normal(size=rows),
            "finish_reason": [["stop", "length"][i % 2] for i in range(rows)],
            "prompt": [f"question {i}" for i in range(rows)],
            "response": [None if i == 1 else f"answer {i}" for i in range(rows)],
            "prompt_token_ids": pa.array([[*range(i + 1)] for i in range(rows)], IDS),
            "response_token_ids": pa.array(
                [random.integers(0, 9, n).astype(np.int32) for n in lengths], IDS
            ),
            "response_mask": pa.array(
                [(random.random(n) < 0.8).astype(np.uint8) for n in lengths], MASK
            ),
            "infer_log_probs": floats(),
            "old_log_probs": floats(),
            "advantages": floats(),
            "returns": floats(),
            "sample_mask": pa.array([i != 2 for i in range(rows)]),
            "parts": pa.array([{"style": i / 3, "tags": ["a"] * i} for i in range(rows)]),
        }
    )


def every_column():
    """A column for each field of each target, and one that none has a field for."""
    tokens = {
        item: pa.array([[0.5, -1.0], [0.25]], FLOATS)
        for target in TARGETS.values()
        for item in target.fields
        if item in ROLES and ROLES[item].kind == "tokens" and item != "mask"
    }
    return pa.table(
        {
            **tokens,
            **dict.fromkeys(("returns", "entropy", "teacher_log_probs"), tokens["advantages"]),
            "response_mask": pa.array([[1, 1], [1]], MASK),
            "final_response_mask": pa.array([[1, 1], [1]], MASK),
            "prompt_token_ids": pa.array([[4], [5, 6]], IDS),
            "response_token_ids": pa.array([[1, 2], [3]], IDS),
            "sample_mask": [True, True],
            "response_advantage": [1.0, 2.0],
            "reward": [1.0, 0.0],
            "truncated": [False, False],
            "sample_id": ["t:0", "u:0"],
            **{name: ["a", "b"] for name in ("prompt_id", "rollout_id", "domain")},
            **{name: ["a", "b"] for name in ("prompt", "response", "other")},
            "step": [3, 3],
        }
    )


def changed(values):
    """Other values of the same kind: one more prompt token, a flipped mask, another number."""
    first = values[0]
    if isinstance(first, list) and len(values[1]) == 2:
        return [[*one, 7] for one in values]
    if isinstance(first, list):
        return [[1 - one[0], *one[1:]] for one in values]
    if isinstance(first, str):
        return values[::-1] if first == "t:0" else [values[0]] * 2
    return [not x if isinstance(x, bool) else x + 1 for x in values]
