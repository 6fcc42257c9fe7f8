"""Logs of evaluations, as verifiers, inspect_ai, tau2-bench and terminal-bench write them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from dump_folders import rows_as_declared
from format_writers import lines
from runs import run

from rlpost.formats import detect
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert

WRITTEN = Path(__file__).parents[1] / "written"


def whole(path: Path, value: object) -> Path:
    """A file of one JSON value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1))
    return path


def read(source: Path, name: str, folder: Path) -> list[dict]:
    """The rows of a dump of this layout."""
    assert source.is_dir() or detect(source).name == name
    return rows_as_declared(source, folder, name)[0]


def check(rows: list[dict], **columns: list) -> None:
    """Check columns of the rows, and which of them are a group, by the number of its first row."""
    groups = [row["prompt_id"] for row in rows]
    got = {name: [row.get(name) for row in rows] for name in columns}
    got["groups"] = [groups.index(group) for group in groups]
    assert got == columns


def results(example: int, reward: float, **more: object) -> dict:
    """A record of verifiers; the prompt is the same for all, as that of a game."""
    return {"prompt": [{"role": "user", "content": "q"}], "answer": str(example), "task": "game",
            "completion": [{"role": "assistant", "content": "a"}], "reward": reward, "info": {},
            **more}  # fmt: skip


def test_results_of_older_verifiers(tmp_path):
    made = [results(i % 2, float(i == 0), id=5 - i, generation_ms=2.5, solved=i) for i in range(4)]
    rows = read(lines(tmp_path / "results.jsonl", made), "verifiers", tmp_path)
    check(rows, groups=[0, 1, 0, 1], reward=[1.0, 0.0, 0.0, 0.0], solved=[0.0, 1.0, 2.0, 3.0],
          prompt=["q"] * 4, response=["a"] * 4, domain=["game"] * 4, truncated=[None] * 4,
          response_length=[None] * 4)  # fmt: skip
    assert len({row["rollout_id"] for row in rows}) == 4


def test_results_of_newer_verifiers(tmp_path):
    error = {"error": "SandboxError", "error_chain_str": "SandboxError -> no box"}
    made = [
        results(i, 1.0 - i, example_id=0, is_truncated=i == 1, error=error if i == 2 else None,
                metrics={"turns": 2.0 * i}, token_usage={"output_tokens": 7.0 + i})
        for i in range(3)
    ]  # fmt: skip
    rows = read(lines(tmp_path / "results.jsonl", made), "verifiers", tmp_path)
    check(rows, groups=[0, 0, 0], truncated=[False, True, False], response_length=[7, 8, 9],
          failure=[None, None, "SandboxError"], error=[None, None, error["error_chain_str"]],
          **{"metrics.turns": [0.0, 2.0, 4.0]})  # fmt: skip


def test_results_that_verifiers_wrote(tmp_path):
    rows = read(WRITTEN / "evaluations" / "verifiers" / "results.jsonl", "verifiers", tmp_path)
    pair = [False, False]
    check(rows, groups=[0, 0, 0, 0, 4, 4, 4], rollout_id=["t0", "t0", "t1", "t1", "t2", "t2", "t3"],
          truncated=[*pair, False, True, *pair, False], reward=[1.0, 1.0, 0.0, 0.0, 0.5, 0.5, 0.0],
          response_token_ids=[[3, 4], [6]] * 3 + [[]], failure=[None] * 6 + ["SandboxError"],
          response=["6 x 7", "42"] * 3 + ["42"])  # fmt: skip


@pytest.mark.parametrize("kind", ["json", "eval"])
def test_logs_that_inspect_ai_wrote(kind, tmp_path):
    rows = read(WRITTEN / "evaluations" / f"inspect_ai.{kind}", "inspect-ai", tmp_path)
    check(rows, groups=[0, 1, 0, 1], reward=[1.0, 0.0, 0.0, 0.0], response_length=[4] * 4,
          response=["42", "43", "49", "it is 4"], truncated=[False, False, False, True],
          target=["42", "49", "42", "49"], epoch=[1, 1, 2, 2])  # fmt: skip


def test_rollouts_of_prime_rl_with_the_tokens_of_their_calls(tmp_path):
    def call(prompt: list[int], ids: list[int], **more: object) -> dict:
        tokens = {"prompt_ids": prompt, "completion_ids": ids, "completion_mask": [1] * len(ids),
                  "completion_logprobs": [-0.5] * len(ids), **more}  # fmt: skip
        return {"completion": [{"role": "assistant", "content": str(ids)}], "tokens": tokens}

    steps = [call([1, 2], [3]), call([1, 2, 3, 4], [5, 6], completion_mask=[1, 0])]
    made = [results(0, float(i), example_id=0, trajectory=steps, trajectory_id=f"t{i}",
                    advantage=i - 0.5) for i in range(2)]  # fmt: skip
    dump = lines(tmp_path / "step_3" / "train_rollouts.jsonl", made)
    rows = read(dump, "verifiers", tmp_path)
    check(rows, groups=[0] * 4, rollout_id=["t0", "t0", "t1", "t1"], turn=[0, 1, 0, 1],
          step=[3] * 4, response_mask=[[1], [1, 0]] * 2, response=["[3]", "[5, 6]"] * 2,
          response_token_ids=[[3], [5, 6]] * 2, infer_log_probs=[[-0.5], [-0.5] * 2] * 2,
          prompt_token_ids=[[1, 2], [1, 2, 3, 4]] * 2, branch=["0"] * 4,
          dumped_advantage=[-0.5, -0.5, 0.5, 0.5])  # fmt: skip
    ran = run("advantages", dump, tmp_path / "adv.parquet", "--estimator", "grpo")
    assert ran.code == 0, ran.err
    first = [x[0] for x in pq.read_table(tmp_path / "adv.parquet")["advantages"].to_pylist()]
    assert np.allclose(first, [-0.7071, -0.7071, 0.7071, 0.7071], atol=1e-4)


def sample(number: int, epoch: int, value: object, **more: object) -> dict:
    stop, usage = more.pop("stop", "stop"), {"m": {"output_tokens": 5}}
    choice = {"message": {"content": [{"type": "text", "text": "a"}]}, "stop_reason": stop}
    return {"id": number, "epoch": epoch, "input": f"q{number}", "target": "x", "messages": [],
            "output": {"choices": [choice]}, "scores": {"match": {"value": value},
            "judge": {"value": 0.25}}, "model_usage": usage, "events": [], **more}  # fmt: skip


SAMPLES = [
    sample(1, 1, "C"), sample(1, 2, "I", stop="max_tokens"),
    sample(2, 1, {"parts": 1}, limit={"type": "token", "limit": 9}),
    {**sample(2, 2, "P"), "scores": None, "error": {"message": "TimeoutError('late')"}},
]  # fmt: skip
"""An answer cut off, a score with parts, and a sample that failed."""


@pytest.mark.parametrize("kind", ["json", "eval"])
def test_logs_of_inspect_ai(kind, tmp_path):
    if kind == "json":
        log = {"version": 2, "eval": {"task": "t"}, "plan": {}, "samples": SAMPLES}
        source = whole(tmp_path / "log.json", log)
    else:
        source = tmp_path / "log.eval"
        with zipfile.ZipFile(source, "w") as archive:
            archive.writestr("_journal/start.json", '{"version": 2}')
            for one in SAMPLES:
                name = f"samples/{one['id']}_epoch_{one['epoch']}.json"
                archive.writestr(name, json.dumps(one))
            archive.writestr("header.json", "{}")
    rows = read(source, "inspect-ai", tmp_path)
    check(rows, groups=[0, 0, 2, 2], reward=[1.0, 0.0, 0.25, None], response=["a"] * 4,
          truncated=[False, True, True, False], response_length=[5] * 4, epoch=[1, 2, 1, 2],
          failure=[None, None, None, "TimeoutError"], prompt=["q1", "q1", "q2", "q2"],
          **{"score.judge": [0.25, 0.25, 0.25, None]})  # fmt: skip
    convert(source, tmp_path / "judge.parquet", options=ReadOptions({"reward": "score.judge"}))
    assert pq.read_table(tmp_path / "judge.parquet")["reward"].to_pylist()[:3] == [0.25] * 3


def test_results_of_tau2_and_of_tau_bench(tmp_path):
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    used = [{**message, "usage": {"completion_tokens": 4}} for message in said]
    ends = ["agent_stop", "max_steps", "infrastructure_error"]
    made = [{"id": f"s{i}", "task_id": "7", "trial": i, "termination_reason": end,
             "reward_info": {"reward": 1.0 - i} if i < 2 else None, "messages": used}
            for i, end in enumerate(ends)]  # fmt: skip
    info = {"environment_info": {"domain_name": "airline"}}
    rows = read(whole(tmp_path / "a.json", {"info": info, "tasks": [], "simulations": made}),
                "tau2", tmp_path)  # fmt: skip
    check(rows, groups=[0] * 3, reward=[1.0, 0.0, None], truncated=[False, True, False],
          failure=[None, None, ends[2]], domain=["airline"] * 3, response_length=[4] * 3,
          trial=[0, 1, 2])  # fmt: skip
    old = [
        {"task_id": 3, "reward": 0.5, "info": {}, "traj": said, "trial": 0},
        {"task_id": 4, "reward": 0.0, "info": {"error": "late"}, "traj": [], "trial": 0},
    ]
    rows = read(whole(tmp_path / "b.json", old), "tau2", tmp_path)
    check(rows, groups=[0, 1], reward=[0.5, 0.0], failure=[None, "error"], error=[None, "late"],
          messages=[json.dumps(said[1:]), "[]"], response_length=[None] * 2)  # fmt: skip


def test_results_of_terminal_bench_are_those_of_the_run_where_it_has_them(tmp_path):
    ends = [(True, "unset"), (False, "agent_timeout"), (None, "parse_error"), (None, None)]
    trials = [{"trial_name": f"t.{i}", "task_id": "t", "is_resolved": solved, "failure_mode": mode,
               "instruction": "do", "total_output_tokens": 9 * i,
               "agent_started_at": "2025-07-11T21:28:04+00:00",
               "agent_ended_at": "2025-07-11T21:28:06.5+00:00"}
              for i, (solved, mode) in enumerate(ends)]  # fmt: skip
    for i, trial in enumerate(trials):
        whole(tmp_path / "run" / "t" / f"t.{i}" / "results.json", trial)
    expected = {
        "groups": [0] * 4, "reward": [1.0, 0.0, None, None], "sample_id": ["t.0", "t.1", "t.2",
        "t.3"], "truncated": [False, True, False, False],
        "failure": [None, None, "parse_error", "no result"], "response_length": [None, 9, 18, 27],
    }  # fmt: skip
    check(read(tmp_path / "run", "terminal-bench", tmp_path), **expected)
    whole(tmp_path / "run" / "results.json",
          {"results": trials, "n_resolved": 1, "n_unresolved": 1, "accuracy": 0.25})  # fmt: skip
    check(read(tmp_path / "run", "terminal-bench", tmp_path), **expected)
