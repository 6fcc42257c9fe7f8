"""Files of agents that their packages' own writers made (tests/written), against their objects."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from dump_folders import rows_as_declared
from runs import run

import rlpost
from rlpost.errors import DataError
from rlpost.formats import detect
from rlpost.formats.convert import convert

WRITTEN = Path(__file__).parents[1] / "written"


def rows_of(source: Path, folder: Path) -> list[dict]:
    return rows_as_declared(source, folder)[0]


def truth_of(name: str) -> list[dict]:
    return [json.loads(line) for line in (WRITTEN / name / "truth.jsonl").read_text().splitlines()]


def edited(source: Path, folder: Path, edit) -> Path:
    """The first line of a file of JSON lines, with its object edited."""
    record = json.loads(source.read_text().splitlines()[0])
    edit(record)
    (folder / source.name).write_text(json.dumps(record) + "\n")
    return folder / source.name


def advantages_of(source: Path, folder: Path, *words: object) -> list[list[float]]:
    out = folder / "advantages.parquet"
    ran = run("advantages", source, out, "--estimator", "grpo", "--unit", "rollout", *words)
    assert ran.code == 0, ran.err
    return pq.read_table(out)["advantages"].to_pylist()


def test_verifiers_traces(tmp_path):
    source = WRITTEN / "verifiers" / "traces.jsonl"
    assert detect(source).name == "prime-rl"
    rows = rows_of(source, tmp_path)
    trained = [one for one in truth_of("verifiers") if one["rollout"] != "judged"]
    assert [row["rollout_id"] for row in rows] == [*(x["rollout"] for x in trained), "early"]
    for row, one in zip(rows[:-1], trained, strict=True):
        begin = one["mask"].index(True)
        assert row["prompt_token_ids"] == one["token_ids"][:begin]
        assert row["response_token_ids"] == one["token_ids"][begin:]
        assert row["response_mask"] == one["mask"][begin:]
        assert np.allclose(row["infer_log_probs"], one["logprobs"][begin:], rtol=0, atol=1e-7)
        facts = ("reward", "truncated", "failure")
        assert [row[name] for name in facts] == [one[name] for name in facts]
    places = [
        (row["branch"], row["turn"], row["agent_role"], row["policy_version"]) for row in rows
    ]
    solver = ("solver", 5)
    assert places[:3] == [("0", 1, *solver), ("0", 1, *solver), ("1", 2, *solver)]
    early = rows[-1]
    assert (early["response_token_ids"], early["failure"]) == ([], "TimeoutError")
    assert early["error"] == "sandbox of early"
    gains = advantages_of(source, tmp_path)
    assert [round(x[0], 4) if x else 0 for x in gains] == [0.7071, -0.7071, -0.7071, 0, 0]


def test_traces_of_another_version_are_an_error(tmp_path):
    def later(episode: dict) -> None:
        episode["traces"][0]["version"] = 2

    source = edited(WRITTEN / "verifiers" / "traces.jsonl", tmp_path, later)
    with pytest.raises(DataError, match="`version` is 2"):
        convert(source, tmp_path / "out.parquet")


def check_calls(rows: list[dict], calls: list) -> None:
    """Rows of one rollout against its calls: text, ids of prompt and answer, log-probs."""
    assert [row["turn"] for row in rows] == [*range(len(calls))]
    for row, (text, prompt, ids, log_probs) in zip(rows, calls, strict=True):
        assert row["response"] in (text, None)
        assert (row["prompt_token_ids"], row["response_token_ids"]) == (prompt, ids)
        assert row["response_mask"] == [1] * len(ids)
        assert np.allclose(row["infer_log_probs"], log_probs, rtol=0, atol=1e-7)


def test_trials_of_harbor(tmp_path):
    source = WRITTEN / "harbor" / "job"
    assert detect(source).name == "harbor"
    rows = rows_of(source, tmp_path)
    for one in truth_of("harbor"):
        own = [row for row in rows if row["rollout_id"] == one["rollout"]]
        if one["calls"]:
            check_calls(own, one["calls"])
        for row in own:
            assert row["reward"] == one["reward"]
            assert (row["failure"] is None) == one["reward_valid"]
            assert row["truncated"] == (one["exception"] == "AgentTimeoutError")
    assert [row["branch"] for row in rows] == ["0", "0", "1", "2", "0", "0", "0"]
    assert (rows[-1]["failure"], rows[-1]["error"]) == (
        "EnvironmentStartTimeoutError",
        "no sandbox",
    )
    gains = advantages_of(source, tmp_path)
    assert [round(x[0], 4) if x else 0 for x in gains] == [*[1.1547] * 4, -0.5773, -0.5773, 0]


@pytest.mark.parametrize("minor", [0, 8])
def test_trajectories_alone_of_every_version(minor, tmp_path):
    source = WRITTEN / "harbor" / "job" / "fix-git__1" / "agent" / "trajectory.json"
    text = source.read_text().replace("ATIF-v1.8", f"ATIF-v1.{minor}")
    (tmp_path / "in.json").write_text(text)
    rows = rows_of(tmp_path / "in.json", tmp_path)
    check_calls(rows, truth_of("harbor")[0]["calls"][:3])
    assert {row["agent_role"] for row in rows} == {"terminus-2"}
    (tmp_path / "new.json").write_text(text.replace(f"v1.{minor}", "v2.0"))
    with pytest.raises(DataError, match="`schema_version` is"):
        convert(tmp_path / "new.json", tmp_path / "new.parquet")


def test_rollouts_of_nemo_gym_with_the_failures_beside_them(tmp_path):
    source = WRITTEN / "nemo_gym" / "rollouts.jsonl"
    assert detect(source).name == "nemo-gym"
    rows = rows_of(source, tmp_path)
    for one in truth_of("nemo_gym"):
        own = [row for row in rows if row["rollout_id"] == one["rollout"]]
        check_calls(
            own, [[row["response"], *call] for row, call in zip(own, one["calls"], strict=True)]
        )
        facts = {(row["prompt_id"], row["reward"], row["sample_loss_mask"]) for row in own}
        assert facts == {(one["task"], one["reward"], float(not one["masked"]))}
    assert [row["response"] for row in rows[:2]] == ['{"x": 6}', "13"]
    assert [row["finish_reason"] for row in rows[:4]] == ["stop"] * 3 + ["max_output_tokens"]
    assert [row["failure_reason"] for row in rows[:3]] == [None, None, "wrong_answer"]
    failed = [(row["rollout_id"], row["failure"], row["error"]) for row in rows[-2:]]
    assert failed == [(f"0:3:failure {i}", "sandbox_error", "no box") for i in (1, 2)]
    gains = advantages_of(source, tmp_path)
    assert [round(x[0], 4) if x else 0 for x in gains] == [0.7071, 0.7071, -0.7071, *[0] * 4]
    (tmp_path / "run").mkdir()
    for file in source.parent.glob("rollouts*.jsonl"):
        (tmp_path / "run" / file.name).write_bytes(file.read_bytes())
    convert(tmp_path / "run", tmp_path / "folder")
    assert pq.read_table(tmp_path / "folder").num_rows == len(rows)


def test_a_trial_that_failed_needs_no_reward_in_an_inspection(tmp_path):
    convert(WRITTEN / "harbor" / "job", tmp_path / "in.parquet")
    found = [finding.columns for finding in rlpost.inspect(tmp_path / "in.parquet").findings]
    assert not any("reward" in columns for columns in found)
