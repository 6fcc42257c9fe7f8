"""Files of agents that their packages' own writers made (tests/written), against their objects."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from runs import run

from rlpost.errors import DataError
from rlpost.formats import detect
from rlpost.formats.convert import convert

WRITTEN = Path(__file__).parents[1] / "written"


def rows_of(source: Path, folder: Path) -> list[dict]:
    convert(source, folder / "out.parquet")
    return pq.read_table(folder / "out.parquet").to_pylist()


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
        assert row["loss_weights.echo"] == one["loss_weights"][begin:]
        assert row["is_content"] == one["is_content"][begin:]
        own = (row["reward"], row["truncated"], row["failure"], row["seconds"])
        assert own == (one["reward"], one["truncated"], one["failure"], one["seconds"])
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
