"""Dumps of prime-rl: traces and token exports."""

from __future__ import annotations

import json

import format_writers as writers
import pyarrow.parquet as pq
import pytest
from runs import run

from rlpost.errors import UsageError
from rlpost.formats.convert import convert


def test_prime_rl_gives_one_row_for_each_branch_of_a_trace(tmp_path):
    dump = writers.prime_rl_traces(tmp_path / "in", writers.made()[:1])
    (episode,) = map(json.loads, dump.read_text().splitlines())
    trace = episode["traces"][0]
    fork = dict(trace["nodes"][1], logprobs=[-9.0] * len(trace["nodes"][1]["logprobs"]))
    trace["nodes"].append(fork)
    convert(writers.lines(dump, [episode]), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["sample_id"].to_pylist() == ["trace0:0", "trace0:1"]
    assert table["rollout_id"].to_pylist() == ["trace0"] * 2
    assert table["reward"].to_pylist() == [writers.made()[0].reward] * 2
    assert table["infer_log_probs"][1].as_py() == fork["logprobs"]


def test_prime_rl_attempts_to_compact_count_only_if_they_were_resumed(tmp_path):
    dump = writers.prime_rl_traces(tmp_path / "in", writers.made()[:1])
    (episode,) = map(json.loads, dump.read_text().splitlines())
    nodes = episode["traces"][0]["nodes"]
    link = [{"node": 0, "type": "compaction_attempt"}]
    nodes.append({**nodes[1], "semantic_parents": link})
    convert(writers.lines(dump, [episode]), tmp_path / "out.parquet")
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 1
    nodes[-2]["semantic_parents"] = [{"node": len(nodes) - 1, "type": "compaction"}]
    convert(writers.lines(dump, [episode]), tmp_path / "two.parquet")
    assert pq.read_metadata(tmp_path / "two.parquet").num_rows == 2


def test_prime_rl_traces_of_both_cohorts_are_never_added_up(tmp_path):
    for cohort in ("all", "effective"):
        dump = writers.prime_rl_traces(tmp_path / "in", writers.made())
        target = tmp_path / "dump" / "step_7" / "train" / cohort / "traces.jsonl"
        target.parent.mkdir(parents=True)
        dump.rename(target)
    with pytest.raises(UsageError, match="twice, in all/ and in effective/"):
        convert(tmp_path / "dump", tmp_path / "out")


def test_rollouts_of_training_and_evaluation_are_never_mixed(tmp_path):
    dump = writers.slime_rollout(tmp_path, writers.made())
    (dump.parent / "eval_7.pt").write_bytes(dump.read_bytes())
    with pytest.raises(UsageError, match=r"of training and of evaluation \(.*eval_7\.pt\)"):
        convert(dump.parent, tmp_path / "out")
    convert(str(dump.parent / "[0-9]*.pt"), tmp_path / "out")
    convert(str(dump.parent / "eval_*.pt"), tmp_path / "out")
    assert len([*(tmp_path / "out").iterdir()]) == 2


def test_prime_rl_token_exports_have_no_rewards_and_advantages_says_so(tmp_path):
    dump = writers.prime_rl_tokens(tmp_path / "in", writers.made())
    ran = run("advantages", dump, tmp_path / "out.parquet", "--estimator", "grpo")
    assert ran.code == 3
    assert "traces.jsonl has them" in ran.err
