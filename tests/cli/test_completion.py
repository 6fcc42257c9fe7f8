"""Shell completion: what the program answers when a shell asks, and real shells that ask it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import run

from rlpost.cli.app import COMMANDS
from rlpost.estimators import ESTIMATORS
from rlpost.formats import FORMATS
from rlpost.io.parquet.column_names import column_names
from rlpost.recipe.presets import PRESETS
from rlpost.recipe.roles import ROLES

PROGRAM = Path(sys.executable).with_name("rlpost")
COLUMNS = ["uid", "meta", "score", "scores_b", "loss_mask"]


@pytest.fixture
def rollouts(tmp_path):
    path = tmp_path / "in.parquet"
    nested = pa.array([{"x": {"y": 1}, "z": [1]}])
    columns = {"uid": [1], "meta": nested, "score": [1.0], "scores_b": [1.0], "loss_mask": [[1]]}
    pq.write_table(pa.table(columns), path)
    return path


def asked(*words: str, cwd: Path, by: str = "bash") -> list[str]:
    """What the program offers for the last word; real shells, below, ask a process."""
    given = {"_RLPOST_COMPLETE": f"complete_{by}"}
    if by == "bash":  # which makes words of its own of = and :
        split = [part for word in words for part in re.split("([=:]+)", word) if part or not word]
        split += [""] if words[-1].endswith("=") else []
        given |= {"COMP_WORDS": "\n".join(["rlpost", *split]), "COMP_CWORD": str(len(split))}
    else:
        line = " ".join(["rlpost", *words])
        given |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    with mock.patch.dict(os.environ, given), mock.patch.dict(sys.modules), chdir(cwd):
        code, out, err = run()  # which hides rich
    assert (code, err) == (0, "")
    return [line for line in out.splitlines() if line]


def test_the_completion_script_is_that_of_the_named_shell():
    begins = {"zsh": "#compdef rlpost", "bash": "_rlpost_", "fish": "complete "}
    for shell, text in begins.items():
        ran = run("--show-completion", shell)
        assert (ran.code, ran.out[: len(text)]) == (0, text)
    for flag in ("--show-completion", "--install-completion"):
        ran = run(flag, "tcsh")
        assert ran.code == 2
        assert ran.err.startswith(f"error: {flag} 'tcsh': ")
        assert "bash, zsh, fish" in ran.err


OFFERS = {
    "adv": ["advantages"],
    "advantage _": [*COMMANDS],
    "advantages --whiten-r": ["--whiten-rewards"],
    "advantages in": [],
    "advantages --config in": [],
    "advantages --preset _": [*PRESETS, "default"],
    "advantages --numerics whiten_f": ["whiten_floor=add", "whiten_floor=clamp"],
    "advantages --numerics whiten_floor=c": ["clamp"],
    "advantages --option step_g": ["step_gamma="],
    "advantages --is-weight se": ["segment", "sequence"],
    "advantages --emit returns,group_s": ["returns,group_std", "returns,group_size"],
    "advantages in.parquet --map _": [f"{role}=" for role in ROLES],
    "advantages in.parquet out.parquet --map reward=sc": ["score", "scores_b"],
    "advantages *.parquet --map mask=": COLUMNS,
    "advantages in.parquet --reward-components ui": ["uid"],
    "inspect in.parquet --map diffic": [f"difficulty={name}" for name in COLUMNS],
    "inspect --colour _": ["logprob", "kl", "advantage"],
    "inspect --failures k": ["keep"],
    "compare in.parquet --estimator rl": ["rloo"],
    "convert --from _": [*FORMATS],
    "list estimators gae rl": ["rloo"],
    "list estimators --format m": ["markdown"],
    "list presets ve": ["verl"],
    "config diff verl tr": ["trl"],
    "list losses ppo kl_": ["kl_cov"],
    "loss in.parquet --loss gs": ["gspo"],
    "loss in.parquet --sweep pg_c": ["pg_clip="],
    "advantages in.parquet --estimator _": [*ESTIMATORS],
}  # fmt: skip


@pytest.mark.parametrize("words", OFFERS)
def test_what_is_offered_for_the_last_word(words, rollouts):
    line = ["" if word == "_" else word for word in words.split()]
    assert {*asked(*line, cwd=rollouts.parent)} == {*OFFERS[words]}


def test_zsh_and_fish_get_whole_words_with_descriptions(rollouts):
    words = ("advantages", "in.parquet", "--map", "reward=sc")
    assert asked(*words, cwd=rollouts.parent, by="fish") == ["reward=score", "reward=scores_b"]
    assert '"reward=score"' in "".join(asked(*words, cwd=rollouts.parent, by="zsh"))
    (line,) = asked("advantages", "--estimator", "rl", cwd=rollouts.parent, by="fish")
    assert line == f"rloo\t{ESTIMATORS['rloo'].formula}"


def test_columns_are_those_of_files_with_footers_of_any_size(tmp_path, rollouts):
    (tmp_path / "notes.txt").write_text("no Parquet")
    no_files = [str(tmp_path / "notes.txt"), str(tmp_path / "gone.parquet"), "s3://b/x"]
    assert column_names(no_files) == []
    assert column_names(["--map", str(rollouts)])[0] == "uid"
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({f"column_{i}": [0] for i in range(9000)}), path)
    assert column_names([str(path)])[-1] == "column_8999"


# Real shells

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {script}"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u -d {dump}; source {script}"),
    "fish": (["fish", "--no-config", "-i"], "source {script}"),
}
PLAIN = re.compile(r"\x1b(\[[0-9;?>=]*[a-zA-Z]|[()][A-Z0-9]|\][^\x07]*\x07|[=>])")


def awaited(terminal: int, typed: str, wanted: str, seconds: float = 20) -> None:
    """Type into a terminal, and read until a text is there."""
    os.write(terminal, typed.encode())
    seen, until = "", time.monotonic() + seconds
    while wanted not in PLAIN.sub("", seen).replace("\r", ""):
        assert time.monotonic() < until, seen
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")


@pytest.mark.nightly
@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes(shell, rollouts):
    argv, setting_up = SHELLS[shell]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{shell} is not installed")
    folder = rollouts.parent
    script = folder / "completion"
    environment = {**os.environ, "_RLPOST_COMPLETE": f"source_{shell}"}
    with script.open("wb") as file:
        subprocess.run([PROGRAM], env=environment, stdout=file, check=True)
    path = os.pathsep.join([str(PROGRAM.parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "TERM": "xterm", "PS1": "$ ", "HOME": str(folder)}
    terminal, slave = pty.openpty()
    process = subprocess.Popen(  # fish wants a terminal of its own
        ["setsid", "--ctty", *argv], stdin=slave, stdout=slave, stderr=slave, cwd=folder,
        env=environment,
    )  # fmt: skip
    os.close(slave)
    try:
        begin = setting_up.format(script=script, dump=folder / "dump")
        awaited(terminal, f"{begin}; echo re''ady\n", "ready")
        typed = "echo rlpost\nrlpost advantages in.parquet --map mask=loss\t"
        awaited(terminal, typed, "mask=loss_mask")
        awaited(terminal, "--estimator rl\t", "rloo")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
