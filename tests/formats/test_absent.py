"""What a dump does not have is absent: lengths, tokens, indices, episodes that failed at once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from format_writers import lines
from runs import run

from rlpost.formats.convert import convert


def rows_of(source, folder):
    summary = convert(source, folder / "out.parquet", overwrite=True)
    return pq.read_table(folder / "out.parquet").to_pylist(), summary["warnings"]


def gains(source, folder, *words):
    """The advantages of a dump, to three digits; of each response, if it has no tokens."""
    ran = run("advantages", source, folder / "adv.parquet", "--estimator", "grpo", *words)
    assert ran.code == 0, ran.err
    table = pq.read_table(folder / "adv.parquet")
    return [round(x, 3) for x in table["response_advantage"].to_pylist()]


def trial(folder, name, reward, tokens, steps=None):
    """A trial of Harbor; without a reward, one that failed."""
    failed = {"exception_type": "RuntimeError", "exception_message": ""}
    result = {
        "id": name, "task_name": "task", "trial_name": f"task__{name}", "source": None,
        "config": {}, "agent_info": {"name": "custom", "version": "1"},
        "exception_info": failed if reward is None else None,
        "verifier_result": None if reward is None else {"rewards": {"reward": reward}},
        "agent_result": {"n_output_tokens": tokens, "rollout_details": None},
    }  # fmt: skip
    lines(folder / f"task__{name}" / "result.json", [result])
    if steps is not None:
        calls = [{"source": "agent", "message": "done", "metrics": {"completion_tokens": n}}
                 for n in steps]  # fmt: skip
        trajectory = {"schema_version": "ATIF-v1.6", "session_id": name, "steps": calls,
                      "agent": {"name": "custom"}}  # fmt: skip
        lines(folder / f"task__{name}" / "agent" / "trajectory.json", [trajectory])


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [
        (None, [160, 150, None]),  # no trajectory: what the agent counted
        ([None], [None] * 3),  # a trajectory without counts: unknown
        ([30, 20], [30, 20, 30, 20, None]),
    ],
)
def test_a_trial_without_ids_has_the_lengths_that_are_known(steps, lengths, tmp_path, monkeypatch):
    trial(tmp_path / "job", "a", 0.0, 160, steps)
    trial(tmp_path / "job", "b", 1.0, 150, steps)
    trial(tmp_path / "job", "c", None, 9)
    monkeypatch.chdir(tmp_path)
    rows, _ = rows_of(Path("job"), tmp_path)
    assert [row.get("response_length") for row in rows] == lengths
    assert {*gains(Path("job"), tmp_path)} == {-0.707, 0.0, 0.707}


def rollout(task, number, reward, **more):
    """A record of NeMo-Gym; a task of None has no indices, so its input is its key."""
    item = {
        "type": "message", "role": "assistant", "content": [{"text": "a"}],
        "prompt_token_ids": [], "generation_token_ids": [], "generation_log_probs": [],
    }  # fmt: skip
    indices = {"_ng_task_index": task, "_ng_rollout_index": number} if isinstance(task, int) else {}
    return {
        **indices, "reward": reward,
        "responses_create_params": {"input": [{"role": "user", "content": f"q{task}"}]},
        "response": {"output": [item, item], "usage": more.pop("usage", None)},
        **more,
    }  # fmt: skip


def test_empty_lists_of_ids_are_no_ids(tmp_path):
    dump = lines(tmp_path / "rollouts.jsonl", [rollout(0, i, float(i)) for i in range(2)])
    failure = {**rollout(0, 2, None), "_ng_failure_class": "judge_failed", "response": None}
    lines(tmp_path / "rollouts_failures.jsonl", [failure])
    rows, _ = rows_of(dump, tmp_path)
    assert [(row["response"], row.get("response_mask"), row["failure"]) for row in rows] == [
        ("aa", None, None), ("aa", None, None), (None, None, "judge_failed"),
    ]  # fmt: skip
    assert "response_length" not in rows[0]
    assert gains(dump, tmp_path) == [-0.707, 0.707, 0.0]


def test_rollouts_are_grouped_by_their_input_without_indices_and_have_the_number_of_an_attempt(
    tmp_path,
):
    records = [rollout(f"{i // 2}", i, i % 2, usage={"output_tokens": 3 + i}) for i in range(4)]
    rows, _ = rows_of(lines(tmp_path / "a.jsonl", records), tmp_path)
    groups = [row["prompt_id"] for row in rows]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert len({row["rollout_id"] for row in rows}) == 4
    assert [row["response_length"] for row in rows] == [3, 4, 5, 6]
    records = [rollout(0, 0, 1.0), rollout(0, 0, 0.0, _ng_attempt_index=1)]
    rows, _ = rows_of(lines(tmp_path / "a.jsonl", records), tmp_path)
    assert [(row["rollout_id"], row["attempt"]) for row in rows] == [("0:0", 0), ("0:0", 1)]


def episode(number, answered=True, **more):
    nodes = [
        {"message": {"role": "user", "content": "q"}, "sampled": False, "parent": None},
        {"message": {"role": "assistant", "content": "a"}, "sampled": True, "parent": 0},
    ]  # fmt: skip
    empty = {"token_ids": [], "mask": [], "logprobs": []}
    trace = {
        "version": 1, "id": f"t{number}", "ok": True,
        "agent": {"name": "solver", "trainable": True},
        "nodes": [{**node, **empty} for node in nodes[: 1 + answered]],
        "rewards": {"r": {"score": float(number), "weight": 1.0}},
    }  # fmt: skip
    return {"id": f"e{number}", "env": {"id": "e"}, "task": {"key": "k"}, "ok": True, "errors": [],
            "traces": [trace], **more}  # fmt: skip


def test_traces_without_tokens_and_an_episode_without_traces_are_rows(tmp_path):
    failed = {"ok": False, "traces": [], "errors": [{"type": "TimeoutError", "message": "late"}]}
    records = [episode(0), episode(1), episode(2, **failed), episode(3, traces=[]),
               episode(4, answered=False)]  # fmt: skip
    dump = lines(tmp_path / "traces.jsonl", records)
    rows, warnings = rows_of(dump, tmp_path)
    assert [(row["rollout_id"], row["response"], row["failure"]) for row in rows] == [
        ("t0", "a", None), ("t1", "a", None), ("e2", None, "TimeoutError"),
    ]  # fmt: skip
    assert {"1 episode without traces left out",
            "1 trace without an answer of its model left out"} <= {*warnings}  # fmt: skip
    assert gains(dump, tmp_path) == [-0.707, 0.707, 0.0]


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        (["7", "8", "8", "9"], None),
        (["v7", "v8", "v8", "v9"], None),
        (["7", "new", "8", "9"], "row 1: `weight_version` is 'new'; a number per row"),
    ],
)
def test_versions_as_texts_are_numbers(versions, told, tmp_path):
    masks = pa.array([[1]] * 4, pa.list_(pa.int8()))
    columns = {"prompt_id": [*"aabb"], "reward": [1.0, 0.0] * 2, "step": [9] * 4,
               "response_mask": masks, "weight_version": versions}  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    ran = run("advantages", tmp_path / "in.parquet", out, "--is-filter", "max:age::1")
    assert ((told or "") in ran.err, ran.code == 0) == (True, told is None)
    if not told:
        kept = [abs(x[0]) > 0.5 for x in pq.read_table(out)["advantages"].to_pylist()]
        assert kept == [False, True, True, True]


def test_lengths_of_0_throughout_are_unknown(tmp_path):
    records = [{"prompt_id": "g", "reward": float(i), "response_length": 0} for i in range(2)]
    dump = lines(tmp_path / "a.jsonl", records)
    ran = run("advantages", dump, tmp_path / "out.parquet", "--estimator", "grpo")
    assert "`response_length` is 0 in all of 2 responses" in ran.err
    assert "--map response_length=none" in ran.err
    convert(dump, tmp_path / "a.parquet")
    none = ("--map", "response_length=none")
    assert gains(tmp_path / "a.parquet", tmp_path, *none) == [-0.707, 0.707]
