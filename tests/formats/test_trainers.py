"""Dumps that trainers' own functions wrote (tests/written)."""

import json
from pathlib import Path

import numpy as np
import pytest
from dump_folders import rows_as_declared

WRITTEN = Path(__file__).parents[1] / "written" / "trainers"
TRUTH = json.loads((WRITTEN / "truth.json").read_text())


@pytest.mark.parametrize(
    ("name", "layout", "more"),
    [
        ("verl", "verl", {"acc": [True, False, True, False],
                          "rollout_id": ["r0", "r1", "r2", "r3"]}),
        ("verl-v1", "verl", {"prompt_id": ["a_b", "a_b", "c", "c"],
                             "rollout_id": ["a_b_0", "a_b_1", "c_0", "c_0"]}),
        ("ms-swift/grpo", "ms-swift", {"reward": [1.5, 0.5, 1.5, 1.0],
                                       "dumped_advantage": [1.0, -1.0, 0.7, -0.7],
                                       "dumped_entropy": [0.1, 0.2, 0.3, 0.4]}),
        ("ms-swift/gkd", "ms-swift", {"reward": [None] * 4}),
        ("ms-swift/ray", "ms-swift", {}),
    ],
)  # fmt: skip
def test_dumps_of_texts(name, layout, more, tmp_path):
    rows, summary = rows_as_declared(WRITTEN / name, tmp_path)
    assert summary["format"] == layout
    prompts, responses, rewards = map(list, zip(*TRUTH["texts"], strict=True))
    expected = {
        "step": [7] * 4,
        "prompt": prompts,
        "response": responses,
        "reward": rewards,
        **more,
    }
    assert {key: [row.get(key) for row in rows] for key in expected} == expected
    groups = [row["prompt_id"] for row in rows]
    assert [groups.index(one) for one in groups] == [0, 0, 2, 2]


def test_rollouts_of_open_instruct(tmp_path):
    rows, _ = rows_as_declared(WRITTEN / "open-instruct", tmp_path)
    for row, one in zip(rows, TRUTH["open_instruct"], strict=True):
        assert row["prompt_token_ids"] == one["prompt"]
        assert row["response_token_ids"] == one["ids"]
        assert row["infer_log_probs"] == np.float32(one["engine"]).tolist()
