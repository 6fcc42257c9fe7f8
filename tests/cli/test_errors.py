"""Every error that a user can hit has one shape: `error:` and a sentence, what to do below it."""

from __future__ import annotations

import math
import os
import pty
import re
import subprocess
import sys

import pyarrow as pa
import pytest
from runs import PROGRAM, rollout, run, save

COLUMNS = rollout().column_names
REWARDS = rollout()["reward"].to_pylist()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, with a good file and some that lack something."""
    monkeypatch.chdir(tmp_path)
    save(rollout(), tmp_path / "in.parquet")
    save(rollout().rename_columns(["prompt" if x == "prompt_id" else x for x in COLUMNS]),
         tmp_path / "nogroup.parquet")  # fmt: skip
    named = rollout().append_column("reward_correct", pa.array(REWARDS))
    save(named.append_column("reward_format", pa.array(REWARDS)).drop_columns(["reward"]),
         tmp_path / "noreward.parquet")  # fmt: skip
    nan = pa.array([*REWARDS[:5], math.nan, *REWARDS[6:]], rollout().schema.field("reward").type)
    save(rollout().set_column(COLUMNS.index("reward"), "reward", nan), tmp_path / "bad.parquet")
    (tmp_path / "r.toml").write_text("gama = 1\n")
    return tmp_path


# Command line, exit code, what the sentence has, and what the lines below it have.
ERRORS = [
    # the option parser's
    ("advantages in.parquet o --estimater grpo", 2, ["--estimater"], ["--estimator"]),
    ("advantages in.parquet o --reward-clip abc", 2, ["--reward-clip abc", "number"], []),
    ("advantages in.parquet o --gamma", 2, ["--gamma", "FLOAT"], []),
    ("advantages in.parquet o --overlong-penalty 3 4", 2, ["--overlong-penalty", "3"], []),
    ("advantages in.parquet o --quiet=1", 2, ["--quiet"], []),
    ("advantages in.parquet o --chunk-tokens 0", 2, ["--chunk-tokens 0", "1"], []),
    ("inspect in.parquet --format jsn", 2, ["--format jsn", "markdown"], ["json"]),
    ("report in.parquet", 2, ["in.parquet", "OUT"], ["rlpost report in.parquet report.html"]),
    ("verify", 2, ["FILE..."], ["rlpost verify FILE..."]),
    ("help pipeline advantages", 2, ["advantages"], ["rlpost help"]),
    ("verify in.parquet --gamma 1", 2, ["--gamma"], ["rlpost advantages"]),
    ("verify in.parquet --help-all", 2, ["--help-all"], ["rlpost verify --help"]),
    ("inspct in.parquet", 2, ["inspct"], ["inspect"]),
    ("presets dif verl trl", 2, ["dif"], ["diff"]),
    ("config shwo", 2, ["shwo"], ["show"]),
    # the recipe's
    ("advantages in.parquet o --gamma 1.5", 2, ["--gamma 1.5", "from 0 to 1"], []),
    ("advantages in.parquet o --reward-clip 0", 2, ["--reward-clip 0", "above 0"], []),
    ("advantages in.parquet o --norm-std grup", 2, ["--norm-std grup", "batch"], ["group"]),
    ("advantages in.parquet o --numerics norm_eps=-1", 2, ["--numerics norm_eps=-1", "0"], []),
    ("advantages in.parquet o --config r.toml", 2, ["r.toml", "gama"], ["gamma"]),
    ("advantages in.parquet o --preset verll", 2, ["--preset", "verll"], ["verl"]),
    ("advantages in.parquet o --lam 0.9", 2, ["--lam", "grpo", "gae"], []),
    ("advantages in.parquet o --is-floor 1", 2, ["--is-floor", "--is-weight"], []),
    ("advantages in.parquet o --map reward=rewrd", 3, ["--map reward=rewrd"], ["reward"]),
    # files
    ("advantages im.parquet o", 4, ["im.parquet"], ["in.parquet"]),
    ("advantages in.parquet bad.parquet", 2, ["bad.parquet"], ["--overwrite"]),
    ("convert im.parquet o", 4, ["im.parquet"], ["in.parquet"]),
    # data
    ("advantages noreward.parquet o", 3, ["noreward.parquet", "reward", "scores"],
     ["candidates: reward_format, reward_correct", "--map reward=COLUMN"]),
    ("advantages nogroup.parquet o", 3, ["nogroup.parquet", "group", "estimator grpo"],
     ["candidates: prompt", "--map group=prompt"]),
    ("advantages bad.parquet o", 3, ["bad.parquet", "row 5", "`reward`", "nan"],
     ["rlpost inspect bad.parquet"]),
    # conversions
    ("convert in.parquet", 2, ["OUT"], ["--list"]),
    ("convert in.parquet o --from verll", 2, ["--from verll"], ["verl"]),
    ("export in.parquet", 2, ["OUT", "--to"], ["jsonl"]),
    ("export in.parquet o --to tinkr", 2, ["--to tinkr"], ["tinker"]),
]  # fmt: skip


def parts(text: str) -> tuple[str, str]:
    """The sentence and what is below it."""
    first, *below = text.splitlines()
    assert first.startswith("error: ")
    assert all(re.match(r"  (candidates|tip): \S", line) for line in below), text
    return first, "\n".join(below)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("words", "code", "sentence", "below"), ERRORS)
def test_an_error_is_a_sentence_and_what_to_do(words, code, sentence, below):
    ran = run(*words.split())
    assert (ran.code, ran.out) == (code, "")
    first, advice = parts(ran.err)
    assert [one for one in sentence if one not in first] == []
    assert [one for one in below if one not in advice] == []


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("words", [words for words, *_ in ERRORS])
def test_no_phrase_of_a_library_comes_through(words):
    text = run(*words.split()).err
    assert not re.search(r"(?i)input should|unable to parse|invalid value|usage:|try '|[│╭]", text)


def test_an_option_that_no_command_has_names_no_command():
    ran = run("verify", "in.parquet", "--no-such-thing")
    assert (ran.code, "have it" in ran.err) == (2, False)
    assert "rlpost verify --help" in ran.err


def on_terminal(here, words: str, columns: int, **variables: str) -> str:
    """What the program prints on stderr if that is a terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns)} | variables
    with os.fdopen(ours, "rb", closefd=True) as screen:
        subprocess.run(
            [sys.executable, PROGRAM, *words.split()],
            cwd=here, stderr=theirs, stdout=subprocess.DEVNULL, env=environment, check=False,
        )  # fmt: skip
        os.close(theirs)
        text = b""
        try:
            while piece := screen.read1(65536):
                text += piece
        except OSError:  # the other end is closed
            pass
    return text.decode().replace("\r\n", "\n")


def test_on_a_terminal_it_is_red_and_breaks_between_words(here):
    shown = on_terminal(here, "advantages noreward.parquet o", 50)
    assert "\x1b[1;31merror:\x1b[0m" in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert max(map(len, plain.splitlines())) <= 50
    assert " ".join(plain.split()) == " ".join(
        run("advantages", "noreward.parquet", "o").err.split()
    )


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours_it_is_plain(here, variables):
    shown = on_terminal(here, "advantages noreward.parquet o", 80, **variables)
    assert "\x1b[1;31m" not in shown
    assert "31m" not in shown


@pytest.mark.usefixtures("here")
def test_in_a_pipe_a_sentence_is_one_line():
    text = run("advantages", "noreward.parquet", "o").err
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text
