"""A page is one value: a terminal, a pipe, Markdown and HTML draw the same parts."""

import codecs
import io
import re
import sys

from rich.console import Console

from rlpost.display import first
from rlpost.display.console import console
from rlpost.display.controls import ascii_signs
from rlpost.display.page import MARKS, Notice, Page, show_page
from rlpost.display.tables import TextTable
from rlpost.render.trends import Trend, trend_table

PAGE = Page(
    "rlpost thing · a.parquet",
    lines=["8 responses"],
    parts=[
        TextTable(("", "mean", "max"), [("reward <b>", "0.5", "1")], title="Numbers"),
        TextTable((), [("groups", "2 of 4 `with` signal")], text=(0, 1), notes=["a note"]),
    ],
    notices=[Notice("warning", "a mask is empty", "empty_masks", "drop it", "a.parquet:3")],
    verdict=Notice("error", "nothing to learn"),
    next_steps=["rlpost browse a.parquet"],
)
TEXTS = [
    "8 responses",
    "Numbers",
    "0.5",
    "groups",
    "a note",
    "empty_masks",
    "drop it",
    "a.parquet:3",
    "nothing to learn",
    "rlpost browse a.parquet",
]


def drawn(width: int) -> str:
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    PAGE.show(out)
    return out.file.getvalue()


def test_every_drawing_has_every_part() -> None:
    stream = io.StringIO()
    PAGE.show(console(stream))
    plain = re.sub(r"</?code>", "`", PAGE.html())
    for drawing in (drawn(80), stream.getvalue(), PAGE.markdown(), plain):
        assert [text for text in TEXTS if text not in drawing] == []


def test_the_verdict_is_below_everything_but_the_next_steps() -> None:
    lines = drawn(80).splitlines()
    assert lines[0].startswith("rlpost thing")
    assert lines[-2].startswith(MARKS["error"])
    assert lines[-1].strip() == "next: rlpost browse a.parquet"


def test_a_trend_has_its_ends_and_at_most_24_blocks() -> None:
    values = [i / 100 for i in range(100)]
    name, blocks, *ends = trend_table("step", range(100), [Trend("pass", values, share=True)]).rows[
        0
    ]
    assert name == "pass"
    assert ends == ["0 %", "0 %", "99.0 %", "99.0 %"]
    assert len(blocks) == 24
    assert blocks[0] == "▁"
    assert blocks[-1] == "█"


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_first_line_is_gone_before_others(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", Terminal())
    first.show()
    assert sys.stderr.getvalue() == f"\r{first.WORDS}"
    show_page(Page("a"), "table", console(sys.stderr))
    _, words, blanks, rest = sys.stderr.getvalue().split("\r")
    assert (words, blanks.strip()) == (first.WORDS, "")
    assert "a" in rest
    first.clear()
    assert sys.stderr.getvalue().count("\r") == 3


def test_what_an_encoding_lacks_keeps_its_meaning() -> None:
    codecs.register_error("rlpost", ascii_signs)
    text = "A ≠ 0 ■░█ ≥".encode("ascii", "rlpost").decode()
    assert text == "A != 0 #.# >="
