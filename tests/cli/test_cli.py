"""The command line: exit codes, streams, and whole processes; test_recipe.py has the options."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from runs import PROGRAM, Ran, rollout, run, save, start, strict_json

from rlpost.cli.app import COMMANDS
from rlpost.errors import ReadWriteError
from rlpost.recipe.loss import DEFAULTS

COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3[0-9]|4[0-9]|9[0-7]|10[0-7])[0-9;]*m")


# In this process


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
    assert ran == (4, "", "rlpost: missing.parquet: no such file or directory\n")


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
        ("inspec a", "rlpost: no command 'inspec'; did you mean inspect?"),
        ("zzz", "rlpost: no command 'zzz'; `rlpost --help` lists the commands"),
        ("advantages a b --gamma x", "Invalid value for '--gamma': 'x': input should be"),
        ("advantages a b --gamma=x", "Invalid value for '--gamma': 'x': input should be"),
        ("advantages a b --overlong-penalty 20 4 x", "'20 4 x': input should be a valid number"),
        ("advantages a b --chunk-tokens 0", "'--chunk-tokens': '0': input should be greater"),
        ("inspect a --format jsn", "'--format': 'jsn' is not one of 'table', 'json', 'markdown'"),
        ("advantages a b --gamma 2", "rlpost: --gamma is 2.0: input should be less"),
        ("advantages a b --kl-target 1", "rlpost: --kl-target needs --kl-coef above 0"),
        ("advantages a b --preset verk", "rlpost: --preset: no preset 'verk'; did you mean verl?"),
        ("loss a --loss pp", "rlpost: --loss: no policy loss 'pp'"),
    ],
)
def test_errors_name_the_flag_and_the_value(words, text):
    ran = run(*words.split())
    assert (ran.code, ran.out) == (2, "")
    assert text in " ".join(ran.err.replace("│", " ").split())


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_names_every_option_in_full_when_piped(command):
    ran = run(*command.split(), "--help")
    assert ran.code == 0
    assert "…" not in ran.out
    assert "\x1b" not in ran.out


def test_the_estimators_have_formula_columns_and_source():
    ran = run("estimators")
    assert ran.code == 0
    for part in ("grpo", "dr_grpo", "reward, values", "arXiv 1506.02438", "r - mean_g"):
        assert part in ran.out
    assert "…" not in ran.out


def test_the_losses_have_formula_columns_options_and_source():
    ran = run("losses")
    assert ran.code == 0
    for part in (
        "kl_cov",
        "advantages, log_probs, old_log_probs",
        "-stop(clip(r, low, high))·A·log π",
        "seq-mean-token-mean",
        "cov_share 0.0002",
        "arXiv 2505.22617",
        "log_probs, old_log_probs, ref_log_probs",
    ):
        assert part in ran.out
    assert "…" not in ran.out
    rows = json.loads(run("losses", "--format", "json").out)
    assert {row["loss"]: row["options"] | {"aggregation": row["aggregation"]} for row in rows} == (
        DEFAULTS
    )
    two = json.loads(run("losses", "gspo", "ppo", "--format", "json").out)
    assert [row["loss"] for row in two] == ["gspo", "ppo"]
    wrong = run("losses", "gsppo")
    assert wrong.code == 2
    assert "did you mean gspo" in wrong.err
    markdown = run("losses", "ppo", "--format", "markdown").out
    assert "| ppo | advantages, log_probs, old_log_probs |" in markdown


def test_the_plan_is_printed_and_nothing_is_written(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    ran = run("advantages", source, tmp_path / "out.parquet", "--plan", "--kl-coef", "0.1")
    assert ran.code == 0
    assert ran.err == ""
    for part in (
        "12 responses",
        "1 read responses",
        "2 write",
        " B  ",
        "old_log_probs",
        "kl, token rewa",
    ):
        assert part in ran.out
    assert list(tmp_path.iterdir()) == [source]
    assert run("advantages", source, "--plan", "--kl-coef", "0.1") == ran


def test_quiet_prints_nothing(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    assert run("advantages", source, tmp_path / "out.parquet", "--quiet") == (0, "", "")


def test_the_summary_as_json_goes_to_a_file_or_to_stdout(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    ran = run("advantages", source, tmp_path / "a.parquet", "--summary-json", "-")
    summary = strict_json(ran.out)
    assert summary["schema_version"] == 1
    assert summary["responses"] == 12
    assert summary["outputs"] == [str(tmp_path / "a.parquet")]
    run("advantages", source, tmp_path / "b.parquet", "--summary-json", tmp_path / "s.json", "-q")
    assert set(strict_json((tmp_path / "s.json").read_text())) == set(summary)


# Whole processes


def finished(process) -> Ran:
    out, err = process.communicate(timeout=60)
    return Ran(process.returncode, out, err)


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


def test_the_main_job_in_a_pipe_has_a_plain_summary_on_stderr_and_nothing_on_stdout(tmp_path):
    long = tmp_path / ("a-directory-with-a-long-name-" * 5)
    source = save(rollout(), long / "in.parquet")
    ran = finished(start("advantages", source, long / "out.parquet", "--reward-clip", "1"))
    assert (ran.code, ran.out) == (0, "")
    for part in (
        "12 responses",
        "3 prompt groups of 4",
        "response rewards clipped",
        "mask = response_mask",
    ):
        assert part in ran.err
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


def test_an_interrupt_ends_with_130_and_leaves_nothing_behind(tmp_path):
    source = save(rollout(4_000), tmp_path / "in.parquet", rows=4_000)
    target = tmp_path / "out"
    target.mkdir()
    process = start("advantages", source, target / "o.parquet", "--chunk-tokens", "1")
    while not list(target.iterdir()) and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.2)  # let it write
    process.send_signal(signal.SIGINT)
    ran = finished(process)
    assert ran.code == 130
    assert "Traceback" not in ran.err
    assert list(target.iterdir()) == []


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
    assert ran.err.startswith(f"rlpost: {gone}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
