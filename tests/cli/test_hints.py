"""Hints are commands: what screens and errors name as the next step runs as it is typed."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import nullcontext

import pytest
from compared_files import ARITHMETIC, CALCULATOR
from runs import rollout, run, save
from test_errors import cases, folder, here  # noqa: F401 - fixtures

from rlpost.analysis.browse.app import Browser

SCREENS = """
advantages in.parquet out.parquet
advantages turns.parquet trained.parquet --rollout-reward last
advantages dumps done
in.parquet
inspect in.parquet --verbose
inspect in.parquet --about groups
inspect in.parquet --about domains
inspect in.parquet --where reward>0
inspect renamed.parquet --map reward=points
inspect damaged.parquet
inspect turns.parquet --unit row
inspect out.parquet
inspect in.parquet --row 3
inspect turns.parquet --row 3
convert dump.jsonl converted.parquet --from jsonl
replay out.parquet
list
list estimators
list losses
list presets
list dumps
list targets
list checks
config
config diff verl trl
help grpo
help dapo
doctor
"""
PLACEHOLDER = re.compile(r"(?<![\w-])[A-Z]{2,}(?![\w-])|\.\.\.")


def commands(text: str) -> list[str]:
    """The commands of the hints of a screen: after `next:` and below it, and those of tips."""
    lines = text.splitlines()
    found = []
    for i, line in enumerate(lines):
        label, _, first = line.strip().partition(": ")
        if label == "next":
            more = [x for x in lines[i + 1 :] if x.startswith(" " * 8)]
            found += [part for x in [first, *more] for part in x.split(" · ")]
        elif label == "tip" and first.startswith("rlpost "):
            found.append(first)
    return found


@pytest.fixture
def typed(monkeypatch):
    """Run a hint as a shell would; the browser opens on a terminal, and ends at once."""
    opened = []

    def open_(browser: Browser) -> None:
        opened.append(browser)

    monkeypatch.setattr(Browser, "run", open_)
    monkeypatch.setattr("rlpost.cli.commands.look.is_terminal", lambda: True)
    monkeypatch.setattr("rlpost.cli.commands.look._drawn_on_stdout", nullcontext)

    def type_(line: str) -> None:
        program, *words = shlex.split(line, comments=True)
        assert program == "rlpost", line
        assert not PLACEHOLDER.search(line.partition("#")[0]), line
        ran = run(*words)
        assert ran.code in (0, 1), f"{line}\n{ran.err}"
        if words[0] == "browse":
            assert opened

    return type_


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """A folder with inputs of each kind."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ARITHMETIC, "in.parquet")
    shutil.copy(CALCULATOR, "turns.parquet")
    table = rollout(24)
    save(table, tmp_path / "dumps" / "a.parquet")
    save(table.slice(12), tmp_path / "dumps" / "b.parquet")
    names = ["points" if name == "reward" else name for name in table.column_names]
    save(table.rename_columns(names), tmp_path / "renamed.parquet")
    positive = [[1.0] * len(x) for x in table["old_log_probs"].to_pylist()]
    place = table.column_names.index("old_log_probs")
    damaged = table.set_column(place, "old_log_probs", [positive])
    save(damaged, tmp_path / "damaged.parquet")
    (tmp_path / "dump.jsonl").write_text('{"prompt": "p", "reward": 1}\n' * 4)
    return tmp_path


@pytest.mark.usefixtures("inputs")
def test_the_next_steps_of_screens_run(typed, monkeypatch):
    hints = {}
    for line in SCREENS.strip().splitlines():
        ran = run(*line.split())
        assert ran.code in (0, 1), ran.err
        hints[line] = commands(ran.out + ran.err)
        for hint in hints[line]:
            typed(hint)
    without = [line for line, found in hints.items() if not found]
    assert without == [
        "inspect in.parquet --verbose", "inspect in.parquet --row 3", "doctor",
    ]  # fmt: skip
    assert hints["advantages in.parquet out.parquet"] == ["rlpost report out.parquet out.html"]
    monkeypatch.setattr("rlpost.render.summary.is_terminal", lambda: True)
    again = [hint.strip() for hint in commands(run(*AGAIN).err)]
    assert again == ["rlpost browse out.parquet", "rlpost report out.parquet out-2.html"]
    typed(again[0])


AGAIN = "advantages", "in.parquet", "out.parquet", "--overwrite"


@pytest.mark.usefixtures("here")
def test_the_tips_of_errors_that_are_commands_run(typed):
    tips = [
        (words, tip)
        for words, *_ in (case.values if hasattr(case, "values") else case for case in cases())
        for tip in commands(run(*words.split()).err)
        if not PLACEHOLDER.search(tip.partition("#")[0])
    ]
    assert len(tips) > 4
    for _, tip in tips:
        shutil.rmtree("o", ignore_errors=True)
        typed(tip)
