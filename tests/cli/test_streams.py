"""Streams of the program: closed ones, full ones, and ones of ASCII alone."""

from __future__ import annotations

import os
import subprocess

import pytest
from runs import PROGRAM, rollout, save

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("code", "before", "words"),
    [
        (0, "", "list estimators >&-"),
        (0, "", "list estimators | true"),
        (4, "", "advantages in.parquet out.parquet -q --summary-json - >/dev/full"),
        (4, "", "advantages in.parquet out.parquet 2>/dev/full"),
        (4, "", "list estimators >/dev/full"),
        (0, "", "advantages in.parquet out.parquet -q --summary-json - | true"),
        *((4, f"ulimit -n {files};", "inspect in.parquet") for files in (4, 5, 6, 7)),
        *(
            (5, f"ulimit -v {size};", "inspect in.parquet")
            for size in (20000, 50000, 120000, 180000, 200000)
        ),
    ],
)
def test_what_takes_nothing_more_gives_no_traceback(tmp_path, code, before, words):
    save(rollout(), tmp_path / "in.parquet")
    command = ["sh", "-c", f"{before} {PROGRAM} {words}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    assert ran.returncode == code
    assert ("error: " in ran.stderr) == (code > 0 and "2>" not in words)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("list dumps", 141),
        ("inspect --help", 141),
        ("config schema", 141),
        ("inspect nosuch.parquet", 4),
    ],
)
def test_a_closed_pipe_ends_a_command_without_output(words, code, tmp_path):
    for streams in (("stdout",), ("stdout", "stderr")):
        listening, telling = os.pipe()
        os.close(listening)
        with (tmp_path / "told").open("w") as told:
            where = {"stdout": told, "stderr": told, **dict.fromkeys(streams, telling)}
            ended = subprocess.run([PROGRAM, *words.split()], **where, cwd=tmp_path, check=False)
        os.close(telling)
        lines = (tmp_path / "told").read_text().splitlines()
        assert ended.returncode == code, (streams, lines)
        assert len(lines) == (code != 141 and "stderr" not in streams), lines
