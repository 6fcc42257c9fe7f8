"""`rlpost inspect` on stdout: for a terminal, a pipe, as JSON or as Markdown."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlpost.controls import in_line
from rlpost.render import console
from rlpost.render_inspect_charts import EIGHTHS, LEVELS
from rlpost.render_inspect_sections import overview, sections
from rlpost.render_inspect_storage import Section, roles_section, storage, storage_lines
from rlpost.render_lists import markdown_table, show_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from rlpost.inspect.model import Evidence, Facts, Finding, InputFacts, RoleFacts

BLOCKS = frozenset(EIGHTHS + LEVELS)
CHART = f"[{EIGHTHS.strip()}{LEVELS}]+"
STYLES = {"error": "red", "warning": "yellow"}
LEGEND = {"error": "✗ training would go wrong", "warning": "! training may suffer"}
SHOWN = 3  # rows that show a finding
WIDEST = 40  # characters of a group's key


def show(facts: Facts, how: str, out: Console | None = None) -> None:
    """All facts, as a `table`, as `json` or as `markdown`."""
    if how == "json":
        show_json(facts.as_json())
        return
    found, lines = sections(facts), overview(facts)
    title = f"rlpost inspect · {', '.join(facts.inputs[:2])}"
    if how == "markdown":
        _markdown(title, [*lines, *_verdict(facts.findings)], facts.findings, found)
        return
    parts = [_stacked(lines), _findings(facts.findings), *(_drawn(one) for one in found)]
    parts.append(Text(f"{facts.seconds:.2f} s", style="dim"))
    _print(title, parts, out)


def show_stored(
    stored: InputFacts, roles: dict[str, RoleFacts], how: str, out: Console | None = None
) -> None:
    """What the footers tell, as a `table`, as `json` or as `markdown`."""
    if how == "json":
        from dataclasses import asdict  # noqa: PLC0415

        show_json(
            {
                "schema_version": 1,
                "input": asdict(stored),
                "roles": {role: asdict(one) for role, one in roles.items()},
            }
        )
        return
    lines = storage_lines(stored)
    found = [roles_section(roles), storage(stored, every_column=True)]
    title = f"rlpost inspect · {', '.join(file.path for file in stored.files[:2])}"
    if how == "markdown":
        _markdown(title, lines, [], found)
        return
    _print(title, [_stacked(lines), *(_drawn(one) for one in found)], out)


def _print(title: str, parts: Sequence[RenderableType], out: Console | None) -> None:
    out, title = out or console(sys.stdout), in_line(title)
    spaced = [piece for part in parts for piece in (part, Text(""))][:-1]
    if out.is_terminal:
        out.print(Panel(Group(*spaced), title=Text(title), title_align="left", border_style="dim"))
    else:
        out.print(Text(title), *spaced, sep="\n")


def _stacked(lines: Sequence[str]) -> Text:
    return Text("\n".join(map(in_line, lines)))


def _drawn(section: Section) -> RenderableType:
    """A section for the console: its title, its table, its sentences."""
    parts: list[RenderableType] = []
    if section.title:
        parts.append(Text(in_line(section.title), style="bold cyan"))
    if section.lines:
        parts.append(Group(*(_charted(line) for line in section.lines)))
    if section.rows:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        for place, heading in enumerate(section.headings):
            left = place in section.left
            table.add_column(
                in_line(heading),
                justify="left" if left else "right",
                header_style="bold",
                overflow="fold",
                no_wrap=not left or _is_chart(section.rows, place),
            )
        for row in section.rows:
            table.add_row(*(_charted(cell) for cell in row))
        parts.append(Padding(table, (1 if section.lines else 0, 0, 0, 0), expand=False))
    return Group(*parts)


def _is_chart(rows: Sequence[tuple[str, ...]], place: int) -> bool:
    return any(row[place] and set(row[place]) <= BLOCKS for row in rows)


def _charted(text: str) -> Text:
    """The text, with its blocks in a colour of their own."""
    drawn = Text(in_line(text))
    drawn.highlight_regex(CHART, "blue")
    return drawn


def _verdict(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return ["no findings"]
    kinds = {one.severity for one in findings}
    marks = [word for kind, word in LEGEND.items() if kind in kinds]
    count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings, the worst first"
    return [f"{count}  ({', '.join(marks)})"]


def _findings(findings: Sequence[Finding]) -> RenderableType:
    """What is wrong, and what to do."""
    (verdict,) = _verdict(findings)
    if not findings:
        return Text(f"✓ {verdict}", style="green")
    parts: list[RenderableType] = [Text(verdict, style="bold")]
    for one in findings:
        style = STYLES[one.severity]
        mark = "✗" if one.severity == "error" else "!"
        head = Text.assemble((f"{mark} {one.name}", f"bold {style}"), f"  {in_line(one.said)}")
        parts.append(_hanging(head, 2))
        parts.append(Padding(Text(f"→ {in_line(one.advice)}"), (0, 0, 0, 4), expand=False))
        if one.evidence:
            parts.append(Padding(Text(evidence(one), style="dim"), (0, 0, 0, 4), expand=False))
    return Group(*parts)


def _hanging(text: Text, indent: int) -> Table:
    """Text whose further lines stand under its first word."""
    grid = Table.grid(padding=0)
    grid.add_column(width=indent, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(text[:indent], text[indent:])
    return grid


def evidence(finding: Finding) -> str:
    """`e.g. row 3 (prompt-01: 8 rows); row 5 (prompt-02: 7 rows)`, with files if there are more."""
    shown = finding.evidence[:SHOWN]
    several = len({one.file for one in shown}) > 1
    return "e.g. " + "; ".join(_evidence(one, named=several) for one in shown)


def _evidence(one: Evidence, *, named: bool) -> str:
    name = in_line(one.file.rpartition("/")[2])
    text = name if one.row is None else f"row {one.row}" + (f" of {name}" if named else "")
    group = None
    if one.group is not None:
        group = textwrap.shorten(in_line(str(one.group)), WIDEST, placeholder="…")
    notes = ": ".join(part for part in (group, in_line(one.said)) if part)
    return f"{text} ({notes})" if notes else text


def _markdown(
    title: str, lines: Sequence[str], findings: Sequence[Finding], found: Sequence[Section]
) -> None:
    """Headings, sentences and tables, as Markdown."""
    blocks = [f"# {_escaped(title)}\n", _items(lines)]
    if findings:
        blocks.append("## Findings\n")
        blocks.append("".join(_finding_item(one) for one in findings))
    for section in found:
        blocks.append(f"## {_escaped(section.title)}\n" if section.title else "")
        blocks.append(_items(section.lines))
        if section.rows:
            blocks.append(markdown_table(section.headings, section.rows))
    sys.stdout.write("\n".join(block for block in blocks if block))


def _items(lines: Sequence[str]) -> str:
    return "".join(f"- {_escaped(line)}\n" for line in lines)


def _finding_item(one: Finding) -> str:
    said = f"- **{one.name}** ({one.severity}): {_escaped(one.said)}\n"
    shown_by = f"  - {_escaped(evidence(one))}\n" if one.evidence else ""
    return f"{said}  - {_escaped(one.advice)}\n{shown_by}"


def _escaped(text: str) -> str:
    """Text of the data on one line, whose `<` opens no tag."""
    return in_line(text).replace("<", "&lt;")
