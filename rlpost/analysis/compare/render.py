"""A comparison of advantages on a screen, in a pipe, as JSON and as Markdown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from rlpost.display.console import console
from rlpost.display.tables import show_json, show_markdown
from rlpost.display.text import number, percent
from rlpost.io.text import printable_line

if TYPE_CHECKING:
    from collections.abc import Sequence


Json = dict[str, Any]
Cells = tuple[str, tuple[str, ...], list[list[str]]]  # title, headings, rows


def show(found: Json, how: str) -> None:
    """A comparison on stdout, as a `table`, as `json` or as `markdown`."""
    if how == "json":
        show_json(found)
        return
    tables = [
        _sides(found),
        _pairs(found, "responses"),
        _pairs(found, "tokens"),
        *_most_different(found),
    ]
    if how == "markdown":
        for title, headings, rows in tables:
            sys.stdout.write(f"### {title.capitalize()}\n\n")
            show_markdown(headings, rows)
            sys.stdout.write("\n")
        return
    out = console(sys.stdout)
    out.print(
        Text(printable_line(" · ".join(side["name"] for side in found["sides"])), style="bold")
    )
    out.print(_matched(found["rows"]))
    for title, headings, rows in tables:
        out.print()
        out.print(_table(title, headings, rows))
    out.print()
    out.print(Text(_NOTE, style="dim"), soft_wrap=not out.is_terminal)


_NOTE = (
    "A response's advantage is the mean over its policy tokens. Same sign: of those where either "
    "is not 0. Rows differ most after each side is divided by its root mean square."
)


def _matched(rows: Json) -> str:
    by = ", ".join({"batch": "step", "group": "prompt"}.get(key, key) for key in rows["matched_by"])
    text = f"{rows['count']:,} responses, matched by {by}"
    if rows["by_order_within"]:
        text += " and the order within"
    for name, left_out in rows["left_out"].items():
        if left_out:
            text += f"\n! {left_out:,} rows of {name} have no match and are left out"
    if rows["unequal_lengths"]:
        text += (
            f"\n! {rows['unequal_lengths']:,} rows differ in length: no tokens of theirs compared"
        )
    return text


def _table(title: str, headings: Sequence[str], rows: list[list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for place, heading in enumerate(
        (f"{title}: {headings[0]}" if headings[0] else title, *headings[1:])
    ):
        right = place > 0 and heading != "prompt"
        table.add_column(
            printable_line(heading),
            justify="right" if right else "left",
            header_style="bold",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(printable_line, row))
    return table


def _sides(found: Json) -> Cells:
    """The spread of each side's advantages, and what was clipped and masked."""
    sides = found["sides"]
    rows = [
        [f"advantage {part}", *(number(side["advantage"][part]) for side in sides)]
        for part in ("mean", "std", "min", "max")
    ]
    rows.append(["policy tokens at 0", *(_share(side["advantage"], "zeros") for side in sides)])
    names = dict.fromkeys(name for side in sides for name in side["rates"] or {})
    for name in names:
        own = [(side["rates"] or {}).get(name) for side in sides]
        if name == "masked: nonfinite" and not any(one and one["count"] for one in own):
            continue
        rows.append([_label(name), *(_rate(one) for one in own)])
    return "sides", ("", *(side["name"] for side in sides)), rows


def _label(name: str) -> str:
    words = {"masked: all": "samples masked, all", "token_reward_clip": "token rewards clipped"}
    words |= {"reward_clip": "rewards clipped", "advantage_clip": "advantages clipped"}
    return words.get(name, name.replace("_", " "))


def _share(facts: Json, part: str) -> str:
    return percent(facts[part] / facts["count"]) if facts["count"] else "–"


def _rate(facts: Json | None) -> str:
    if facts is None:
        return "–"
    if facts["rate"] is None:
        return f"{facts['count']:,}"
    return percent(facts["rate"])


def _pairs(found: Json, level: str) -> Cells:
    """How much each two sides agree, over `responses` or over `tokens`."""
    ranked = level == "responses"
    headings = ("", "Pearson", *(["Spearman"] if ranked else []), "same sign", "opposite",
                "max |Δ|", "equal")  # fmt: skip
    rows = []
    for pair in found["pairs"]:
        facts = pair[level]
        rows.append(
            [
                f"{pair['left']} · {pair['right']}",
                _correlation(facts["pearson"]),
                *([_correlation(facts["spearman"])] if ranked else []),
                _percent(facts["sign"]["agreement"]),
                f"{facts['sign']['opposite']:,}",
                number(facts["difference"]["max"]),
                _share(facts, "identical"),
            ]
        )
    return f"over {level}", headings, rows


def _correlation(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else percent(share)


def _most_different(found: Json) -> list[Cells]:
    """For each pair, the rows where the two differ most."""
    tables: list[Cells] = []
    for pair in found["pairs"]:
        rows = [
            [
                str(row["row"]),
                *([str(row["step"])] if row["step"] is not None else []),
                *([str(row["prompt_id"])] if row["prompt_id"] is not None else []),
                number(row["reward"]),
                number(row["left"]),
                number(row["right"]),
            ]
            for row in pair["most_different"]
        ]
        if not rows:
            continue
        first = pair["most_different"][0]
        keys = [name for key, name in (("step", "step"), ("prompt_id", "prompt"))
                if first[key] is not None]  # fmt: skip
        headings = ("row", *keys, "reward", pair["left"], pair["right"])
        tables.append(("differ most", headings, rows))
    return tables
