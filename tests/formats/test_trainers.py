"""Dumps that trainers' own functions wrote (tests/written)."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlpost.errors import DataError
from rlpost.formats import FORMATS, detect
from rlpost.formats.convert import convert

WRITTEN = Path(__file__).parents[1] / "written" / "trainers"
TRUTH = json.loads((WRITTEN / "truth.json").read_text())


def read(source, folder):
    """The rows of a dump, whose roles are those that its layout declares, and the summary."""
    summary = convert(source, folder / "out.parquet")
    layout = FORMATS[summary["format"]]
    also = {"response_token_ids", "prompt_token_ids", "response_length"}
    assert {*summary["roles"]} - also <= {*layout.roles}
    assert {*layout.roles} <= {*summary["roles"], *layout.missing_roles}
    return pq.read_table(folder / "out.parquet").to_pylist(), summary


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
    rows, summary = read(WRITTEN / name, tmp_path)
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


def test_rollouts_of_open_instruct_with_the_packs_of_the_trainer(tmp_path):
    rows, summary = read(WRITTEN / "open-instruct", tmp_path)
    assert summary["inputs"] == [str(WRITTEN / "open-instruct" / "run__1_rollouts_000000.jsonl")]
    for row, one in zip(rows, TRUTH["open_instruct"], strict=True):
        assert row["prompt_token_ids"] == one["prompt"]
        assert row["response_token_ids"] == one["ids"]
        assert row["infer_log_probs"] == np.float32(one["engine"]).tolist()
        assert row["response_mask"] == (one["mask"] or [1] * len(one["ids"]))
        assert row["dumped_sample_mask"] == float(one["mask"] is not None)
        if one["old"] is None:
            assert np.isnan(row["old_log_probs"]).all()
        else:
            assert row["old_log_probs"] == one["old"]
    assert any("1 response" in text for text in summary["warnings"])


def test_packs_alone_are_sequences_without_rewards(tmp_path):
    for file in (WRITTEN / "open-instruct").glob("*_trainer_*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert {detect(file).name for file in tmp_path.iterdir()} == {"open-instruct"}
    convert(tmp_path, tmp_path / "o", "open-instruct")
    rows = pq.read_table(tmp_path / "o").to_pylist()
    trained = [(i, one) for i, one in enumerate(TRUTH["open_instruct"]) if one["mask"]]
    for row, (i, one) in zip(rows, trained, strict=True):
        assert (row["sample_id"], row["prompt_token_ids"]) == (f"7/{i}", one["prompt"])
        assert (row["response_token_ids"], row["response_mask"]) == (one["ids"], one["mask"])
        assert row["old_log_probs"] == one["old"]
        assert row["infer_log_probs"] == np.float32(one["engine"]).tolist()
    assert "reward" not in rows[0]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [("logprob_token_offset", 2, "`logprob_token_offset` is 2"), ("sp_size", 2, "`sp_size` is 2")],
)
def test_packs_of_another_kind_are_errors_that_name_the_field(field, value, text, tmp_path):
    for file in (WRITTEN / "open-instruct").iterdir():
        records = [json.loads(line) for line in file.read_text().splitlines()]
        for record in records:
            if "trainer_logprobs" in record:
                record[field] = value
        (tmp_path / file.name).write_text("".join(json.dumps(one) + "\n" for one in records))
    with pytest.raises(DataError, match=text):
        convert(tmp_path, tmp_path / "o")
