"""Attempts of a run in dumps: those that count, and those that are left out."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
from stream_of_episodes import episode, write_stream

import rlpost


def converted(folder, where, **options):
    """The ids of the rows that match, and the summary."""
    out = folder / "o.parquet"
    summary = rlpost.convert(folder, out, where=where, overwrite=True, **options)
    return pq.read_table(out)["rollout_id"].to_pylist(), summary


def test_the_newest_attempt_of_a_step_is_kept(tmp_path):
    first = [episode(i, step=i, run="a") for i in range(4)]
    second = [episode(i + 9, step=i, run="b") for i in (2, 3)]
    stream = write_stream(tmp_path / "a", [first, second])
    rows, summary = converted(tmp_path / "a", None)
    assert rows == ["t0.0", "t1.0", "t11.0", "t12.0"]
    assert summary["attempts"] == {"kept": "newest", "left_out": 2}
    assert any("2 rows" in text and "--attempts all" in text for text in summary.warnings)
    assert summary["responses"] == 4
    every, summary = converted(tmp_path / "a", None, attempts="all")
    assert (len(every), summary["attempts"]["left_out"]) == (6, 0)
    attempts = pq.read_table(tmp_path / "a" / "o.parquet")["run_attempt"].to_pylist()
    assert attempts == [1, 1, 1, 1, 2, 2]
    # The newest attempt of a step counts, though none of its rows match.
    rows, _ = converted(tmp_path / "a", "rollout_id in ('t1.0', 't2.0', 't12.0')")
    assert rows == ["t1.0", "t12.0"]
    assert json.loads((stream / "00000.jsonl").read_text().splitlines()[0])["id"] == "e0"


def test_attempts_span_the_files_of_a_conversion(tmp_path):
    for attempt, steps in ((1, (0, 1)), (2, (1, 2))):
        rows = [{"prompt_id": "a", "reward": 1.0, "step": step, "run_attempt": attempt}
                for step in steps]  # fmt: skip
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{attempt}.jsonl").write_text(lines)
    summary = rlpost.convert(tmp_path / "in", tmp_path / "out")
    assert (summary["responses"], summary["attempts"]["left_out"]) == (3, 1)
    for attempt, steps in ((1, [0]), (2, [1, 2])):
        assert pq.read_table(tmp_path / "out" / f"{attempt}.parquet")["step"].to_pylist() == steps


def test_a_rollout_that_was_tried_again_is_its_newest_attempt(tmp_path):
    """Without an id a row is no attempt at a rollout; null is before all others."""
    rows = [
        ("0", 0, 1, False), ("0", 1, 0, True), ("1", 0, 1, True), ("2", None, 1, False),
        ("2", 0, 0, True), (None, 0, 1, True), (None, 1, 0, True),
    ]  # fmt: skip
    lines = [{"prompt_id": "a", "rollout_id": rollout, "attempt": attempt, "reward": reward,
              "step": 1, "n": i}
             for i, (rollout, attempt, reward, _) in enumerate(rows)]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = rlpost.convert(tmp_path / "in.jsonl", tmp_path / "o.parquet")
    kept = pq.read_table(tmp_path / "o.parquet")["n"].to_pylist()
    assert kept == [i for i, (*_, newest) in enumerate(rows) if newest]
    assert summary["attempts"] == {"kept": "newest", "left_out": 2}
    for line in lines:
        del line["rollout_id"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = rlpost.convert(tmp_path / "in.jsonl", tmp_path / "o.parquet", overwrite=True)
    assert summary["responses"] == len(rows)
