"""Text tables on terminals of several widths, in a pipe and as Markdown."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from rlpost.display.console import UNLIMITED, console
from rlpost.display.controls import MOST_CHARACTERS, printable_line
from rlpost.display.tables import TextTable, elided, markdown_table, show_json

METRICS = TextTable(
    ("metric", "mean", "max"),
    [("raw reward", "0.25", "1"), ("KL penalty", "-0.001234", "12,345")],
    title="Rewards",
    lines=["2 responses"],
    notes=["Means are over responses."],
)
FORMULA = "max(-A·r, -A·clip(r, 1-ε, 1+ε)); A < 0: at most -c·A"
LOSSES = TextTable(
    ("loss", "needs", "formula", "clips"),
    [("ppo", "advantages, old_log_probs", FORMULA, "1,234,567,890")],
    text=range(3),
)
FINDINGS = TextTable(("finding", "responses"), [("half of all rewards are equal", "1,234,567")])
SENTENCES = TextTable(
    title="Checks", lines=["2 ran: no_rows, no_reward", "  one file: mixed_types"]
)
NOTES = TextTable(("k",), [("a",), ("b",)], row_notes={0: "first " * 4 + "\nsecond"})


def on_terminal(table: TextTable, width: int) -> list[str]:
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    out.print(table)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def piped(table: TextTable) -> str:
    stream = io.StringIO()
    console(stream).print(table)
    return stream.getvalue()


LAYOUTS = {
    "numbers right, text left": (METRICS, 80, """
Rewards
2 responses
metric           mean     max
raw reward       0.25       1
KL penalty  -0.001234  12,345
Means are over responses."""),
    "a line for each number": (METRICS, 16, """
Rewards
2 responses
metric raw
reward
  mean  0.25
  max   1
metric KL
penalty
  mean  -0.00123
        4
  max   12,345
Means are over
responses."""),
    "text wraps, numbers stay whole": (FINDINGS, 26, """
finding          responses
half of all      1,234,567
rewards are
equal"""),
    "a long text below its row": (LOSSES, 46, """
loss  needs                              clips
ppo   advantages, old_log_probs  1,234,567,890
  max(-A·r, -A·clip(r, 1-ε, 1+ε)); A < 0: at
  most -c·A"""),
    "several texts below, with headings": (LOSSES, 30, """
loss          clips
ppo   1,234,567,890
  needs    advantages,
           old_log_probs
  formula  max(-A·r,
           -A·clip(r, 1-ε,
           1+ε)); A < 0: at
           most -c·A"""),
    "sentences hang": (SENTENCES, 16, """
Checks
2 ran: no_rows,
  no_reward
  one file:
    mixed_types"""),
    "notes of rows": (NOTES, 20, """
k
a
  first first first
    first
  second
b"""),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_table_fits_the_terminal(name):
    table, width, lines = LAYOUTS[name]
    assert on_terminal(table, width) == lines.strip("\n").split("\n")


@pytest.mark.parametrize("width", [20, 31, *range(40, 121, 9)])
def test_no_line_is_wider_than_the_terminal_and_no_word_that_has_room_breaks(width):
    table = TextTable(
        ("column", "type", "bytes", ""),
        [("old_log_probs" * 3, "list<element: float>", "1.25 MB", "███")],
        text=(0, 1, 3),
    )
    assert all(len(line) <= width for line in on_terminal(table, width))
    words = {word for row in LOSSES.rows for cell in row for word in cell.split()}
    if width > 30:
        assert words <= {word for line in on_terminal(LOSSES, width) for word in line.split()}


def test_a_pipe_cuts_and_wraps_nothing():
    name = "a very long name of a column " * 10
    text = piped(TextTable(("column", "bytes"), [(name, "1")]))
    assert f"{name.rstrip()}" in text.splitlines()[1]


def test_control_characters_become_signs_and_markdown_cells_end_no_row_and_open_no_tag():
    table = TextTable(("a\n", "b"), [("x\x1b[2J", "\u200b")], title="t\r", notes=["n\x07"])
    text = piped(table) + table.markdown()
    assert not {*text} & {"\x1b", "\r", "\x07", "\u200b"}
    assert markdown_table(("a",), [("x|y\n<b>",)]).splitlines()[2:] == ["| x\\|y␊&lt;b> |"]
    assert "x y" in markdown_table(("a",), [("x\ny",)], prose="a")
    assert "- second" in NOTES.markdown()


def test_markdown_aligns_numbers_right():
    assert METRICS.markdown() == (
        "## Rewards\n\n"
        "- 2 responses\n\n"
        "| metric | mean | max |\n"
        "| --- | ---: | ---: |\n"
        "| raw reward | 0.25 | 1 |\n"
        "| KL penalty | -0.001234 | 12,345 |\n\n"
        "Means are over responses.\n"
    )


def test_the_middle_of_a_long_list_is_elided():
    rows = [(str(step), "1") for step in range(100)]
    shown = elided(rows)
    assert [row[0] for row in shown[5:8]] == ["5", "… 88 more", "94"]
    assert len(shown) == 13
    assert elided(rows[:12]) == rows[:12]


LONG = "é" * 500_000 + "\x1b[2J" + "z" * 500_000


def test_long_texts_of_data_are_cut_on_screens_in_pipes_and_in_markdown(capsys):
    assert len(printable_line(LONG)) < MOST_CHARACTERS
    assert printable_line(LONG).startswith("é" * 500)
    assert printable_line(LONG).endswith("z" * 200)
    assert "999,254 more characters" in printable_line(LONG)
    table = TextTable((LONG, "b"), [(LONG, "1")], title=LONG, lines=[LONG], row_notes={0: LONG})
    for width in (80, UNLIMITED):
        out = io.StringIO()
        Console(file=out, width=width).print(table)
        assert len(out.getvalue()) < 20 * MOST_CHARACTERS
    assert len(table.markdown()) < 8 * MOST_CHARACTERS
    show_json({"id": LONG})
    assert json.loads(capsys.readouterr().out) == {"id": LONG}
