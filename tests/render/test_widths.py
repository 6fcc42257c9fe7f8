"""Screens: none is wider than the terminal, pipes get plain text, and help finds every word."""

from __future__ import annotations

import io
import re

import pyarrow.parquet as pq
import pytest
from compared_files import ARITHMETIC, CALCULATOR
from runs import run

from rlpost.cli.app import COMMANDS
from rlpost.cli.render.catalogue import KINDS
from rlpost.cli.search import answer

SCREENS = [
    "inspect IN -v",
    "inspect TURNS -v",
    "inspect IN --about checks",
    "inspect IN --row 3 --colour logprob",
    "inspect IN --worst",
    "advantages IN --plan -v",
    "compare IN --estimator grpo --estimator rloo",
    "compare OUT OUT",
    "loss OUT",
    "loss OUT --sweep pg_clip=0.1,0.2",
    "replay OUT --preset verl",
    "verify OUT",
    *(f"list {kind}" for kind in KINDS),
    "list",
    "list losses tis",
    "list checks unequal_lengths",
    "config diff verl trl",
    "config diff verl trl IN --estimator grpo",
    "config show --preset verl --all",
    "help",
    *(f"{command} --help" for command in COMMANDS),
]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A few rollouts of one turn and of several, and what a run makes of them."""
    home = tmp_path_factory.mktemp("a directory of files with a long name of a terminal")
    files = {}
    for name, source, words in (("", ARITHMETIC, ()), ("TURNS", CALCULATOR, ("--unit", "row"))):
        path = home / f"{name or 'in'}.parquet"
        pq.write_table(pq.read_table(source).slice(0, 64), path)
        files[name or "IN"] = path
        files[f"{name}_OUT".strip("_")] = target = home / f"{name}out.parquet"
        assert run("advantages", path, target, *words, "-q").code == 0
    return files


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_fits_is_plain_in_a_pipe_and_has_words_that_help_finds(screen, files, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    words = [files.get(word, word) for word in screen.split()]
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        ran = run(*words, out=Terminal())
        assert ran.code in (0, 1), ran.err
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in ran.out.splitlines()]
        assert lines
        assert [line for line in lines if len(line) > width] == []
    monkeypatch.delenv("COLUMNS")
    piped = run(*words)
    assert "\x1b" not in piped.out
    assert "…" not in piped.out
    if words[0] not in ("list", "config", "help") and "--help" not in words:
        assert unknown(piped.out) == set()


def unknown(text):
    """The words of a screen that help does not find, without paths, ids and versions."""
    words = re.findall(r"[A-Za-z][A-Za-z_]{2,}", re.sub(r"\S*[/\d]\S*", " ", text))
    return {word for word in words if not answer(word)}


WRITTEN = """
advantages IN NEW -v
advantages IN NEW --estimator gae --kl-coef 0.05 --whiten-advantages --reward-clip 1 \
--advantage-clip 1 --is-weight token --is-cap 2 --is-filter sequence:ratio:0.9:1.1 \
--drop-truncated --drop-equal-rewards --overwrite
advantages TURNS NEW --rollout-reward last --overwrite
export OUT NEW.jsonl --to jsonl
"""


def test_help_finds_the_words_of_what_is_printed_of_outputs(files):
    places = {**files, "NEW": files["IN"].with_name("new.parquet"),
              "NEW.jsonl": files["IN"].with_name("new.jsonl")}  # fmt: skip
    for screen in WRITTEN.strip().splitlines():
        ran = run(*(places.get(word, word) for word in screen.split()))
        assert (ran.code, unknown(ran.err)) == (0, set())
