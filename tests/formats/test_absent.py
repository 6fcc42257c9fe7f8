"""What a dump does not have is absent: lengths, tokens, indices, episodes that failed at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from format_writers import lines
from runs import run

from rlpost.formats.convert import convert


def rows_of(source, folder):
    summary = convert(source, folder / "out.parquet")
    return pq.read_table(folder / "out.parquet").to_pylist(), summary["warnings"]


def advantages(source, folder, *words):
    ran = run("advantages", source, folder / "adv.parquet", "--estimator", "grpo", *words)
    table = pq.read_table(folder / "adv.parquet") if ran.code == 0 else {}
    return ran, [round(x, 3) for x in table["response_advantage"].to_pylist()] if table else []


def trial(folder, name, reward, tokens, steps=None):
    """A trial of Harbor; without a reward, one that failed."""
    lines(
        folder / "job" / f"task__{name}" / "result.json",
        [
            {
                "id": name,
                "task_name": "task",
                "trial_name": f"task__{name}",
                "source": None,
                "config": {},
                "agent_info": {"name": "custom", "version": "1"},
                "exception_info": None
                if reward is not None
                else {"exception_type": "RuntimeError", "exception_message": ""},
                "verifier_result": None if reward is None else {"rewards": {"reward": reward}},
                "agent_result": {"n_output_tokens": tokens, "rollout_details": None},
            }
        ],
    )
    if steps is not None:
        lines(
            folder / "job" / f"task__{name}" / "agent" / "trajectory.json",
            [
                {
                    "schema_version": "ATIF-v1.6",
                    "session_id": name,
                    "agent": {"name": "custom"},
                    "steps": [
                        {"source": "agent", "message": "done", "metrics": {"completion_tokens": n}}
                        for n in steps
                    ],
                }
            ],
        )


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [
        (None, [160, 150, None]),  # no trajectory: what the agent counted
        ([None], None),  # a trajectory without counts: unknown
        ([30, 20], [30, 20, 30, 20, None]),
    ],
)
def test_a_trial_without_ids_has_the_lengths_that_are_known(steps, lengths, tmp_path):
    trial(tmp_path, "a", 0.0, 160, steps)
    trial(tmp_path, "b", 1.0, 150, steps)
    trial(tmp_path, "c", None, 9)
    rows, _ = rows_of(tmp_path / "job", tmp_path)
    assert [row.get("response_length") for row in rows] == (lengths or [None] * 3)
    ran, gains = advantages(tmp_path / "job", tmp_path)
    assert ran.code == 0, ran.err
    assert sorted(set(gains)) == [-0.707, 0.0, 0.707]


def rollout(task, number, reward, **more):
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"text": "a"}],
        "prompt_token_ids": [],
        "generation_token_ids": [],
        "generation_log_probs": [],
    }
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": number,
        "reward": reward,
        "responses_create_params": {"input": [{"role": "user", "content": f"q{task}"}]},
        "response": {"output": [item, item], "usage": more.pop("usage", None)},
        **more,
    }


def test_empty_lists_of_ids_are_no_ids(tmp_path):
    dump = lines(tmp_path / "rollouts.jsonl", [rollout(0, i, float(i)) for i in range(2)])
    lines(
        tmp_path / "rollouts_failures.jsonl",
        [{**rollout(0, 2, None), "_ng_failure_class": "judge_failed", "response": None}],
    )
    rows, _ = rows_of(dump, tmp_path)
    assert [(row["response"], row.get("response_mask"), row["failure"]) for row in rows] == [
        ("aa", None, None),
        ("aa", None, None),
        (None, None, "judge_failed"),
    ]
    assert "response_length" not in rows[0]
    assert advantages(dump, tmp_path)[1] == [-0.707, 0.707, 0.0]


def test_rollouts_without_indices_are_grouped_by_their_input(tmp_path):
    made = [rollout(i // 2, i, i % 2, usage={"output_tokens": 3 + i}) for i in range(4)]
    for record in made:
        del record["_ng_task_index"], record["_ng_rollout_index"]
    rows, _ = rows_of(lines(tmp_path / "a.jsonl", made), tmp_path)
    groups = [row["prompt_id"] for row in rows]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert len({row["rollout_id"] for row in rows}) == 4
    assert [row["response_length"] for row in rows] == [3, 4, 5, 6]


def test_an_attempt_of_a_rollout_has_its_number(tmp_path):
    made = [rollout(0, 0, 1.0), rollout(0, 0, 0.0, _ng_attempt_index=1)]
    rows, _ = rows_of(lines(tmp_path / "a.jsonl", made), tmp_path)
    assert [(row["rollout_id"], row["attempt"]) for row in rows] == [("0:0", 0), ("0:0", 1)]


def episode(number, **more):
    nodes = [
        {
            "message": {"role": role, "content": text},
            "sampled": role != "user",
            "token_ids": [],
            "mask": [],
            "logprobs": [],
            "parent": parent,
        }
        for parent, (role, text) in zip((None, 0), (("user", "q"), ("assistant", "a")), strict=True)
    ]
    trace = {
        "version": 1,
        "id": f"t{number}",
        "nodes": nodes,
        "ok": True,
        "agent": {"name": "solver", "trainable": True},
        "rewards": {"r": {"score": float(number), "weight": 1.0}},
    }
    return {
        "id": f"e{number}",
        "env": {"id": "e"},
        "task": {"key": "k"},
        "ok": True,
        "errors": [],
        "traces": [trace],
        **more,
    }


def test_traces_without_tokens_and_an_episode_without_traces_are_rows(tmp_path):
    failed = {"ok": False, "traces": [], "errors": [{"type": "TimeoutError", "message": "late"}]}
    unanswered = episode(4)
    del unanswered["traces"][0]["nodes"][1]
    made = [episode(0), episode(1), episode(2, **failed), episode(3, traces=[]), unanswered]
    dump = lines(tmp_path / "traces.jsonl", made)
    rows, warnings = rows_of(dump, tmp_path)
    assert [(row["rollout_id"], row["response"], row["failure"]) for row in rows] == [
        ("t0", "a", None),
        ("t1", "a", None),
        ("e2", None, "TimeoutError"),
    ]
    assert {
        "1 episode without traces left out",
        "1 trace without an answer of its model left out",
    } <= {*warnings}
    assert advantages(dump, tmp_path)[1] == [-0.707, 0.707, 0.0]


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
    table = pa.table(
        {
            "prompt_id": [*"aabb"],
            "reward": [1.0, 0.0] * 2,
            "step": [9] * 4,
            "response_mask": masks,
            "weight_version": versions,
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    ran = run("advantages", tmp_path / "in.parquet", out, "--is-filter", "max:age::1")
    assert (ran.code == 0) == (told is None)
    assert not told or told in ran.err
    if not told:
        kept = [abs(x[0]) > 0.5 for x in pq.read_table(out)["advantages"].to_pylist()]
        assert kept == [False, True, True, True]


def test_lengths_of_0_throughout_are_unknown(tmp_path):
    made = [{"prompt_id": "g", "reward": float(i), "response_length": 0} for i in range(2)]
    dump = lines(tmp_path / "a.jsonl", made)
    ran, _ = advantages(dump, tmp_path)
    assert "`response_length` is 0 in all of 2 responses" in ran.err
    assert "--map response_length=none" in ran.err
    convert(dump, tmp_path / "a.parquet")
    gains = advantages(tmp_path / "a.parquet", tmp_path, "--map", "response_length=none")[1]
    assert np.allclose(gains, [-0.707, 0.707])
