"""The summary of a run as a page: what trains anything first, whether it was written last."""

from __future__ import annotations

import shlex
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from rlpost.display.charts import bar, spark
from rlpost.display.console import console
from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import (
    aligned,
    counted,
    mean_beside,
    number,
    percent,
    plural,
    reads_tokens,
    role_columns,
    run_times,
    size,
    value_list,
)
from rlpost.display.trends import Trend, trend_blocks, trend_table
from rlpost.pipeline.device import CPU
from rlpost.pipeline.summary import NO_SIGNAL
from rlpost.pipeline.words import mask_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console


Json = dict[str, Any]
_BAR = 20  # characters of the longest bar
_FEW_STEPS = 8  # fewer have a line, not a table
_DOMAINS = 5  # those with the least signal
_SEVERAL = 2
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


def show_summary(summary: Json, out: Console | None = None, *, verbose: bool = False) -> None:
    """Print the summary of a run on stderr, or on another console."""
    summary_page(summary, verbose=verbose).show(out or console(sys.stderr))


def summary_page(summary: Json, *, verbose: bool = False) -> Page:
    """Return the page of a run.

    Args:
        summary: from a run.
        verbose: with all domains and steps, columns, times and bytes.
    """
    skipped = [*_skipped(summary)]
    if not summary["responses"]:
        current = [notice.text for notice in skipped if notice.severity == "ok"]
        left = [notice for notice in skipped if notice.severity != "ok"]
        verdict = Notice("ok", "; ".join(["nothing written", *current]))
        return Page("rlpost advantages --skip-existing", notices=left, verdict=verdict)
    dead = summary["signal"]["no_signal"]
    errors = [Notice("error", text) for text in summary["errors"] if text != NO_SIGNAL or not dead]
    warnings = [Notice("warning", text) for text in summary["warnings"]] + skipped
    parts = [
        _signal(summary),
        _numbers(summary, verbose=verbose),
        *_components(summary),
        *_funnel(summary),
        *_clips(summary),
        *_correction(summary, verbose=verbose),
        *_domains(summary, verbose=verbose),
        *_steps(summary),
        *(_details(summary) if verbose else ()),
    ]
    return Page(
        _title(summary),
        _overview(summary),
        parts,
        [*warnings, *errors],
        _verdict(summary, errors),
        _next_steps(summary),
    )


def _skipped(summary: Json) -> Iterator[Notice]:
    """Yield the files that a run with --skip-existing did not write."""
    for name, what in (
        ("up_to_date", "up to date"),
        ("waiting", "waiting: without a footer or rows yet, or changed while it was read"),
        ("failed", "not written: bad input"),
    ):
        if paths := summary.get("skip_existing", {}).get(name):
            more = f" and {len(paths) - 2:,} more" if len(paths) > 2 else ""  # noqa: PLR2004
            text = f"{counted(len(paths), 'file')} {what}"
            yield Notice(
                "ok" if name == "up_to_date" else "warning",
                text,
                places=", ".join(paths[:2]) + more,
            )


def _title(summary: Json) -> str:
    return f"rlpost advantages{_transition(summary)}"


def _transition(summary: Json) -> str:
    """Return the inputs and the outputs."""
    if "inputs" not in summary:
        return " · a table in memory"
    inputs, outputs = (_paths(summary[key]) for key in ("inputs", "outputs"))
    return f" · {inputs} → {outputs}" if outputs else f" · {inputs}"


def _paths(paths: Sequence[str]) -> str:
    """Return the name of one file, or the number of several and their directory."""
    if len(paths) < _SEVERAL:
        return "".join(paths)
    return f"{counted(len(paths), 'file')} of {PurePath(paths[0]).parent}"


def _overview(summary: Json) -> list[str]:
    parts = [counted(summary["responses"], _row(summary)), _tokens(summary)]
    if "rollouts" in summary:
        parts[0] += f" of {counted(summary['rollouts']['count'], 'rollout')}"
    groups, rule = summary["groups"], _rollout_rule(summary)
    if groups and groups["count"]:
        low, high = groups["size"]["min"], groups["size"]["max"]
        span = str(low) if low == high else f"{low} to {high}"
        unit = f" {plural('rollout')}" if rule else ""
        by = " and ".join(groups["by"])
        parts.append(f"{counted(groups['count'], 'group')} of {span}{unit} by {by}")
    lines = [", ".join(parts), _recipe(summary)]
    lines += [summary["steps_read"]["line"]] if "steps_read" in summary else []
    lines += unit_line(**summary["unit"])
    lines += [rule] if rule else []
    text = summary.get("recorded", {}).get("text")
    lines += [text] if text and text not in summary["warnings"] else []
    if "process_reward" in summary:
        lines.append(_PROCESS[summary["process_reward"]["added_per"]])
    lines += mapped_columns(summary["roles"])
    if "device" in summary and summary["device"]["name"] != CPU:
        lines.append("computed on {name}: {reason}".format(**summary["device"]))
    return lines


def unit_line(name: str, reason: str) -> list[str]:
    """Return the line of what statistics of responses count, if the input has rollouts."""
    return [f"counts {plural(name)}: {reason}"] if reason else []


def _row(summary: Json) -> str:
    """Return the noun of a row of the input."""
    return "row" if "rollouts" in summary else "response"


def mapped_columns(roles: Json) -> list[str]:
    """Return a line of the columns that an alias or --map chose, or that others could replace."""
    chosen = {
        role: facts
        for role, facts in roles.items()
        if facts["found_by"] != "name" or "ignored" in facts
    }
    return [f"columns: {role_columns(chosen)}"] if chosen else []


def _tokens(summary: Json) -> str:
    """Return how many policy tokens there are, or that the input has none."""
    tokens = summary["tokens"]
    if tokens is None:
        return "without tokens"
    if not reads_tokens(summary):
        if "response" in summary["roles"]:
            text = summary["roles"]["response"]["column"]
            by = f"in `{text}` by {summary['recipe']['tokenizer']}"
        else:
            by = f"by `{summary['roles']['response_length']['column']}`"
        return f"without token columns ({counted(tokens['all'], 'token')} {by})"
    if tokens["policy"] == tokens["all"]:
        return counted(tokens["policy"], "policy token")
    share = percent(tokens["policy"] / tokens["all"])
    return f"{counted(tokens['all'], 'token')} ({share} policy)"


def _recipe(summary: Json) -> str:
    """Return the recipe in words, in the order in which one asks: advantages of which rewards."""
    words = {**summary["computes"]}
    words.pop("masks", None)  # the funnel has them
    parts = [words.pop("advantages")]
    if words.get("rewards", "").startswith(("(r ", "r ")):  # a formula
        parts = [f"{parts[0]}: {words.pop('rewards')}"]
    parts += [f"{stage} {text}" for stage, text in words.items()]
    preset = f"preset {summary['preset']}, " if summary.get("preset") else ""
    return preset + "; ".join(parts)


def _rollout_rule(summary: Json) -> str:
    """Return the line about rewards of rollouts; empty if each row counts as a response."""
    if "rollouts" not in summary:
        return ""
    rule = _ROLLOUT_REWARD[summary["recipe"]["rollout_reward"]]
    return f"reward of a rollout (`{summary['roles']['rollout']['column']}`): {rule}"


def _signal(summary: Json) -> TextTable:
    """Return groups with a signal, the shape of the advantages, and tokens by their sign."""
    signal = summary["signal"]
    lines = [line for line in (_groups(summary), _shape(summary), _critic(summary)) if line]
    tokens = signal["tokens"]
    shares = {sign: tokens[name]["share"] for sign, name in _SIGNS.items()}
    largest = max((share for share in shares.values() if share is not None), default=0) or 1
    unit = "response" if summary["tokens"] is None else "token"
    rows = [
        (
            f"A {sign} 0",
            percent(shares[sign]),
            bar(shares[sign] or 0, largest, _BAR),
            counted(tokens[name]["tokens"], unit),
            _length(tokens[name]["mean_length"]),
        )
        for sign, name in _SIGNS.items()
    ]
    return TextTable((), rows, "Learning signal", lines, text=(0, 2))


def _length(mean: float | None) -> str:
    """Return the mean length of responses by the sign of their mean advantage."""
    return "" if mean is None else f"mean length {mean:,.1f}"


_SIGNS = {">": "positive", "<": "negative", "=": "zero"}


def _groups(summary: Json) -> str:
    """Return the line about groups."""
    facts, groups = summary["signal"]["groups"], summary["groups"]
    if not facts or not facts["count"]:
        return ""
    count, equal = facts["count"], facts["equal_rewards"]
    parts = []
    if facts["with_signal"] is not None:
        parts.append(f"{facts['with_signal']:,} of {counted(count, 'group')} with signal")
    if equal:
        passes = f"{facts['all_pass']:,} all pass, {facts['none_pass']:,} none"
        of = "" if parts else f" of {counted(count, 'group')}"
        parts.append(f"equal rewards in {equal:,}{of}: {passes}")
    if groups["single"]:
        unit = "rollout" if "rollouts" in summary else "response"
        number_of = f"{groups['single']:,}" if parts else counted(groups["single"], "group")
        parts.append(f"{number_of} of one {unit}")
    return "; ".join(parts)


def _shape(summary: Json) -> str:
    """Return the line about the advantages: their histogram, mean and deviation."""
    facts, columns = summary["advantage"], summary["signal"]["histogram"]
    if facts["mean"] is None or not columns["counts"]:
        return ""
    low, high = (number(facts[end], digits=3) for end in ("min", "max"))
    mean, std = aligned([_mean(facts), facts["std"]])
    what = "A ≠ 0:" if summary["signal"]["tokens"]["zero"]["tokens"] else "A:"
    return f"{what} {low} {spark(columns['counts'])} {high}; all: mean {mean}, std {std}"


def _critic(summary: Json) -> str:
    facts = summary.get("critic")
    if not facts or facts["explained_variance"] is None:
        return ""
    share = facts["explained_variance"]
    explained = percent(share) if share >= 0 else f"-{percent(-share)}"
    returns = "the returns that the estimator computes"
    return f"critic: the values explain {explained} of the variance of {returns}"


def _mean(facts: Json) -> float | None:
    return mean_beside(facts["mean"], facts["std"])


def _numbers(summary: Json, *, verbose: bool) -> TextTable:
    """Return the statistics of rewards, KL, returns and weights, each with its population."""
    masked, tokens = summary["masked"], summary["signal"]["tokens"]["count"]
    out = ["nonfinite", "sample_mask", "superseded"]
    out += ["failure"] if summary["recipe"]["failures"] == "drop" else []
    left_out = sum(masked[name]["new"] for name in out if name in masked)
    responses = units = counted(summary["responses"] - left_out, _row(summary))
    if "rollouts" in summary:
        units = counted(summary["rollouts"]["counted"], "rollout")
    of_tokens = counted(tokens, "response" if summary["tokens"] is None else "policy token")
    means = f"{responses}{'' if responses == '1 response' else chr(39)} means"
    facts = [
        ("raw reward", "reward", units),
        ("process rewards, sum", "process_reward", responses),
        ("reward after normalisation", "response_level_reward", responses),
        (f"KL per token ({summary.get('kl', {}).get('estimator')})", "kl", means),
        ("advantage", "advantage", of_tokens),
        ("return", "return", of_tokens),
        ("sample weight", "sample_weight", responses),
    ]
    chosen = [
        (name, summary[key], of)
        for name, key, of in facts
        if key in summary
        and (verbose or key not in ("advantage", "response_level_reward"))
        and not (key == "return" and summary["return"] == summary["advantage"])
        and summary[key]["mean"] is not None
    ]
    if "weight" in summary.get("correction", {}):
        chosen.append(("importance weight", summary["correction"]["weight"], of_tokens))
    rows = [
        (name, *aligned([_mean(row), row["std"], row["min"], row["max"]]), of)
        for name, row, of in chosen
    ]
    return TextTable(("", "mean", "std", "min", "max", "of"), rows, text=(0, 5))


def _components(summary: Json) -> list[TextTable]:
    """Return the table of reward components, and what its columns mean."""
    components = summary.get("components")
    if not components:
        return []
    columns = [
        aligned([one[part] for one in components.values()]) for part in ("weight", "mean", "std")
    ]
    rows = [
        (
            name,
            *(column[i] for column in columns),
            "–" if one["no_signal"] is None else f"{one['no_signal']:,}",
            "–" if (x := one["reward_correlation"]) is None else f"{round(x, 2) + 0.0:+.2f}",
            percent(one["advantage_share"]),
        )
        for i, (name, one) in enumerate(components.items())
    ]
    headings = ("reward component", "weight", "mean", "std", "equal", "corr.", "share")
    note = "equal: groups with one value; corr.: with the reward; share: of the advantage"
    return [TextTable(headings, rows, notes=[note])]


def _funnel(summary: Json) -> list[TextTable]:
    """Return what each mask took, in order: `new` adds up to the responses that are kept."""
    masked, responses = summary["masked"], summary["responses"]
    flags = mask_flags(summary["recipe"])
    masks = {
        name: facts
        for name, facts in masked.items()
        if name != "all" and (name in flags or facts["responses"])
    }
    if not masks or not responses:
        return []
    left, rows = responses, [("read", f"{responses:,}", "", bar(1, 1, _BAR))]
    for name, facts in masks.items():
        left -= facts["new"]
        label = flags.get(name) or f"`{_column(summary, name)}` of the input"
        label = f"failed {_reasons(summary)}" if name == "failure" else label
        taken = f"-{facts['new']:,}" if facts["new"] else "0"
        rows.append((label, taken, f"{facts['responses']:,}", bar(left, responses, _BAR)))
    kept = responses - masked["all"]["responses"]
    tokens = ""
    if summary["tokens"] is not None and reads_tokens(summary):
        tokens = (
            f"{summary['signal']['tokens']['count']:,} of {summary['tokens']['policy']:,} tokens"
        )
    rows.append(("kept", f"{kept:,}", percent(kept / responses), tokens))
    what = f"{plural(_row(summary)).capitalize()} that train"
    return [TextTable((what, "dropped", "matched", ""), rows, text=(0, 3))]


def _reasons(summary: Json) -> str:
    """Return what failed by reason: `rollouts: timeout 7, crash 2`."""
    unit = "rollouts" if "rollouts" in summary else "rows"
    return f"{unit}: {value_list(summary['failures']['reasons'])}"


def _column(summary: Json, mask: str) -> str:
    return str(summary["roles"].get(mask, {"column": mask})["column"])


def _clips(summary: Json) -> list[TextTable]:
    """Return how many numbers were clipped, and of how many."""
    tokens = counted(summary["signal"]["tokens"]["count"], "policy token")
    kept = summary["responses"] - summary["masked"]["all"]["responses"]
    rows = []
    for key, name in (
        ("reward_clip", "rewards"),
        ("token_reward_clip", "token rewards"),
        ("advantage_clip", "advantages"),
    ):
        clip = summary[key]
        if clip is None or (key == "token_reward_clip" and not clip["count"]):
            continue
        bound = clip["bound"]
        to = bound.replace(":", " to ") if isinstance(bound, str) else f"±{number(bound)}"
        of = tokens if "token" in clip["of"] else counted(kept, _row(summary))
        rows.append((f"{name} to {to}", f"{clip['count']:,}", percent(clip["fraction"]), of))
    if (top := summary.get("top_entropy")) is not None:
        name = f"to 0 below the top {percent(top['quantile'])} of entropy"
        rows.append((name, f"{top['masked']:,}", percent(top["fraction"]), tokens))
    table = TextTable(("Clipped", "count", "share", "of"), rows, text=(0, 3))
    return [table] if rows else []


def _correction(summary: Json, *, verbose: bool) -> list[TextTable]:
    """Return what the off-policy correction changed, and the divergence between policies."""
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
        for name, row in _corrected(facts, filters=not _in_funnel(summary))
    ]
    tokens, responses = facts["tokens"], facts["responses"]
    notes = [f"of {counted(tokens, 'policy token')} in {counted(responses, 'response')}"]
    headings = ("Off-policy correction", "tokens", "share", "responses", "share")
    lines = [*_divergence(facts, verbose=verbose)]
    if not (rows or lines):
        return []
    return [TextTable(headings, rows, lines=lines, notes=notes if rows else [])]


def _in_funnel(summary: Json) -> bool:
    """Return whether the funnel has all filters: one, of whole responses."""
    return "off_policy" in summary["masked"] and len(summary["correction"]["filters"]) == 1


def _corrected(facts: Json, *, filters: bool) -> Iterator[tuple[str, Json]]:
    if facts["truncated"]:
        yield "weights truncated", facts["truncated"]
    if facts["masked"]:
        yield "weights masked", facts["masked"]
    for one in facts["filters"] if filters else ():
        yield f"rejected by {one['filter']}", one
    if len(facts["filters"]) > 1:
        yield "rejected, total", facts["rejected"]


def _divergence(facts: Json, *, verbose: bool) -> Iterator[str]:
    kl, chi = facts["kl"], facts["chi_square"]
    if kl is None:
        return
    ess = "" if facts["ess"] is None else f", effective sample size {percent(facts['ess'])}"
    yield f"engine ‖ trainer: KL {number(kl['k3'])} per token (k3; k1 {number(kl['k1'])}){ess}"
    if verbose:
        yield f"χ² {number(chi['token'])} per token, {number(chi['sequence'])} per response"
    if count := facts["confident_disagreement"]:
        few = "is" if count == 1 else "are"
        yield (
            f"{counted(count, 'token')} that the engine found likely (≥ 0.5) {few} 7 × less likely "
            "for the trainer"
        )


class _Measure:
    """A number of each step or domain."""

    def __init__(self, name: str, value: Callable[[Json], float | None], *, share: bool) -> None:
        self.name, self.value, self.share = name, value, share

    def texts(self, rows: Sequence[Json]) -> list[str]:
        """Return the number of each row as text."""
        values = [self.value(row) for row in rows]
        return [*map(percent, values)] if self.share else aligned(values)


def _without_signal(row: Json) -> float | None:
    """Return the share of groups without signal; that of equal rewards if signal is unknown."""
    groups = row["signal"]["groups"]
    if not groups or not groups["count"]:
        return None
    dead: int | None = groups["equal_rewards"]
    if groups["with_signal"] is not None:
        dead = groups["count"] - groups["with_signal"]
    return None if dead is None else float(dead / groups["count"])


def _measures(summary: Json) -> list[_Measure]:
    """Return what steps and domains are compared by."""
    groups = summary["signal"]["groups"]
    known = bool(groups) and groups["with_signal"] is not None
    return [
        _Measure("no signal" if known else "equal rewards", _without_signal, share=True),
        _Measure("A = 0", lambda row: row["signal"]["tokens"]["zero"]["share"], share=True),
        _Measure("reward", lambda row: _mean_of(row, "reward"), share=False),
        _Measure("pass", lambda row: row.get("pass_rate"), share=True),
        _Measure("masked", lambda row: row["masked"]["all"]["rate"], share=True),
        _Measure("KL per token", lambda row: _mean_of(row, "kl"), share=False),
        _Measure("length", lambda row: _mean_of(row, "policy_tokens"), share=False),
    ]


def _mean_of(row: Json, key: str) -> float | None:
    return _mean(row[key]) if key in row else None


def _chosen(summary: Json, rows: Sequence[Json], names: Sequence[str]) -> list[_Measure]:
    """Return the measures of these names, or of which there are numbers."""
    measures = [one for one in _measures(summary) if one.name in names]
    if not summary["masked"]["all"]["responses"]:
        measures = [one for one in measures if one.name != "masked"]
    return [one for one in measures if any(one.value(row) is not None for row in rows)]


def _domains(summary: Json, *, verbose: bool) -> list[TextTable]:
    """Return the domains, those with the least signal first."""
    every = summary["domains"]
    if len(every) < _SEVERAL:
        return []

    def dead(row: Json) -> tuple[float, float, str]:
        zero = row["signal"]["tokens"]["zero"]["share"]
        return -(_without_signal(row) or 0), -(zero or 0), str(row["domain"])

    rows = sorted(every, key=dead)
    shown = rows if verbose else rows[:_DOMAINS]
    names = ("no signal", "equal rewards", "A = 0", "reward", "pass", "masked", "KL per token")
    measures = _chosen(summary, shown, names)
    columns = [measure.texts(shown) for measure in measures]
    groups = [row["signal"]["groups"] for row in shown]
    if all(groups):
        columns = [[f"{one['count']:,}" for one in groups], *columns]
    else:
        columns = [[f"{row['responses']:,}" for row in shown], *columns]
    count = "groups" if all(groups) else "responses"
    headings = ("by domain", count, *(measure.name for measure in measures))
    table = [(str(row["domain"]), *cells) for row, *cells in zip(shown, *columns, strict=True)]
    rest = len(rows) - len(shown)
    notes = [f"{counted(rest, 'domain')} more, with more signal: --verbose"] if rest else []
    return [TextTable(headings, table, notes=notes)]


def _steps(summary: Json) -> list[TextTable]:
    """Return the trends over steps: a table, or a line for few steps."""
    rows = summary["steps"]
    if len(rows) < _SEVERAL:
        return []
    labels = [row["step"] for row in rows]
    if len(rows) >= _FEW_STEPS:
        names = (
            "reward",
            "no signal",
            "equal rewards",
            "A = 0",
            "masked",
            "KL per token",
            "length",
        )
        measures = _chosen(summary, rows, names)
        order = sorted(measures, key=lambda one: names.index(one.name))
        trends = [Trend(one.name, [one.value(row) for row in rows], one.share) for one in order]
        return [trend_table("step", labels, trends)]
    parts = []
    for one in _chosen(summary, rows, ("reward", "no signal", "equal rewards", "KL per token")):
        values = [one.value(row) for row in rows]
        ends = (values[0], values[-1])
        first, last = (percent(x) if one.share else number(x, digits=2) for x in ends)
        blocks = trend_blocks(values, share=one.share)
        parts.append(f"{one.name.removesuffix(' per token')} {first} {blocks} {last}")
    return [TextTable(lines=[f"by step: {', '.join(parts)}"])]


def _details(summary: Json) -> Iterator[TextTable]:
    """Yield what only --verbose prints: columns, all steps, times and bytes."""
    rows = summary["steps"]
    if len(rows) >= _SEVERAL:
        names = ("no signal", "equal rewards", "A = 0", "reward", "pass", "masked", "KL per token")
        measures = _chosen(summary, rows, names)
        columns = [[f"{row['responses']:,}" for row in rows], *(x.texts(rows) for x in measures)]
        headings = ("by step", "responses", *(measure.name for measure in measures))
        table = [(str(row["step"]), *cells) for row, *cells in zip(rows, *columns, strict=True)]
        yield TextTable(headings, table)
    yield TextTable(title="Columns", lines=[role_columns(summary["roles"])])
    if "seconds" in summary:
        yield TextTable(title="Times", lines=run_times(summary))


def _verdict(summary: Json, errors: Sequence[Notice]) -> Notice | None:
    """Return the last line: what was written, or that nothing trains."""
    written = _written(summary)
    dead = summary["signal"]["no_signal"]
    if dead is not None:
        return Notice("error", f"Nothing to learn: {dead['what']}", "", dead["cause"], written)
    if not written:
        return None
    return Notice("warning" if errors else "ok", written)


def _written(summary: Json) -> str:
    if not summary.get("outputs", True) or "new_columns" not in summary:  # findings failed the run
        return ""
    columns = counted(len(summary["new_columns"]), "new column")
    if "inputs" not in summary:
        return f"enriched: {columns}"
    text = f"{_paths(summary['outputs'])} written: {columns}"
    if "bytes" in summary and summary["bytes"]["written"]:
        text += f", {size(summary['bytes']['written'])} in {summary['seconds']['total']:.1f} s"
    return text


def _next_steps(summary: Json) -> list[str]:
    outputs = summary.get("outputs")
    if not outputs:
        return []
    out = outputs[0] if len(outputs) < _SEVERAL else str(PurePath(outputs[0]).parent)
    path = shlex.quote(out)
    return [f"next: rlpost browse {path} · rlpost report {path} -o report.html"]
