"""`--to prime-rl`: annotations, folded onto the traces as prime-rl folds them."""

import json

import pyarrow.parquet as pq
import pytest
from exports import records
from format_writers import lines, made, prime_rl_traces

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
    rlpost.convert(lines(tmp_path / "folded.jsonl", episodes), tmp_path / "f.parquet", "prime-rl")
    ours, theirs = (pq.read_table(tmp_path / f"{name}.parquet").to_pylist() for name in ("e", "f"))
    for own, other in zip(ours, theirs, strict=True):
        numbers = zip(own["advantages"], own["response_mask"], strict=True)
        assert other["dumped_advantages"] == [x if keep else 0 for x, keep in numbers]
    assert any(any(own["advantages"]) for own in ours)


def test_a_wrong_sample_id_is_reported_before_lost_columns(source, tmp_path):
    with pytest.raises(DataError, match=r"row 0: `sample_id` is 's0'; TRACE:BRANCH is needed"):
        rlpost.export(source, tmp_path / "o", "prime-rl")
