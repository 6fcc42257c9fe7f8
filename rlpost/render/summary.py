"""The summary of a run, and its plan, for terminals and pipes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from rlpost.display.console import console
from rlpost.display.controls import printable_line
from rlpost.display.tables import TextTable, elided
from rlpost.display.text import (
    counted,
    number,
    percent,
    plural,
    reads_tokens,
    role_columns,
    run_times,
    size,
)
from rlpost.pipeline.update.files import REASONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from rlpost.pipeline.plan import Plan


Json = dict[str, Any]
NONE = "–"
_ROUNDING = 1e-15
_FEW = 5  # files that are named
_MASK_LABELS = {
    "all": "responses masked, total",
    "sample_mask": "masked: sample mask of the input",
}
_PROCESS = {
    "response": "process rewards: summed, part of the response's reward (before any baseline)",
    "token": "process rewards: added to their tokens (after reward normalisation)",
}
_ROLLOUT_REWARD = {
    "equal": "that of each of its rows, which agree",
    "last": "that of its last row",
    "sum": "the sum over its rows",
    "mean": "the mean over its rows",
}


def show_plan(plan: Plan) -> None:
    """Print the passes over the input on stdout."""
    from rlpost.pipeline.output.columns import emitted  # noqa: PLC0415 - torch takes a second to import

    passes = plan.passes(emitted(plan.resolved), keeping=True)
    rows = [
        (
            f"{i} {one.purpose}",
            size(plan.source.bytes_of(one.columns)),
            printable_line(", ".join(one.columns)) or NONE,
        )
        for i, one in enumerate(passes, 1)
    ]
    notes = {i: _kept(plan, one.keeps) for i, one in enumerate(passes) if one.keeps}
    out = console(sys.stdout)
    out.print(f"{printable_line(plan.source.name)}: {counted(plan.source.rows, 'response')}")
    out.print(TextTable(("pass", "reads", "columns"), rows, text=(0, 2), row_notes=notes))
    out.print(f"Stages: {', '.join(stage.name for stage in plan.stages if stage.runs)}")
    scope = f"all steps together: {plan.why_one_table}" if plan.why_one_table else "step by step"
    out.print(f"Response-level statistics on Ray and in shards: {scope}")


def _kept(plan: Plan, names: tuple[str, ...]) -> str:
    """Return what a pass keeps: columns of float64, or of flags, which are smaller."""
    from rlpost.pipeline.kept import IN_MEMORY  # noqa: PLC0415 - torch takes a second to import

    most = 8 * len(names) * plan.source.values_of(plan.sized_by)
    where = "in memory" if most <= IN_MEMORY else "in a scratch file"
    return f"keeps {', '.join(names)}: up to {size(most)} {where}"


def show_update(facts: Json, out: Console | None = None) -> None:
    """Print which files an update writes, on stdout or on another console."""
    (out or console(sys.stdout)).print(_update(facts))


def _update(facts: Json) -> Text:
    """Return which files an update wrote, or would write, and why."""
    count = facts["written"] or facts["chosen"]
    verb = "written" if facts["written"] else "to write"
    why = [f"{number:,} {REASONS[name]}" for name, number in facts["reasons"].items() if number]
    files = f"{count:,} of {counted(facts['files'], 'file')} {verb}"
    lines = [f"{files}: {', '.join(why)}" if why else files]
    if 0 < count <= _FEW:
        lines += [
            f"  {printable_line(name)}: {REASONS[why]}" for name, why in facts["names"].items()
        ]
    vanished = "no longer exists, and its output is kept (--delete deletes it)"
    several = "no longer exist, and their outputs are kept (--delete deletes them)"
    for name, one, more in (
        ("incomplete", "file is not complete yet", "files are not complete yet"),
        ("waiting", "file waits for one before it", "files wait for one before them"),
        (
            "skipped",
            "file is of no format that rlpost reads",
            "files are of no format that rlpost reads",
        ),
        ("empty", "file has no rows yet", "files have no rows yet"),
        (
            "blocked",
            "output is not replaced, since rlpost advantages did not write it, or it is damaged",
            "outputs are not replaced: rlpost advantages did not write them, or they are damaged",
        ),
        ("missing_inputs", f"input {vanished}", f"inputs {several}"),
        (
            "deleted",
            "output of a vanished input is deleted",
            "outputs of vanished inputs are deleted",
        ),
        (
            "computed_with_deleted",
            "output was computed with a deleted one: delete it, too, to write it anew",
            "outputs were computed with deleted ones: delete them, too, to write them anew",
        ),
    ):
        if paths := facts[name]:
            what = one if len(paths) == 1 else more
            lines.append(f"{len(paths):,} {what}: {_first_paths(paths)}")
    if unproven := facts["unproven"]:
        reason = next(iter(unproven.values()))
        what = "output is" if len(unproven) == 1 else "outputs are"
        lines.append(
            f"{len(unproven):,} {what} kept, though no input was found: {_first_paths([*unproven])}"
            f" ({printable_line(reason)})"
        )
    return Text("\n".join(lines))


def show_summary(summary: Json, out: Console | None = None) -> None:
    """Print the summary of a run on stderr, or on another console."""
    out = out or console(sys.stderr)
    if "update" in summary:
        show_update(summary["update"], out)
        if not summary["update"]["written"]:
            return
        out.print()
    parts: list[RenderableType] = [
        _overview(summary),
        _numbers(summary),
        *_components(summary),
        _rates(summary),
        *_penalty(summary),
        *_correction(summary),
        *_by(summary, "steps", "step"),
        *_by(summary, "domains", "domain"),
        _roles(summary),
        *(Text(f"✗ {printable_line(text)}", style="red") for text in summary["errors"]),
        *(Text(f"! {printable_line(text)}", style="yellow") for text in summary["warnings"]),
        *([_times(summary)] if "seconds" in summary else []),
    ]
    spaced = [line for part in parts for line in (part, Text(""))][:-1]
    title = f"rlpost advantages · {summary.get('requested_estimator', summary['estimator'])}"
    if summary.get("preset"):
        title += f" · preset {summary['preset']}"
    if out.is_terminal:
        out.print(Panel(Group(*spaced), title=Text(title), title_align="left", border_style="dim"))
    else:
        out.print(title, *spaced, sep="\n")


def _overview(summary: Json) -> Text:
    groups = summary["groups"]
    lines = [f"{counted(summary['responses'], 'response')}, {_tokens(summary)}"]
    if "inputs" in summary:  # otherwise a table was enriched
        paths = (_first_paths(summary[key]) for key in ("inputs", "outputs"))
        lines = ["\n  → ".join(paths), *lines]
    if groups and groups["count"]:
        sizes = groups["size"]
        low, high = sizes["min"], sizes["max"]
        span = str(low) if low == high else f"{low} to {high}"
        by = " and ".join(groups["by"])
        rule = _rollout_rule(summary)
        unit = "rollout" if rule else "response"
        of = f"{span} {plural(unit)}" if rule else span
        lines.append(f"{counted(groups['count'], 'prompt group')} of {of}, by {by}")
        single = counted(groups["single"], f"single-{unit} group")
        equal = groups["zero_variance"]
        constant = "" if equal is None else f", {counted(equal, 'group')} with zero reward variance"
        lines.append(f"  {single}{constant}")
        lines += [rule] if rule else []
    if "process_reward" in summary:
        lines.append(_PROCESS[summary["process_reward"]["added_per"]])
    return Text("\n".join(lines))


def _tokens(summary: Json) -> str:
    """Return how many tokens there are, or that the input has none."""
    tokens = summary["tokens"]
    if tokens is None:
        return "without tokens: one advantage per response"
    if not reads_tokens(summary):
        count = f"without tokens; {counted(tokens['all'], 'token')}"
        if "response" in summary["roles"]:
            text = summary["roles"]["response"]["column"]
            return f"{count} in `{text}` by {summary['recipe']['tokenizer']}"
        return f"{count} by `{summary['roles']['response_length']['column']}`"
    policy = percent(tokens["policy"] / tokens["all"] if tokens["all"] else 0.0)
    return f"{counted(tokens['all'], 'token')} ({policy} policy)"


def _rollout_rule(summary: Json) -> str:
    """Return the line about rewards of rollouts; empty if each row counts as a response."""
    if "rollout" not in summary["roles"]:
        return ""
    rule = _ROLLOUT_REWARD[summary["recipe"]["rollout_reward"]]
    return f"reward of a rollout (`{summary['roles']['rollout']['column']}`): {rule}"


def _first_paths(paths: list[str]) -> str:
    rest = f" and {len(paths) - 2:,} more" if len(paths) > 2 else ""  # noqa: PLR2004
    return printable_line(", ".join(paths[:2])) + rest


def _numbers(summary: Json) -> TextTable:
    kept = "kept response" if summary["tokens"] is None else "kept token"
    statistics = {
        _raw_reward(summary): "reward",
        "process rewards, sum": "process_reward",
        "reward after post-processing": "response_level_reward",
        "mean KL of a response": "kl",
        f"advantage per {kept}": "advantage",
        f"return per {kept}": "return",
        "sample weight": "sample_weight",
    }
    rows = [(name, *_statistic(summary[key])) for name, key in statistics.items() if key in summary]
    if "weight" in summary.get("correction", {}):
        rows.append(("importance weight", *_statistic(summary["correction"]["weight"])))
    return TextTable(("", "mean", "std", "min", "max"), rows)


def _raw_reward(summary: Json) -> str:
    """Return the heading of raw rewards, which counts every row of a rollout."""
    return "raw reward per row" if _rollout_rule(summary) else "raw reward"


def _statistic(facts: Json) -> tuple[str, ...]:
    """Return mean, standard deviation, minimum and maximum; rounding errors around 0 are 0."""
    largest = max((abs(facts[end]) for end in ("min", "max") if facts[end] is not None), default=0)
    mean = facts["mean"]
    if mean is not None and abs(mean) < _ROUNDING * largest:
        mean = 0.0
    return number(mean), *(number(facts[name]) for name in ("std", "min", "max"))


def _components(summary: Json) -> list[RenderableType]:
    """Return the table of reward components, and what its columns mean."""
    components = summary.get("components")
    if not components:
        return []
    rows = [
        (
            name,
            *(number(one[part]) for part in ("weight", "mean", "std")),
            NONE if one["zero_variance"] is None else f"{one['zero_variance']:,}",
            NONE if one["reward_correlation"] is None else f"{one['reward_correlation']:+.2f}",
            percent(one["advantage_share"], 1),
        )
        for name, one in components.items()
    ]
    headings = ("reward component", "weight", "mean", "std", "equal", "corr.", "share")
    note = "equal: groups with one value; corr.: with the reward; share: of the advantage"
    return [TextTable(headings, rows, notes=[note])]


def _rates(summary: Json) -> TextTable:
    """Return the table of clipped values and masked responses."""
    clips = {
        "reward_clip": "response rewards clipped",
        "token_reward_clip": "token rewards clipped",
        "advantage_clip": "advantages clipped",
    }
    rows: list[tuple[str, str, str]] = []
    notes: dict[int, str] = {}
    for key, name in clips.items():
        clip = summary[key]
        if clip:
            notes[len(rows)] = f"of {clip['of']}, to ±{number(clip['bound'])}"
            rows.append((name, f"{clip['count']:,}", percent(clip["fraction"])))
        else:
            rows.append((name, NONE, NONE))
    for name, mask in summary["masked"].items():
        label = _MASK_LABELS.get(name, f"masked: {name.replace('_', ' ')}")
        if name != "nonfinite" or mask["responses"]:
            rows.append((label, f"{mask['responses']:,}", percent(mask["rate"])))
    return TextTable(("clipping and masks", "count", "rate"), rows, row_notes=notes)


def _penalty(summary: Json) -> list[Text]:
    """Return the KL coefficient, and what it does."""
    kl = summary.get("kl", {})
    if kl.get("coefficients") is None:
        return []
    value, note = _coefficient(kl["coefficients"], kl["credit"], kl.get("target"))
    if not kl.get("measured", True):
        note = "KL not measured, since no tokens are read; add kl to --emit to measure it"
    return [Text(f"KL coefficient: {value} (estimator {kl['estimator']}); {note}")]


_CREDITED = {
    "return": "subtracted from token rewards",
    "token": "subtracted from token advantages",
    "response": "subtracted from rewards before normalisation",
    "none": "KL measured, not subtracted",
}


def _coefficient(
    coefficient: float | list[Json], credit: str, target: float | None
) -> tuple[str, str]:
    """Return the KL coefficient, the last one if it adapts, and a note.

    Args:
        coefficient: β, or that of each batch.
        credit: where the penalty is subtracted, as in the numerics.
        target: of the mean KL of a response, if the coefficient adapts.
    """
    where = _CREDITED[credit]
    if isinstance(coefficient, float | int):
        note = _CREDITED["none"] if coefficient == 0 else where
        return number(coefficient), note
    first, last = coefficient[0]["coefficient"], coefficient[-1]["coefficient"]
    adapted = f"adapted from {number(first)} to reach a mean KL of {number(target)}"
    return number(last), f"{adapted}; {where}"


def _correction(summary: Json) -> list[RenderableType]:
    """Return the table of the off-policy correction, and the divergence between policies."""
    facts = summary.get("correction")
    if not facts:
        return []
    rows = [
        (
            name,
            f"{row['tokens']:,}",
            percent(row["token_rate"]),
            f"{row['responses']:,}",
            percent(row["response_rate"]),
        )
        for name, row in _corrected(facts)
    ]
    headings = ("off-policy correction", "tokens", "rate", "responses", "rate")
    divergence = Text("\n".join(_divergence(facts)))
    return [TextTable(headings, rows), divergence] if rows else [divergence]


def _corrected(facts: Json) -> Iterator[tuple[str, Json]]:
    if facts["truncated"]:
        yield "weights truncated", facts["truncated"]
    if facts["masked"]:
        yield "weights masked", facts["masked"]
    for one in facts["filters"]:
        yield f"rejected by {one['filter']}", one
    if len(facts["filters"]) > 1:
        yield "rejected, total", facts["rejected"]


def _divergence(facts: Json) -> Iterator[str]:
    kl, chi = facts["kl"], facts["chi_square"]
    yield f"KL(engine ‖ trainer): {number(kl['k1'])} (k1), {number(kl['k3'])} (k3) nats per token"
    yield f"χ²: {number(chi['token'])} per token, {number(chi['sequence'])} per response"
    if facts["ess"] is not None:
        yield f"effective sample size: {percent(facts['ess'])} of the weighted tokens"
    surprising = counted(facts["confident_disagreement"], "token")
    yield f"{surprising} with engine probability ≥ 0.5 and trainer over 2 nats lower"


def _by(summary: Json, key: str, column: str) -> list[TextTable]:
    """Return the table by step or domain, if there are several."""
    if len(summary[key]) < 2:  # noqa: PLR2004
        return []
    rows = [
        (
            str(row[column]),
            f"{row['responses']:,}",
            number(row.get("reward", {}).get("mean")),
            number(row.get("kl", {}).get("mean")),
            _statistic(row["advantage"])[0],
            number(row["advantage"]["std"]),
            percent(row["masked"]["all"]["rate"]),
        )
        for row in summary[key]
    ]
    headings = (
        f"by {column}",
        "responses",
        _raw_reward(summary),
        "KL",
        "advantage",
        "std",
        "masked",
    )
    return [TextTable(headings, elided(rows))]


def _roles(summary: Json) -> Text:
    return Text(f"Columns: {printable_line(role_columns(summary['roles']))}", style="dim")


def _times(summary: Json) -> Text:
    """Return the time of the whole run with its parts, and what made it slower."""
    lines = [printable_line(line) for line in run_times(summary)]
    return Text("\n".join(lines), style="dim")
