"""`--update` of dumps that are read with files beside them."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from format_writers import made, prime_rl_traces
from updates import UPDATE, counts

import rlpost

WRITTEN = Path(__file__).parents[2] / "written"
RECIPE = rlpost.Recipe(unit="rollout")


def update(top, recipe=RECIPE):
    return counts(rlpost.advantages(top / "in", top / "out", recipe, options=UPDATE))


def rows_of(top):
    return [row for file in sorted((top / "out").rglob("*.parquet"))
            for row in pq.read_table(file).to_pylist()]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "changed", "rollouts"),
    [
        ("harbor/job", "fix-git__1/agent/trajectory.json", False),
        ("nemo_gym", "rollouts_failures.jsonl", True),
        ("trainers/open-instruct", "run__1_trainer_logprobs_step000007_rank00001.jsonl", False),
    ],
)
def test_a_file_that_is_read_with_a_dump_is_part_of_it(source, changed, rollouts, tmp_path):
    shutil.copytree(WRITTEN / source, tmp_path / "in")
    (tmp_path / "in" / "truth.jsonl").unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "in" / "fix-git__4", ignore_errors=True)  # alone, it has no rewards
    masked = rlpost.Recipe(
        estimator="reinforce", nonfinite="mask", unit="rollout" if rollouts else "row"
    )
    first = update(tmp_path, masked)
    rlpost.convert(tmp_path / "in", tmp_path / "all.parquet")
    assert len(rows_of(tmp_path)) == pq.read_table(tmp_path / "all.parquet").num_rows
    assert update(tmp_path, masked) == {}
    file = tmp_path / "in" / changed
    file.write_bytes(file.read_bytes() + b"\n")
    assert update(tmp_path, masked) == {"changed": 1}
    assert set(first) == {"new"}


def test_newer_annotations_are_read(tmp_path):
    traces = prime_rl_traces(tmp_path, made())
    stream, notes = tmp_path / "in" / "stream", tmp_path / "in" / "annotations" / "trainer"
    stream.mkdir(parents=True)
    notes.mkdir(parents=True)
    shutil.move(traces, stream / "00000.jsonl")
    first = json.loads((stream / "00000.jsonl").read_text().splitlines()[0])["traces"][0]
    tokens = [len(node["token_ids"]) for node in first["nodes"]]
    assert update(tmp_path) == {"new": 1}

    def annotate(entropy):
        note = {"version": 1, "trace_id": first["id"], "info": {},
                "branches": [{"index": 0, "entropies": [entropy] * sum(tokens)}]}  # fmt: skip
        with (notes / "00000.jsonl").open("a") as file:
            file.write(json.dumps(note) + "\n")

    for entropy in (0.5, 0.25):
        annotate(entropy)
        assert update(tmp_path) == {"changed": 1}
        (own,) = [row for row in rows_of(tmp_path) if row["rollout_id"] == first["id"]][:1]
        found = {
            x for x, policy in zip(own["entropy"], own["response_mask"], strict=True) if policy
        }
        assert found == {entropy}
        assert update(tmp_path) == {}
