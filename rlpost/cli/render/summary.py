"""What people see: the summary, the plan and tables, readable at 80 columns and in a pipe.

The off-policy correction in the rendered summary.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from rlpost.display.console import console
from rlpost.display.tables import MOST_ROWS, metric_table
from rlpost.display.text import number, percent
from rlpost.io.text import printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType
    from rich.table import Table


def correction_parts(
    summary: Json,
    table: Callable[..., Table],
    number: Callable[[float | None], str],
    percent: Callable[[float], str],
) -> list[RenderableType]:
    """A table of what was truncated, masked and rejected, and how far the policies are apart.

    Args:
        summary: of a run; without a correction there is nothing to show.
        table: makes an empty table of these headings.
        number: writes a number.
        percent: writes a share.
    """
    facts = summary.get("correction")
    if not facts:
        return []
    rates = table("off-policy correction", "tokens", "rate", "responses", "rate")
    for label, row in _rows(facts):
        rates.add_row(
            label,
            f"{row['tokens']:,}",
            percent(row["token_rate"]),
            f"{row['responses']:,}",
            percent(row["response_rate"]),
        )
    apart = Text("\n".join(_apart(facts, number, percent)))
    return [rates, apart] if rates.row_count else [apart]


def _apart(
    facts: Json, number: Callable[[float | None], str], percent: Callable[[float], str]
) -> Iterator[str]:
    kl, chi = facts["kl"], facts["chi_square"]
    yield f"KL(engine ‖ trainer): {number(kl['k1'])} (k1), {number(kl['k3'])} (k3) nats per token"
    yield f"χ²: {number(chi['token'])} per token, {number(chi['sequence'])} per response"
    if facts["ess"] is not None:
        yield f"effective sample size: {percent(facts['ess'])} of the weighed tokens"
    yield f"engine sure (p ≥ 0.5), trainer over 2 nats off: {facts['sure_but_wrong']:,} tokens"


def _rows(facts: Json) -> Iterator[tuple[str, Json]]:
    if facts["truncated"]:
        yield "weights truncated", facts["truncated"]
    if facts["masked"]:
        yield "weights masked", facts["masked"]
    for one in facts["filters"]:
        yield f"rejected by {one['filter']}", one
    if len(facts["filters"]) > 1:
        yield "rejected, all together", facts["rejected"]


_ROUNDING = 1e-15
Json = dict[str, Any]


def show_summary(summary: Json, out: Console | None = None) -> None:
    """The summary of a run, on stderr or another console."""
    out = out or console(sys.stderr)
    parts: list[RenderableType] = [
        _overview(summary),
        _numbers(summary),
        _rates(summary),
        *correction_parts(summary, metric_table, number, percent),
        *_by(summary, "steps", "step"),
        *_by(summary, "domains", "domain"),
        _roles(summary),
        *(Text(f"! {printable_line(text)}", style="yellow") for text in summary["warnings"]),
        _times(summary),
    ]
    spaced = [piece for part in parts for piece in (part, Text(""))][:-1]
    title = f"rlpost advantages · {summary.get('asked_estimator', summary['estimator'])}"
    if summary.get("preset"):
        title += f", as {summary['preset']} has it"
    if out.is_terminal:
        out.print(Panel(Group(*spaced), title=Text(title), title_align="left", border_style="dim"))
    else:
        out.print(title, *spaced, sep="\n")


def _overview(summary: Json) -> Text:
    tokens, groups = summary["tokens"], summary["groups"]
    policy = tokens["policy"] / tokens["all"] if tokens["all"] else 0.0
    lines = [
        _few(summary["inputs"]),
        f"  → {_few(summary['outputs'])}",
        (
            f"{summary['responses']:,} responses, {tokens['all']:,} tokens, "
            f"{percent(policy)} of them the policy's"
        ),
    ]
    if groups and groups["count"]:
        size = groups["size"]
        span = str(size["min"]) if size["min"] == size["max"] else f"{size['min']} to {size['max']}"
        by = " and ".join(groups["by"])
        lines.append(f"{groups['count']:,} groups of {span}, by {by}")
        single, equal = groups["single"], groups["zero_variance"]
        lines.append(f"  {single:,} of a single row, {equal:,} with equal rewards")
    return Text("\n".join(lines))


def _few(paths: list[str]) -> str:
    """The first paths of many."""
    rest = f" and {len(paths) - 2} more" if len(paths) > 2 else ""  # noqa: PLR2004
    return printable_line(", ".join(paths[:2])) + rest


def _numbers(summary: Json) -> Table:
    table = metric_table("", "mean", "std", "min", "max")
    rows = {
        "reward, as dumped": "reward",
        "reward, post-processed": "response_level_reward",
        "KL, mean of a response": "kl",
        "advantage per token": "advantage",
        "return per token": "return",
        "sample weight": "sample_weight",
    }
    for label, key in rows.items():
        if key in summary:
            table.add_row(label, *_statistic(summary[key]))
    if "weight" in summary.get("correction", {}):
        table.add_row("importance weight", *_statistic(summary["correction"]["weight"]))
    return table


def _statistic(facts: Json) -> list[str]:
    """Mean, deviation, min and max; a mean that is 0 but for rounding reads 0."""
    largest = max((abs(facts[end]) for end in ("min", "max") if facts[end] is not None), default=0)
    mean = facts["mean"]
    if mean is not None and abs(mean) < _ROUNDING * largest:
        mean = 0.0
    return [number(mean), *(number(facts[part]) for part in ("std", "min", "max"))]


def _rates(summary: Json) -> Table:
    table = metric_table("clipped and masked", "count", "rate", "")
    table.columns[3].justify = "left"
    clips = {
        "reward_clip": ("response rewards clipped", "responses"),
        "token_reward_clip": ("token rewards clipped", "policy tokens"),
        "advantage_clip": ("advantages clipped", "kept policy tokens"),
    }
    for key, (label, of) in clips.items():
        clip = summary[key]
        if clip:
            note = f"of {of}, to ±{number(clip['bound'])}"
            table.add_row(label, f"{clip['count']:,}", percent(clip["fraction"]), note)
        else:
            table.add_row(label, "–", "–", "no bound set", style="dim")
    for name, mask in summary["masked"].items():
        label = "samples masked, all together" if name == "all" else f"masked: {name}"
        if name != "nonfinite" or mask["responses"]:
            table.add_row(
                label.replace("_", " "), f"{mask['responses']:,}", percent(mask["rate"]),
                "of responses",
            )  # fmt: skip
    coefficient = summary.get("kl", {}).get("coefficients")
    if coefficient is not None:
        table.add_row(*_coefficient(coefficient, summary["kl"]["estimator"]))
    return table


def _coefficient(coefficient: float | list[Json], estimator: str) -> tuple[str, ...]:
    if isinstance(coefficient, float | int):
        note = "measured, not subtracted" if coefficient == 0 else "subtracted per token"
        return f"KL coefficient ({estimator})", number(coefficient), "", note
    first, last = coefficient[0]["coefficient"], coefficient[-1]["coefficient"]
    return f"KL coefficient ({estimator})", number(last), "", f"adaptive, from {number(first)}"


def _by(summary: Json, key: str, column: str) -> list[Table]:
    rows = summary[key]
    if len(rows) < 2:  # noqa: PLR2004
        return []
    table = metric_table(f"by {column}", "responses", "reward", "KL", "advantage", "std", "masked")
    shown = rows if len(rows) <= MOST_ROWS else [*rows[: MOST_ROWS // 2], *rows[-MOST_ROWS // 2 :]]
    for place, row in enumerate(shown):
        if len(rows) > MOST_ROWS and place == MOST_ROWS // 2:
            table.add_row(f"… {len(rows) - MOST_ROWS} more", style="dim")
        table.add_row(
            printable_line(str(row[column])),
            f"{row['responses']:,}",
            number(row["reward"]["mean"]),
            number(row.get("kl", {}).get("mean")),
            _statistic(row["advantage"])[0],
            number(row["advantage"]["std"]),
            percent(row["masked"]["all"]["rate"]),
        )
    return [table]


def _roles(summary: Json) -> Text:
    roles = summary["roles"].items()
    named = ", ".join(
        role if role == facts["column"] else f"{role} = {facts['column']} ({facts['found_by']})"
        for role, facts in roles
    )
    return Text(f"Columns: {printable_line(named)}", style="dim")


def _times(summary: Json) -> Text:
    seconds = summary["seconds"]
    total = seconds["total"]
    rate = summary["tokens"]["all"] / total / 1e6 if total else 0.0
    lines = [
        f"{total:.2f} s, {rate:.2f} M tokens/s; passes: {_phases(seconds['passes'])}",
        f"threads' time: {_phases(seconds['busy'])}",
        *([_halved(summary["halved_pieces"])] if summary["halved_pieces"] else []),
        *(
            f"written anew, not spliced: {printable_line(reason)}"
            for reason in summary["rewritten"]
        ),
    ]
    return Text("\n".join(lines), style="dim")


def _halved(pieces: int) -> str:
    return f"{pieces} pieces were halved: the device's memory did not hold them whole"


def _phases(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
