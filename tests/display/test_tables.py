"""Text tables on terminals of several widths, in a pipe and as Markdown."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from rlpost.display.console import UNLIMITED, console
from rlpost.display.controls import MOST_CHARACTERS, printable_line
from rlpost.display.tables import TextTable, elided, markdown_table, show_list

METRICS = TextTable(
    ("metric", "mean", "max"),
    [("raw reward", "0.25", "1"), ("KL penalty", "-0.001234", "12,345")],
    title="Rewards",
    lines=["2 responses"],
    notes=["Means are over responses."],
)


def on_terminal(table: TextTable, width: int) -> list[str]:
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    out.print(table)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def piped(table: TextTable) -> str:
    stream = io.StringIO()
    console(stream).print(table)
    return stream.getvalue()


def test_numbers_are_aligned_right_and_text_left():
    assert on_terminal(METRICS, 80) == [
        "Rewards",
        "2 responses",
        "metric           mean     max",
        "raw reward       0.25       1",
        "KL penalty  -0.001234  12,345",
        "Means are over responses.",
    ]


@pytest.mark.parametrize("width", [20, 31, 40, 80])
def test_no_line_is_wider_than_the_terminal(width):
    table = TextTable(
        ("column", "type", "bytes", ""),
        [("old_log_probs" * 3, "list<element: float>", "1.25 MB", "███")],
        text=(0, 1, 3),
    )
    assert all(len(line) <= width for line in on_terminal(table, width))


def test_text_wraps_and_numbers_stay_whole():
    table = TextTable(("finding", "responses"), [("half of all rewards are equal", "1,234,567")])
    lines = on_terminal(table, 26)
    assert lines[1:] == ["half of all      1,234,567", "rewards are", "equal"]


def test_numbers_that_do_not_fit_get_a_line_each():
    lines = on_terminal(METRICS, 16)
    assert lines[2:7] == [
        "metric raw",
        "reward",
        "  mean  0.25",
        "  max   1",
        "metric KL",
    ]


LOSSES = TextTable(
    ("loss", "needs", "formula", "clips"),
    [
        (
            "ppo",
            "advantages, old_log_probs",
            "max(-A·r, -A·clip(r, 1-ε, 1+ε)); A < 0: at most -c·A",
            "1,234,567,890",
        )
    ],
    text=range(3),
)


def test_a_text_of_many_lines_is_below_its_row():
    assert on_terminal(LOSSES, 46) == [
        "loss  needs                              clips",
        "ppo   advantages, old_log_probs  1,234,567,890",
        "  max(-A·r, -A·clip(r, 1-ε, 1+ε)); A < 0: at",
        "  most -c·A",
    ]


def test_several_texts_below_a_row_have_their_headings():
    assert on_terminal(LOSSES, 30) == [
        "loss          clips",
        "ppo   1,234,567,890",
        "  needs    advantages,",
        "           old_log_probs",
        "  formula  max(-A·r,",
        "           -A·clip(r, 1-ε,",
        "           1+ε)); A < 0: at",
        "           most -c·A",
    ]


@pytest.mark.parametrize("width", range(30, 121, 6))
def test_a_terminal_breaks_no_word_that_has_room(width):
    words = {word for row in LOSSES.rows for cell in row for word in cell.split()}
    assert words <= {word for line in on_terminal(LOSSES, width) for word in line.split()}


def test_further_lines_of_a_sentence_are_indented(monkeypatch):
    table = TextTable(
        title="Checks", lines=["2 ran: no_rows, no_reward", "  one file: mixed_types"]
    )
    hanging = ["Checks", "2 ran: no_rows,", "  no_reward", "  one file:", "    mixed_types"]
    assert on_terminal(table, 16) == hanging
    monkeypatch.setenv("COLUMNS", "16")
    assert piped(table).splitlines() == hanging


def test_a_pipe_cuts_and_wraps_nothing():
    name = "a very long name of a column " * 10
    text = piped(TextTable(("column", "bytes"), [(name, "1")]))
    assert f"{name.rstrip()}" in text.splitlines()[1]


def test_columns_of_the_environment_wrap_sentences_in_a_pipe(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    table = TextTable(("k",), [("1" * 30,)], lines=["a sentence of " * 4], notes=["a note " * 9])
    lines = piped(table).splitlines()
    assert max(map(len, lines[:4] + lines[-3:])) <= 20
    assert "1" * 30 in lines


def test_paragraphs_of_a_note_of_a_row_are_lines_that_wrap(monkeypatch):
    table = TextTable(("k",), [("a",), ("b",)], row_notes={0: "first " * 9 + "\nsecond"})
    assert on_terminal(table, 80)[1:] == ["a", "  " + " ".join(["first"] * 9), "  second", "b"]
    monkeypatch.setenv("COLUMNS", "30")
    lines = piped(table).splitlines()
    assert max(map(len, lines)) <= 30
    assert lines[-2:] == ["  second", "b"]
    assert "- second" in table.markdown()


def test_control_characters_become_signs():
    table = TextTable(("a\n", "b"), [("x\x1b[2J", "\u200b")], title="t\r", notes=["n\x07"])
    text = piped(table) + table.markdown()
    assert not {*text} & {"\x1b", "\r", "\x07", "\u200b"}


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


def test_markdown_cells_end_no_row_and_open_no_tag():
    assert markdown_table(("a",), [("x|y\n<b>",)]).splitlines()[2:] == ["| x\\|y␊&lt;b> |"]
    assert "x y" in markdown_table(("a",), [("x\ny",)], prose="a")


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
    show_list(("id",), [(LONG,)], "json")
    assert json.loads(capsys.readouterr().out) == [{"id": LONG}]
