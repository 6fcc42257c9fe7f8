"""`--to prime-rl`: annotations, folded onto the traces as prime-rl folds them."""

import json
from pathlib import Path

import numpy as np
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
    rlpost.export(
        tmp_path / "e.parquet", tmp_path / "annotations" / "rlpost", "prime-rl", lossy=True
    )
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
    result = rlpost.export(tmp_path / "e.parquet", tmp_path / "out", "prime-rl", lossy=True)
    written = [one["trace_id"] for one in records(tmp_path / "out" / "00000.jsonl")]
    assert "early" in pq.read_table(tmp_path / "e.parquet")["rollout_id"].to_pylist()
    assert written
    assert "early" not in written
    assert any("without tokens" in one for one in result["warnings"])


def test_a_wrong_sample_id_is_an_error(source, tmp_path):
    with pytest.raises(DataError, match=r"row 0: `sample_id` is 's0'; TRACE:BRANCH is needed"):
        rlpost.export(source, tmp_path / "o", "prime-rl", lossy=True)
    assert not (tmp_path / "o").exists()


def stream_of(folder, tmp_path):
    """Traces as the file monitor seals them: numbered files of seekable zstd, and their index."""
    data = prime_rl_traces(tmp_path, made()).read_bytes()
    cut = data.index(b"\n", len(data) // 2) + 1
    stream = folder / "stream"
    stream.mkdir(parents=True)
    (stream / "00000.jsonl.zst").write_bytes(seekable(data[:cut]))
    (stream / "00001.jsonl").write_bytes(data[cut:])
    (folder / "stream.index.jsonl").write_text('{"line": 1, "offset": 0, "chunk": 0}\n')
    return data


def test_our_reader_folds_what_we_export_onto_the_stream(tmp_path):
    traces = tmp_path / "run" / "monitors" / "file" / "traces"
    stream_of(traces, tmp_path / "in")
    rlpost.convert(tmp_path / "run", tmp_path / "in.parquet")
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "e.parquet", rlpost.Recipe(gamma=0.9))
    rlpost.export(tmp_path / "e.parquet", traces / "annotations" / "rlpost", "prime-rl", lossy=True)
    summary = rlpost.convert(tmp_path / "run", tmp_path / "f.parquet")
    assert summary["skipped_files"] == []
    ours, theirs = (pq.read_table(tmp_path / f"{name}.parquet").to_pylist() for name in ("e", "f"))
    for own, other in zip(ours, theirs, strict=True):
        numbers = zip(own["advantages"], own["response_mask"], strict=True)
        assert other["dumped_advantages"] == [x if keep else 0 for x, keep in numbers]
    assert any(any(own["advantages"]) for own in ours)


def test_annotations_are_folded_newest_first_and_null_is_unknown(tmp_path):
    traces = tmp_path / "traces"
    data = stream_of(traces, tmp_path / "in")
    trace = json.loads(data.partition(b"\n")[0])["traces"][0]
    tokens = sum(len(node["token_ids"]) for node in trace["nodes"])

    def update(trace_id, step, **lists):
        branches = [{"index": 0, **lists}]
        return {"version": 1, "trace_id": trace_id, "info": {"ship": {"step": step}},
                "branches": branches}  # fmt: skip

    lines(traces / "annotations" / "trainer" / "00000.jsonl", [
        update(trace["id"], 3, trainer_logprobs=[-1.0] * tokens),
        update(trace["id"], 4, trainer_logprobs=[-2.5] * tokens, entropies=[None] * tokens),
        update(trace["id"], 4, mismatch_kl=[None] * (tokens - 1) + [0.5], spans=[None] * tokens),
        update("elsewhere", 4),
    ])  # fmt: skip
    summary = rlpost.convert(traces, tmp_path / "o.parquet")
    assert any("1 trace that the input lacks, such as elsewhere" in x for x in summary["warnings"])
    assert any("no column is made of the new `spans`" in x for x in summary["warnings"])
    first, *others = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert (first["step"], others[0]["step"]) == (4, 7)
    assert first["dumped_mismatch_kl"][-1] == 0.5
    assert np.isnan(first["dumped_mismatch_kl"][:-1]).any()
    for row, number in ((first, -2.5), (others[0], float("nan"))):
        sampled = zip(row["old_log_probs"], row["response_mask"], strict=True)
        assert {str(x) for x, keep in sampled if keep} == {str(number)}
    for wrong, message in (
        ({"version": 2, "trace_id": trace["id"], "spans": []}, r"`version` is 2; .*spans"),
        (update(trace["id"], 1, advantages=[0.0] * (tokens + 1)), "the branch has"),
        ({**update(trace["id"], 1), "branches": [{"index": 9}]}, "has branch 9 of trace"),
        ({"version": 1}, "not an annotation"),
    ):
        lines(traces / "annotations" / "later" / "00000.jsonl", [wrong])
        with pytest.raises(DataError, match=rf"later/00000\.jsonl, line 1: .*{message}"):
            rlpost.convert(traces, tmp_path / "o.parquet", overwrite=True)


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
