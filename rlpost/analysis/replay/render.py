"""A replay on a terminal or in a pipe, as JSON and as Markdown."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.analysis.replay.metrics.render import metric_tables
from rlpost.analysis.replay.render_examples import examples
from rlpost.analysis.replay.render_search import CodeBlock, found_blocks
from rlpost.analysis.replay.stages import STAGES
from rlpost.display.console import console
from rlpost.display.controls import printable_line
from rlpost.display.tables import TextTable, show_json
from rlpost.display.text import counted, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


Json = dict[str, Any]
MARKDOWN_WIDTH = 1000
_STYLES = {"equal": "green", "follows": "yellow", "differs": "red"}
_MOST_ULPS = 1e6


Block = TextTable | CodeBlock


def show(result: Json, how: str, out: Console | None = None) -> None:
    """Print a replay, or one of a log, on stdout, as a `table`, as `json` or as `markdown`."""
    if how == "json":
        show_json(result)
    elif how == "markdown":
        lines = [_title(result), verdict_line(result), input_line(result), *warning_lines(result)]
        head = "## " + "".join(f"{_plain(line)}\n\n" for line in lines)
        parts = [_block_markdown(one) for one in blocks(result, MARKDOWN_WIDTH)]
        sys.stdout.write(head + "\n".join(parts))
    else:
        _print(result, out or console(sys.stdout))


def _print(result: Json, out: Console) -> None:
    """Print the first lines, and the blocks below them."""

    def line(text: str, style: str = "") -> None:
        out.print(Text(printable_line(text), style), soft_wrap=not out.is_terminal)

    line(_title(result), "bold")
    line(input_line(result))
    line(verdict_line(result), "bold green" if result["reproduced"] else "bold red")
    for text in warning_lines(result):
        line(text, "yellow")
    for one in blocks(result, out.width):
        out.print()
        if isinstance(one, TextTable):
            out.print(one)
            continue
        line(one.title, "bold cyan")
        for text in one.text.split("\n"):  # as it is, so that it can be copied
            out.print(Text(printable_line(text)), soft_wrap=True)
        for text in one.notes:
            line(text, "dim")


def _title(result: Json) -> str:
    if "metrics" in result:
        return f"rlpost replay · metrics of {result['file']}"
    return f"rlpost replay · {'search' if 'search' in result else result['recipe']['named']}"


def _block_markdown(one: Block) -> str:
    if isinstance(one, TextTable):
        return _with_note_column(one).markdown(level=3)
    notes = "".join(f"\n{_plain(note)}\n" for note in one.notes)
    return f"### {one.title}\n\n```{one.language}\n{one.text}\n```\n{notes}"


def _with_note_column(one: TextTable) -> TextTable:
    """Return a table whose notes of rows are a column."""
    if not one.row_notes:
        return one
    rows = [(*row, one.row_notes.get(i, "")) for i, row in enumerate(one.rows)]
    text = {*one.text, len(one.headings)}
    return replace(one, headings=(*one.headings, "note"), rows=rows, text=text, row_notes={})


def _plain(line: str) -> str:
    return printable_line(line).replace("<", "&lt;")


def warning_lines(result: Json) -> list[str]:
    """Return the warnings of a result, a line each."""
    texts = list(result["warnings"])
    if "metrics" in result:
        return [f"! {text}" for text in texts]
    if result["not_computed"]:
        names = _names(result["not_computed"])
        texts.append(f"not compared, since the recipe computes none: {names}")
    order = [one["stage"] for one in result["stages"]]
    elsewhere = [one["stage"] for one in result.get("whole_input", ()) if not one["equal"]]
    if elsewhere and order.index(elsewhere[0]) < _place(order, result["first"]):
        title = STAGES[elsewhere[0]].title
        texts.append(f"beyond these rows {title} differs, too (last table): --sample compares more")
    return [f"! {text}" for text in texts]


def _place(order: list[str], first: str | None) -> int:
    return len(order) if first is None else order.index(first)


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def input_line(result: Json) -> str:
    """Return the name of the input and how much of it was compared."""
    if "metrics" in result:
        steps = counted(result["steps"]["matched"], "step")
        return f"{result['input']}: {counted(result['responses'], 'response')} of {steps}"
    tokens = "" if result["tokens"] is None else f", {counted(result['tokens'], 'token')}"
    if result["responses"] == result["of_responses"]:
        return f"{result['input']}: {counted(result['responses'], 'response')}{tokens}"
    part = f"{result['responses']:,} of {counted(result['of_responses'], 'response')}"
    return f"{result['input']}: {part} ({result['scope']}{tokens}) stage by stage, then all"


def verdict_line(result: Json) -> str:
    """Return whether the recipe reproduces the input, else the first stage that differs."""
    if "metrics" in result:
        equal = sum(one["reproduced"] for one in result["metrics"])
        count = counted(len(result["metrics"]), "metric")
        word = "Reproduced" if result["reproduced"] else "Differs"
        digits = any(one["rounding"] for one in result["metrics"])
        rounded = ", or half of the log's last digit" if digits else ""
        not_computed = len(result["not_computed"])
        others = f"; {not_computed} not compared" if not_computed else ""
        return f"{word}: {equal} of {count} equal within {result['tolerance']:g}{rounded}{others}"
    stages = result["stages"]
    if result["reproduced"]:
        columns = counted(len(stages), "recorded column")
        return f"Reproduced: {columns} equal within {result['tolerance']:g}"
    first = next((one for one in stages if one["stage"] == result["first"]), None)
    if first is None and any(not one["note"] for one in result["findings"]):
        return "Differs: recorded numbers are NaN, null or infinite; all others are equal"
    if first is None:
        return "Differs, but not in the rows compared stage by stage (last table)"
    unit = _unit(first, result)
    differ = f"{first['differing']:,} of {counted(first['compared'], unit)} differ"
    before = _names(first["from_recorded"])
    source = f"computed from the recorded {before}" if before else "computed from the input"
    differs = "No recipe found: the nearest differs" if "search" in result else "Differs"
    return (
        f"{differs} at {first['title']}: {differ}, by {number(first['largest'])} at most "
        f"(`{first['column']}`, {source})"
    )


def _unit(stage: Json, result: Json) -> str:
    """Return what the elements of a stage are: `token` or `response`."""
    level = STAGES[stage["stage"]].level if result["tokens"] is not None else "responses"
    return str(stage.get("unit", level)).removesuffix("s")


def blocks(result: Json, width: int) -> Iterator[Block]:
    """Yield the parts of the screen below its first lines.

    Args:
        result: of `replay`.
        width: columns of the terminal.
    """
    if "metrics" in result:
        yield from metric_tables(result)
        return
    if "search" in result:
        yield from found_blocks(result)
    yield _stages(result)
    found = [one for one in result["findings"] if not one["note"]]  # these are below the stages
    if found or (result["first"] is not None and "search" not in result):
        yield _findings(found)
    yield from examples(result, width)
    if "whole_input" in result:
        yield _whole_input(result)


def _stages(result: Json) -> TextTable:
    """Return the table of the recorded stages."""
    headings = ("stage", "recorded column", "compared", "equal", "max |Δ|", "median", "ulps",
                "verdict")  # fmt: skip
    rows = [
        (
            one["title"],
            _column(one),
            counted(one["compared"], _unit(one, result)),
            percent(one["share_equal"]),
            number(one["largest"]),
            number(one.get("median")),
            _ulps(one.get("median_ulps")),
            Text(one["verdict"], _STYLES[one["verdict"]]),
        )
        for one in result["stages"]
    ]
    return TextTable(headings, rows, title="Stages", text=(0, 1), notes=[*_notes(result)])


def _column(one: Json) -> str:
    """Return the recorded column of a stage, and the recorded ones it was computed from."""
    before = ", ".join(one["from_recorded"])
    return f"{one['column']}, from recorded {before}" if before else str(one["column"])


def _ulps(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value <= _MOST_ULPS else f"> {_MOST_ULPS:.0e}".replace("+0", "")


def _notes(result: Json) -> Iterator[str]:
    """Yield what the numbers of the stages mean, as far as they occur."""
    tolerance = result["tolerance"]
    units = {_unit(one, result) for one in result["stages"]}
    value = " + max |value|" if "token" in units and "values" in result["roles"] else ""
    yield (
        f"Equal: |Δ| ≤ {tolerance:g}·|computed| + {tolerance / 100:g}·(1 + |raw reward|{value}). "
        "Only policy tokens count. Median: of |Δ|; ulps: of the float32 numbers between both."
    )
    if any(one["verdict"] == "follows" for one in result["stages"]):
        yield (
            "A stage that follows is equal if it is computed from what was recorded before it; "
            "it differs from the start because an earlier stage does."
        )
    outside = [one for one in result["stages"] if one.get("outside_differing")]
    if outside:
        counts = {one["outside_differing"] for one in outside}
        most = f"{'up to ' if len(counts) > 1 else ''}{counted(max(counts), 'token')}"
        titles = ", ".join(one["title"] for one in outside)
        yield f"{titles}: {most} outside the mask differ; they do not count."
    for one in result["stages"]:
        if one.get("rounding"):
            yield (
                f"{one['title']}: in groups of equal rewards, "
                f"{counted(one['rounding'], _unit(one, result))} within the float32 rounding of "
                "the mean divided by ε: equal."
            )


def _findings(found: list[Json]) -> TextTable:
    """Return the findings and their advice, as sentences."""
    lines = []
    for one in found:
        explains = "" if one["explains"] >= 1 else f" ({percent(one['explains'])} of these)"
        lines += [f"{one['text']}{explains}", f"→ {one['advice']}"]
    if not lines:
        lines.append(
            "No single change explains it; `rlpost replay IN` without a preset searches "
            "combinations."
        )
    return TextTable(title="What the difference looks like", lines=lines)


def _whole_input(result: Json) -> TextTable:
    """Return the table of the whole input, from the start of the recipe."""
    rows = [
        (
            STAGES[one["stage"]].title,
            counted(one["compared"], _unit(one, result)),
            percent(one["share_equal"]),
            number(one["largest"]),
            f"{one['responses_differing']:,}",
            ", ".join(map(str, one["first_rows"][:3])),
        )
        for one in result["whole_input"]
    ]
    headings = ("stage", "compared", "equal", "max |Δ|", "responses that differ", "first rows")
    title = f"The whole input: {counted(result['of_responses'], 'response')}, from the start"
    return TextTable(headings, rows, title=title)
