"""`rlpost advantages`: its plan, its summary, and what it prints in pipes and on terminals."""

from __future__ import annotations

import os
import pty
import re

import pyarrow.parquet as pq
import pytest
from runs import rollout, run, save, start, strict_json

COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3[0-9]|4[0-9]|9[0-7]|10[0-7])[0-9;]*m")


def test_the_plan_is_printed_and_nothing_is_written(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    ran = run("advantages", source, tmp_path / "out.parquet", "--plan", "--kl-coef", "0.1")
    assert ran.code == 0
    assert ran.err == ""
    for part in ("12 responses", "KL", "0.1", "group std", "returns", "✓"):
        assert part in ran.out
    assert list(tmp_path.iterdir()) == [source]
    long = run("advantages", source, "--plan", "--kl-coef", "0.1", "-v").out
    for part in ("1 read responses", "2 write", " B  ", "old_log_probs"):
        assert part in long
    existing = run("advantages", source, source, "--plan")
    assert "! " in existing.out
    assert "--overwrite" in existing.out
    assert "--overwrite" not in run("advantages", source, source, "--plan", "--overwrite").out


def test_quiet_prints_nothing(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    assert run("advantages", source, tmp_path / "out.parquet", "--quiet") == (0, "", "")


def test_the_summary_as_json_goes_to_a_file_or_to_stdout(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    ran = run("advantages", source, tmp_path / "a.parquet", "--summary-json", "-")
    summary = strict_json(ran.out)
    assert summary["schema_version"] == 2
    assert summary["responses"] == 12
    assert summary["outputs"] == [str(tmp_path / "a.parquet")]
    run("advantages", source, tmp_path / "b.parquet", "--summary-json", tmp_path / "s.json", "-q")
    assert set(strict_json((tmp_path / "s.json").read_text())) == set(summary)


def test_the_main_job_in_a_pipe_has_a_plain_summary_on_stderr_and_nothing_on_stdout(tmp_path):
    long = tmp_path / ("a-directory-with-a-long-name-" * 5)
    source = save(rollout(), long / "in.parquet")
    ran = run("advantages", source, long / "out.parquet", "--reward-clip", "1")
    assert (ran.code, ran.out) == (0, "")
    for part in ("12 responses", "3 groups of 4", "rewards to ±1"):
        assert part in ran.err
    assert "mask = response_mask" not in ran.err
    assert "\x1b" not in ran.err
    assert "…" not in ran.err
    assert str(long / "out.parquet") in ran.err.replace("\n", "")
    assert "advantages" in pq.read_schema(long / "out.parquet").names
    assert sorted(path.name for path in long.iterdir()) == ["in.parquet", "out.parquet"]


def on_a_terminal(*words: object, env: dict[str, str]) -> tuple[int, str]:
    """Exit code, and what a terminal is sent."""
    main_end, program_end = pty.openpty()
    process = start(*words, env=env, stdout=program_end, stderr=program_end, text=False)
    os.close(program_end)
    sent = b""
    try:
        while piece := os.read(main_end, 1 << 16):
            sent += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(main_end)
    return process.wait(), sent.decode()


@pytest.mark.nightly
def test_a_terminal_that_wants_no_colour_gets_none(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    plain = {"TERM": "xterm-256color", "NO_COLOR": "1"}
    code, sent = on_a_terminal("advantages", source, tmp_path / "a.parquet", env=plain)
    assert code == 0
    assert "12 responses" in sent
    assert not COLOUR.search(sent)
    code, sent = on_a_terminal("advantages", source, tmp_path / "b.parquet", env={"TERM": "dumb"})
    assert code == 0
    assert "12 responses" in sent
    assert "\x1b" not in sent
