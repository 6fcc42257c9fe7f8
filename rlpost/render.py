"""What people see: the summary, the plan and tables, readable at 80 columns and in a pipe."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.console import Console, Group, RenderHook
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rlpost.controls import in_line, shown
from rlpost.progress import Silent
from rlpost.render_correction import correction_parts
from rlpost.render_pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import ConsoleOptions, ConsoleRenderable, RenderableType, RenderResult

    from rlpost.plan import Job
    from rlpost.progress import Reporter

Json = dict[str, Any]
PIPED_WIDTH = 120
MOST_ROWS = 12
_ROUNDING = 1e-15


def console(stream: TextIO) -> Console:
    """A console for a stream: plain where no terminal reads it, and nothing is cut there."""
    plain = os.environ.get("TERM") == "dumb"
    as_it_is: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    if stream.isatty():
        out = Console(file=stream, no_color=plain or None, **as_it_is)
    else:
        out = Pipe(file=stream, width=PIPED_WIDTH, force_terminal=False, no_color=True, **as_it_is)
    out.push_render_hook(_Visible())
    return out


class _Visible(RenderHook):
    """Shows control characters of whatever is printed, where rich sends most of them."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Shown(one) for one in renderables]


class Shown:
    """A renderable whose text has visible signs in place of control characters."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        for segment in out.render(self._inner, options):
            yield segment if segment.control else segment._replace(text=shown(segment.text))


class _Bar(Silent):
    """A progress bar per pass."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: Any = None

    def start(self, purpose: str, rows: int) -> None:
        if self._task is not None:
            self._bars.update(self._task, visible=False)
        self._task = self._bars.add_task(purpose, total=rows)

    def advance(self, rows: int) -> None:
        self._bars.advance(self._task, rows)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Reporter]:
    """A reporter that draws on stderr, where that is a terminal; silent elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield Silent()
        return
    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("responses"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console(sys.stderr), transient=True) as bars:
        yield _Bar(bars)


def number(value: float | None) -> str:
    """Four significant digits, without an exponent where that reads better."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    return f"{value:.4g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.3e}"  # noqa: PLR2004


def percent(share: float) -> str:
    """A share as a percentage with two decimals; what is less than all is never 100.00 %."""
    text = f"{100 * share:.2f}"
    return f"{'99.99' if text == '100.00' and share < 1 else text} %"


def show_summary(summary: Json, out: Console | None = None) -> None:
    """The summary of a run, on stderr or another console."""
    out = out or console(sys.stderr)
    parts: list[RenderableType] = [
        _overview(summary),
        _numbers(summary),
        _rates(summary),
        *correction_parts(summary, _table, number, percent),
        *_by(summary, "steps", "step"),
        *_by(summary, "domains", "domain"),
        _roles(summary),
        *(Text(f"! {in_line(text)}", style="yellow") for text in summary["warnings"]),
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
    return in_line(", ".join(paths[:2])) + rest


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", header_style="bold")
    return table


def _numbers(summary: Json) -> Table:
    table = _table("", "mean", "std", "min", "max")
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
    table = _table("clipped and masked", "count", "rate", "")
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
    table = _table(f"by {column}", "responses", "reward", "KL", "advantage", "std", "masked")
    shown = rows if len(rows) <= MOST_ROWS else [*rows[: MOST_ROWS // 2], *rows[-MOST_ROWS // 2 :]]
    for place, row in enumerate(shown):
        if len(rows) > MOST_ROWS and place == MOST_ROWS // 2:
            table.add_row(f"… {len(rows) - MOST_ROWS} more", style="dim")
        table.add_row(
            in_line(str(row[column])),
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
    return Text(f"Columns: {in_line(named)}", style="dim")


def _times(summary: Json) -> Text:
    seconds = summary["seconds"]
    total = seconds["total"]
    rate = summary["tokens"]["all"] / total / 1e6 if total else 0.0
    lines = [
        f"{total:.2f} s, {rate:.2f} M tokens/s; passes: {_phases(seconds['passes'])}",
        f"threads' time: {_phases(seconds['busy'])}",
        *([_halved(summary["halved_pieces"])] if summary["halved_pieces"] else []),
        *(f"written anew, not spliced: {in_line(reason)}" for reason in summary["rewritten"]),
    ]
    return Text("\n".join(lines), style="dim")


def _halved(pieces: int) -> str:
    return f"{pieces} pieces were halved: the device's memory did not hold them whole"


def _phases(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())


def show_plan(job: Job) -> None:
    """The passes over the input, on stdout."""
    out = console(sys.stdout)
    table = _table("pass", "reads", "columns")
    table.columns[2].justify = "left"
    table.columns[2].overflow = "fold"
    for place, step in enumerate(job.passes(), 1):
        size = job.source.bytes_of(step.columns) / 1e6
        columns = in_line(", ".join(step.columns))
        table.add_row(f"{place} {step.purpose}", f"{size:,.2f} MB", columns)
    out.print(f"{in_line(job.source.name)}: {job.source.rows:,} responses")
    out.print(table)
    out.print(f"Stages: {', '.join(stage.name for stage in job.stages)}")
    why = f"all together: {job.together}" if job.together else "step by step"
    out.print(f"On Ray and for shards, responses settle {why}")
