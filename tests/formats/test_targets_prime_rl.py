"""`--to prime-rl`: annotations, folded onto the traces as prime-rl folds them."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from exports import records
from format_writers import lines, made, prime_rl_traces, seekable

import rlpost
from rlpost.errors import DataError


def fold(trace, update):
    """Annotations onto nodes, as prime_rl/monitors/file/traces/update.py projects them."""
    nodes = trace["nodes"]
    inner = {node["parent"] for node in nodes}
    leaves = [i for i in range(len(nodes)) if i not in inner]
    for branch in update["branches"]:
        path, at = [], leaves[branch["index"]]
        while at is not None:
            path.insert(0, nodes[at])
            at = nodes[at]["parent"]
        for name in ("advantages", "trainer_logprobs", "entropies"):
            stream, begin = branch.get(name), 0
            for node in path if stream else ():
                part = stream[begin : begin + len(node["token_ids"])]
                begin += len(node["token_ids"])
                values = [x for x, sampled in zip(part, node["mask"], strict=True) if sampled]
                if values and None not in values:
                    node[name] = values


def test_prime_rl_folds_the_annotations_onto_its_traces(tmp_path):
    path = prime_rl_traces(tmp_path, made())
    rlpost.convert(path, tmp_path / "in.parquet")
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "e.parquet", rlpost.Recipe(gamma=0.9))
    rlpost.export(tmp_path / "e.parquet", tmp_path / "annotations" / "rlpost", "prime-rl")
    stream = (tmp_path / "annotations" / "rlpost" / "00000.jsonl").read_bytes()
    updates = {}
    for row in records(tmp_path / "annotations" / "rlpost.index.jsonl"):
        update = json.loads(stream[row["offset"] :].partition(b"\n")[0])
        assert update["trace_id"] == row["trace_id"]
        updates[row["trace_id"]] = update
    episodes = records(path)
    for trace in (trace for episode in episodes for trace in episode["traces"]):
        if trace["id"] in updates:
            for node in trace["nodes"]:
                node.pop("advantages", None)
            fold(trace, updates.pop(trace["id"]))
    assert updates == {}
    rlpost.convert(
        lines(tmp_path / "folded.jsonl", episodes), tmp_path / "f.parquet", source="prime-rl"
    )
    ours, theirs = (pq.read_table(tmp_path / f"{name}.parquet").to_pylist() for name in ("e", "f"))
    for own, other in zip(ours, theirs, strict=True):
        numbers = zip(own["advantages"], own["response_mask"], strict=True)
        assert other["dumped_advantages"] == [x if keep else 0 for x, keep in numbers]
    assert any(any(own["advantages"]) for own in ours)


def test_a_trace_that_failed_before_its_first_token_has_no_annotation(tmp_path):
    traces = Path(__file__).parents[1] / "written" / "verifiers" / "traces.jsonl"
    rlpost.convert(traces, tmp_path / "in.parquet")
    recipe = rlpost.Recipe(estimator="reinforce", rollout_reward="last")
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "e.parquet", recipe)
    result = rlpost.export(tmp_path / "e.parquet", tmp_path / "out", "prime-rl")
    written = [one["trace_id"] for one in records(tmp_path / "out" / "00000.jsonl")]
    assert "early" in pq.read_table(tmp_path / "e.parquet")["rollout_id"].to_pylist()
    assert written
    assert "early" not in written
    assert any("without tokens" in one for one in result["warnings"])


def test_a_wrong_sample_id_is_an_error(source, tmp_path):
    with pytest.raises(DataError, match=r"row 0: `sample_id` is 's0'; TRACE:BRANCH is needed"):
        rlpost.export(source, tmp_path / "o", "prime-rl")
    assert not (tmp_path / "o").exists()


def test_annotations_beside_a_stream_are_no_dump_and_are_left_out_by_name(tmp_path):
    """The stream as the file monitor seals it: numbered files of seekable zstd, and their index."""
    data = prime_rl_traces(tmp_path / "in", made()).read_bytes()
    cut = data.index(b"\n", len(data) // 2) + 1
    traces = tmp_path / "run" / "traces"
    (traces / "stream").mkdir(parents=True)
    (traces / "stream" / "00000.jsonl.zst").write_bytes(seekable(data[:cut]))
    (traces / "stream" / "00001.jsonl").write_bytes(data[cut:])
    (traces / "stream.index.jsonl").write_text('{"line": 1, "offset": 0, "chunk": 0}\n')
    rlpost.convert(tmp_path / "run", tmp_path / "in.parquet")
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "e.parquet", rlpost.Recipe(gamma=0.9))
    rlpost.export(tmp_path / "e.parquet", traces / "annotations" / "rlpost", "prime-rl")
    summary = rlpost.convert(tmp_path / "run", tmp_path / "f.parquet")
    assert summary["skipped_files"] == []
    assert "annotations" in summary["warnings"][-1]
    first, second = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("in", "f"))
    assert str(first.to_pylist()) == str(second.to_pylist())


def test_a_file_whose_traces_all_failed_early_has_empty_prompts(tmp_path):
    traces = Path(__file__).parents[1] / "written" / "verifiers" / "traces.jsonl"
    *others, early = traces.read_bytes().splitlines(keepends=True)
    stream = tmp_path / "run" / "stream"
    stream.mkdir(parents=True)
    (stream / "00000.jsonl").write_bytes(b"".join(others))
    (stream / "00001.jsonl").write_bytes(early)
    rlpost.convert(tmp_path / "run", tmp_path / "in.parquet")
    prompts = pq.read_table(tmp_path / "in.parquet")["prompt_token_ids"].to_pylist()
    assert prompts[-1] == []
    assert all(prompts[:-1])
