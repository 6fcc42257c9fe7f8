"""The program: exit codes, errors, --debug, what is imported, and streams that end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import finished
from runs import PROGRAM, rollout, run, save, start

from rlpost.cli.app import COMMANDS
from rlpost.errors import ReadWriteError


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--version", 0),
        ("--help", 0),
        ("advantages --help", 0),
        ("estimators -h", 0),
        ("no-such-command", 2),
        ("advantages", 2),
        ("advantages one.parquet", 2),
        ("advantages a b --no-such-flag", 2),
        ("advantages a b --gamma x", 2),
        ("advantages a b --chunk-tokens 0", 2),
        ("advantages missing.parquet b", 4),
    ],
)
def test_exit_codes(words, code):
    assert run(*words.split()).code == code


def test_errors_go_to_stderr_with_the_programs_name_and_nothing_else():
    ran = run("advantages", "missing.parquet", "out.parquet")
    assert ran == (4, "", "error: missing.parquet: no such file or directory\n")


def test_debug_keeps_the_traceback_wherever_it_stands():
    with pytest.raises(ReadWriteError):
        run("--debug", "advantages", "missing.parquet", "out.parquet")
    with pytest.raises(ReadWriteError):
        run("advantages", "missing.parquet", "out.parquet", "--debug")


def test_errors_about_unknown_options_name_the_closest_one():
    ran = run("advantages", "a", "b", "--gama", "1")
    assert ran.code == 2
    assert "--gamma" in ran.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("inspec a", "error: no command 'inspec' tip: did you mean inspect?"),
        ("zzz", "error: no command 'zzz' tip: `rlpost --help` lists the commands"),
        ("advantages a b --gamma x", "error: --gamma x: must be a number from 0 to 1"),
        ("advantages a b --gamma=x", "error: --gamma x: must be a number from 0 to 1"),
        (
            "advantages a b --overlong-penalty 20 4 x",
            "--overlong-penalty 20 4 x: must be 3 numbers",
        ),
        ("advantages a b --chunk-tokens 0", "--chunk-tokens 0: must be an integer of at least 1"),
        (
            "inspect a --format jsn",
            "--format jsn: must be table, json or markdown tip: did you mean json?",
        ),
        ("advantages a b --gamma 2", "error: --gamma 2: must be a number from 0 to 1"),
        ("advantages a b --kl-target 1", "error: --kl-target needs --kl-coef above 0"),
        (
            "advantages a b --preset verk",
            "error: --preset: no preset 'verk' tip: did you mean verl?",
        ),
        ("loss a --loss pp", "error: --loss: no policy loss 'pp'"),
    ],
)
def test_errors_name_the_flag_and_the_value(words, text):
    ran = run(*words.split())
    assert (ran.code, ran.out) == (2, "")
    assert text in " ".join(ran.err.split())


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_names_every_option_in_full_when_piped(command):
    ran = run(*command.split(), "--help")
    assert ran.code == 0
    assert "…" not in ran.out
    assert "\x1b" not in ran.out


IMPORTED = """
import sys
from rlpost.cli.app import main
try:
    main()
except SystemExit:
    heavy = {"torch", "polars", "pyarrow", "numpy"}
    print(*(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["no-such-command"],
        ["advantages", "--help"],
        ["advantages", "only-one-path"],
        ["advantages", "a", "b", "--gamma", "2"],
    ],
    ids=" ".join,
)
def test_what_needs_no_numbers_does_not_wait_for_torch(words):
    command = [sys.executable, "-c", IMPORTED, *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stderr.splitlines()[-1] == ""


def test_completion_does_not_wait_for_torch():
    shell = {"_RLPOST_COMPLETE": "complete_bash", "COMP_WORDS": "rlpost adv", "COMP_CWORD": "1"}
    command = [sys.executable, "-X", "importtime", PROGRAM]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | shell
    )
    assert ran.stdout == "advantages\n"
    assert not re.search(r"\| +(torch|polars|pyarrow|numpy)\n", ran.stderr)


@pytest.mark.parametrize(
    ("words", "redirected"),
    [
        ("estimators", ">&-"),
        ("estimators", "| true"),
        ("advantages in.parquet out.parquet -q --summary-json -", ">/dev/full"),
        ("advantages in.parquet out.parquet -q --summary-json -", "| true"),
    ],
)
def test_a_stdout_that_takes_nothing_gives_no_traceback(tmp_path, words, redirected):
    save(rollout(), tmp_path / "in.parquet")
    command = ["sh", "-c", f"{PROGRAM} {words} {redirected}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr


def test_an_ascii_stream_gets_ascii():
    ran = finished(start("estimators", env={"PYTHONIOENCODING": "ascii"}))
    assert ran.code == 0
    assert "grpo" in ran.out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("convert --list", 141),
        ("inspect --help", 141),
        ("schema", 141),
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


@pytest.mark.parametrize("gone", ["gone.parquet", "gone*.parquet", "gone", "empty"])
@pytest.mark.parametrize(
    "words",
    [
        "advantages {} out.parquet",
        "plan {} out --state-dir state",
        "inspect {}",
        "inspect {} --row 1",
        "report {} -o out.html",
        "compare {} --estimator grpo --estimator rloo",
        "replay {} --preset verl",
        "loss {}",
        "convert {} out.parquet",
        "export {} out.jsonl --to jsonl",
        "verify {}",
    ],
)
def test_an_input_that_is_not_there_is_code_4_for_every_command(words, gone, tmp_path, monkeypatch):
    if words.startswith("report"):
        pytest.importorskip("altair")
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    ran = run(*words.format(gone).split())
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith(f"error: {gone}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
