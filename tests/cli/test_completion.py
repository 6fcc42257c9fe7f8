"""Shell completion: what the program answers when a shell asks, and real shells that ask it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from contextlib import chdir
from importlib.metadata import entry_points
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import run

from rlpost.cli.app import COMMANDS
from rlpost.cli.completion import names
from rlpost.cli.shells import join_words
from rlpost.estimators import ESTIMATORS
from rlpost.formats import FORMATS
from rlpost.formats.layout import LAYOUTS
from rlpost.io.parquet.column_names import column_names
from rlpost.losses import LOSSES
from rlpost.recipe.loss import ABOUT
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.presets import PRESETS
from rlpost.recipe.roles import ROLES

PROGRAM = Path(sys.executable).with_name("rlpost")


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


def test_names_are_read_without_torch():
    assert names("estimators") == {name: one.formula for name, one in ESTIMATORS.items()}
    assert {*ABOUT} == {*LOSSES}
    assert names("formats") == {name: one.title for name, one in FORMATS.items()}
    code = (
        "import sys; from rlpost.cli.completion import names;"
        "from rlpost.io.parquet.column_names import column_names;"
        "names('estimators'); names('formats'); column_names(['in.parquet']);"
        "print({'torch', 'pyarrow', 'polars', 'numpy', 'rich'} & {*sys.modules})"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_estimators(tmp_path):
    installed = {point.name for point in entry_points(group="rlpost.estimators")}
    offered = asked("advantages", "in.parquet", "--estimator", "", cwd=tmp_path)
    assert {*offered} == {*ESTIMATORS} | installed
    assert asked("compare", "in.parquet", "--estimator", "rl", cwd=tmp_path) == ["rloo"]


def test_the_estimators_that_are_listed(tmp_path):
    assert asked("estimators", "gae", "rl", cwd=tmp_path) == ["rloo"]
    listed = run("estimators", "rloo", "gae", "--format", "json")
    assert [one["estimator"] for one in json.loads(listed.out)] == ["rloo", "gae"]


def test_formats_and_layouts_of_dumps(tmp_path):
    assert {*asked("convert", "--from", "", cwd=tmp_path)} == {*FORMATS}
    assert asked("convert", "in.jsonl", "out", "--from", "sli", cwd=tmp_path) == [
        "slime-rollout",
        "slime-train",
    ]
    assert {*asked("convert", "--layout", "", cwd=tmp_path)} == {*LAYOUTS}


@pytest.mark.parametrize(
    ("shell", "begins"), [("zsh", "#compdef rlpost"), ("bash", "_rlpost_"), ("fish", "complete ")]
)
def test_the_completion_script_is_that_of_the_named_shell(shell, begins):
    ran = run("--show-completion", shell)
    assert ran.code == 0
    assert ran.out.startswith(begins)


@pytest.mark.nightly
def test_a_shell_is_set_up_by_its_name(tmp_path):
    words = [PROGRAM, "--install-completion", "zsh"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert (tmp_path / ".zfunc" / "_rlpost").read_text().startswith("#compdef rlpost")


@pytest.mark.parametrize("flag", ["--show-completion", "--install-completion"])
def test_an_unknown_shell_is_an_error_that_lists_the_others(flag):
    ran = run(flag, "tcsh")
    assert ran.code == 2
    assert ran.err.startswith(f"error: {flag} 'tcsh': ")
    assert "bash, zsh, fish" in ran.err


def test_estimators_of_a_preset(tmp_path):
    words = ("advantages", "--preset", "verl", "--estimator", "tir")
    assert asked(*words, cwd=tmp_path) == ["tir_optimal_token_baseline"]


def test_presets(tmp_path):
    offered = asked("advantages", "--preset", "", cwd=tmp_path)
    assert {*offered} == {*PRESETS, "default"}
    assert asked("presets", "show", "ve", cwd=tmp_path) == ["verl"]
    assert asked("presets", "diff", "verl", "tr", cwd=tmp_path) == ["trl"]


def test_commands_and_options(tmp_path):
    assert asked("adv", cwd=tmp_path) == ["advantages"]
    assert asked("advantages", "--whiten-r", cwd=tmp_path) == ["--whiten-rewards"]


def test_numerics_and_their_values(tmp_path):
    assert asked("advantages", "--numerics", "whiten_f", cwd=tmp_path) == [
        "whiten_floor=add",
        "whiten_floor=clamp",
    ]
    assert asked("advantages", "--numerics", "whiten_floor=c", cwd=tmp_path) == ["clamp"]
    assert {"kl_clamp=", "kl_clamps="} <= {*asked("advantages", "--numerics", "kl_", cwd=tmp_path)}


def test_words_that_help_lists(tmp_path):
    assert asked("advantages", "--is-weight", "se", cwd=tmp_path) == ["segment", "sequence"]
    assert asked("inspect", "--colour", "", cwd=tmp_path) == ["logprob", "kl", "advantage"]
    assert asked("estimators", "--format", "m", cwd=tmp_path) == ["markdown"]


def test_what_is_written(tmp_path):
    offered = asked("advantages", "--emit", "returns,group_s", cwd=tmp_path)
    assert offered == ["returns,group_std", "returns,group_size"]


def test_losses_and_their_options(tmp_path):
    assert asked("loss", "in.parquet", "--loss", "gs", cwd=tmp_path) == ["gspo"]
    assert asked("losses", "ppo", "kl_", cwd=tmp_path) == ["kl_cov"]
    assert asked("loss", "in.parquet", "--sweep", "loss=cis", cwd=tmp_path) == ["cispo"]
    assert asked("loss", "in.parquet", "--sweep", "kimi", cwd=tmp_path) == ["kimi_tau="]


@pytest.mark.parametrize("words", [("in.parquet",), ("in.parquet", "out.parquet"), ("*.parquet",)])
def test_roles_then_columns_of_the_file(rollouts, words):
    first = asked("advantages", *words, "--map", "", cwd=rollouts.parent)
    assert {*first} == {f"{role}=" for role in ROLES}
    assert asked("advantages", *words, "--map", "reward=sc", cwd=rollouts.parent) == [
        "score",
        "scores_b",
    ]
    assert asked("advantages", *words, "--map", "mask=", cwd=rollouts.parent) == [
        "uid",
        "meta",
        "score",
        "scores_b",
        "loss_mask",
    ]


def test_a_single_role_comes_with_the_columns(rollouts):
    offered = asked("inspect", "in.parquet", "--map", "diffic", cwd=rollouts.parent)
    assert offered[2:4] == ["difficulty=score", "difficulty=scores_b"]
    offered = asked("replay", "in.parquet", "--map", "raw_adv", cwd=rollouts.parent)
    assert offered[2:4] == ["raw_advantages=score", "raw_advantages=scores_b"]


@pytest.mark.parametrize("flag", ["--reward-components"])
def test_options_of_columns_offer_the_columns(rollouts, flag):
    assert asked("advantages", "in.parquet", flag, "ui", cwd=rollouts.parent) == ["uid"]


def test_zsh_and_fish_get_whole_words_with_descriptions(rollouts):
    words = ("advantages", "in.parquet", "--map", "reward=sc")
    assert asked(*words, cwd=rollouts.parent, by="fish") == ["reward=score", "reward=scores_b"]
    assert '"reward=score"' in "".join(asked(*words, cwd=rollouts.parent, by="zsh"))
    (line,) = asked("advantages", "--estimator", "rl", cwd=rollouts.parent, by="fish")
    assert line == f"rloo\t{ESTIMATORS['rloo'].formula}"


def test_long_descriptions_are_not_wrapped(tmp_path):
    """Fish would offer the other lines as values."""
    lines = asked("advantages", "--numerics", "", cwd=tmp_path, by="fish")
    assert {line.partition("=\t")[0] for line in lines} == {*Numerics.model_fields}
    assert max(map(len, lines)) > 150


def test_after_an_unknown_command_the_commands_are_offered(tmp_path):
    assert {*asked("advantage", "", cwd=tmp_path)} == {*COMMANDS}


def test_paths_are_left_to_the_shell(rollouts):
    assert asked("advantages", "in", cwd=rollouts.parent) == []
    assert asked("advantages", "--config", "in", cwd=rollouts.parent) == []


@pytest.mark.parametrize(
    ("words", "cursor", "joined", "own"),
    [
        (["rlpost", "a", "--map", "reward", "=", "sc"], 5, "--map|reward=sc", "reward="),
        (["rlpost", "a", "--map", "reward", "=", ""], 5, "--map|reward=", "reward="),
        (["rlpost", "a", "--map", "reward", "="], 4, "--map|reward=", "reward="),
        (["rlpost", "a", "--map", "=", "reward", "=", "sc"], 6, "--map=reward=sc", "reward="),
        (["rlpost", "a", "--map", "a", "=", "b", "--est", "x"], 7, "--map|a=b|--est|x", ""),
        (["rlpost", "a", "--is-filter", "max", ":", "k3", "::", "1"], 7, "--is-filter|max:k3::1",
         "max:k3::"),
    ],
)  # fmt: skip
def test_words_that_bash_split_are_joined(words, cursor, joined, own):
    environment = {
        "_RLPOST_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(cursor),
    }
    assert join_words(environment) == own
    assert environment["COMP_WORDS"].split("\n")[2:] == joined.split("|")
    assert int(environment["COMP_CWORD"]) == len(environment["COMP_WORDS"].split("\n")) - 1


def test_columns_of_what_is_no_file(tmp_path, rollouts):
    (tmp_path / "notes.txt").write_text("no Parquet")
    assert (
        column_names([str(tmp_path / "notes.txt"), str(tmp_path / "gone.parquet"), "s3://b/x"])
        == []
    )
    assert column_names(["--map", str(rollouts)])[0] == "uid"


def test_hive_partitions_are_columns(tmp_path):
    folder = tmp_path / "step=3"
    folder.mkdir()
    pq.write_table(pa.table({"reward": [1.0]}), folder / "part.parquet")
    assert column_names([str(tmp_path)]) == ["reward", "step"]


def test_a_footer_of_megabytes_is_read_too(tmp_path):
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


class Terminal:
    """A shell with a terminal, that is typed into."""

    def __init__(self, argv, cwd):
        folder = os.pathsep.join([str(PROGRAM.parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": folder, "TERM": "xterm", "PS1": "$ ", "HOME": str(cwd)}
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *argv],  # fish wants a terminal of its own
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env=environment,
        )
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self.master, text.encode())

    def await_text(self, wanted: str, seconds: float = 20) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if wanted in PLAIN.sub("", self.seen).replace("\r", ""):
                return True
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
        return False

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


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
    terminal = Terminal(argv, folder)
    try:
        terminal.type(setting_up.format(script=script, dump=folder / "dump") + "; echo re''ady\n")
        assert terminal.await_text("ready"), terminal.seen
        terminal.type("echo rlpost\nrlpost advantages in.parquet --map mask=loss\t")
        assert terminal.await_text("mask=loss_mask"), terminal.seen
        terminal.type("--estimator rl\t")
        assert terminal.await_text("rloo"), terminal.seen
    finally:
        terminal.close()
