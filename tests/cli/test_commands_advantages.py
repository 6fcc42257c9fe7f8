"""`rlpost advantages`: its plan, its summary, and what it prints in pipes and on terminals."""

from __future__ import annotations

import os
import pty
import re

import pyarrow.parquet as pq
import pytest
from runs import rollout, run, save, start, strict_json

COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3[0-9]|4[0-9]|9[0-7]|10[0-7])[0-9;]*m")


@pytest.fixture
def source(tmp_path):
    return save(rollout(), tmp_path / "in.parquet")


def test_the_plan_is_printed_and_nothing_is_written(source, tmp_path):
    ran = run("advantages", source, tmp_path / "out.parquet", "--plan", "--kl-coef", "0.1")
    assert (ran.code, ran.err) == (0, "")
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


def test_the_summary_is_plain_text_on_stderr_or_json_in_a_file_or_on_stdout(tmp_path):
    long = tmp_path / ("a-directory-with-a-long-name-" * 5)
    source = save(rollout(), long / "in.parquet")
    ran = run("advantages", source, long / "out.parquet", "--reward-clip", "1")
    assert (ran.code, ran.out) == (0, "")
    for part in ("12 responses", "3 groups of 4", "rewards to ±1", str(long / "out.parquet")):
        assert part in ran.err
    assert not {"mask = response_mask", "\x1b", "…"} & {*re.findall("mask = \\w+|\x1b|…", ran.err)}
    assert "advantages" in pq.read_schema(long / "out.parquet").names
    assert sorted(path.name for path in long.iterdir()) == ["in.parquet", "out.parquet"]
    summary = strict_json(run("advantages", source, long / "a.parquet", "--summary-json", "-").out)
    assert (summary["schema_version"], summary["responses"]) == (2, 12)
    assert summary["outputs"] == [str(long / "a.parquet")]
    words = ("advantages", source, long / "b.parquet", "-q", "--summary-json", long / "s.json")
    assert run(*words) == (0, "", "")
    assert set(strict_json((long / "s.json").read_text())) == set(summary)


def test_a_reward_of_rollouts_without_rollouts_is_warned_of_or_an_error(source, tmp_path):
    words = ("--rollout-reward", "last")
    ran = run("advantages", source, tmp_path / "out.parquet", *words)
    assert ran.code == 0
    assert ran.err.splitlines()[-1].startswith("warning: --rollout-reward last has no effect")
    for command in (("inspect", source), ("inspect", source, "--row", "1")):
        ran = run(*command, *words)
        assert ran.code == 2
        assert ran.err.startswith("error: --rollout-reward last has no effect")


def on_a_terminal(*words: object, env: dict[str, str]) -> str:
    """What a terminal is sent by a process that succeeds."""
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
    assert process.wait() == 0
    return sent.decode()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("environment", "unseen"),
    [({"TERM": "xterm-256color", "NO_COLOR": "1"}, COLOUR), ({"TERM": "dumb"}, re.compile("\x1b"))],
    ids=["NO_COLOR", "dumb"],
)
def test_a_terminal_that_wants_no_colour_gets_none(source, tmp_path, environment, unseen):
    sent = on_a_terminal("advantages", source, tmp_path / "a.parquet", env=environment)
    assert "12 responses" in sent
    assert not unseen.search(sent)
