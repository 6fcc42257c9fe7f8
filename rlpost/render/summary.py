"""The summary of a run as a page: what trains anything first, whether it was written last."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from rlpost.display.charts import bar
from rlpost.display.console import console, is_terminal
from rlpost.display.page import Notice, Page
from rlpost.display.picture import words
from rlpost.display.tables import TextTable
from rlpost.display.text import (
    aligned,
    counted,
    first_of,
    mean_beside,
    number,
    percent,
    plural,
    size,
    value_list,
)
from rlpost.pipeline.device import CPU
from rlpost.pipeline.findings import NO_SIGNAL, texts_of
from rlpost.pipeline.measures import (
    COMPONENT,
    DROPPED,
    EQUAL,
    LEFT,
    NEWLY,
    REJECTED,
    SHARE,
    WITH_REWARD,
    whole,
)
from rlpost.pipeline.words import mask_flags
from rlpost.render.picture import picture_of
from rlpost.render.trends import Trend, slice_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlpost.display.page import Severity
    from rlpost.display.picture import PictureLine


Json = dict[str, Any]
LEAST_SECONDS = 0.005
_BAR = 20  # characters of the longest bar
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


def show_summary(summary: Json, *, verbose: bool = False) -> None:
    """Print the summary of a run on stderr."""
    page(summary, verbose=verbose).show(console(sys.stderr))


def page(summary: Json, *, verbose: bool = False) -> Page:
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
    dead = summary["verdict"]["level"] == "error"
    errors = [
        Notice("error", text)
        for text in texts_of(summary, "error")
        if text != NO_SIGNAL or not dead
    ]
    warnings = [Notice("warning", text) for text in texts_of(summary, "warning")] + skipped
    return Page(
        _title(summary),
        _overview(summary),
        [
            _numbers(summary, verbose=verbose),
            *_components(summary),
            *_funnel(summary),
            *_clips(summary),
            *_correction(summary, verbose=verbose),
            *_domains(summary, verbose=verbose),
            *(_details(summary) if verbose else ()),
        ],
        [*warnings, *errors],
        _verdict(summary, errors),
        _next_steps(summary),
        _answer(summary),
        [*_picture(summary)],
    )


def _answer(summary: Json) -> str:
    """Return how many groups train, or responses where groups are unknown."""
    groups = summary["groups_with_signal"]
    if groups is not None:
        return f"{groups:,} of {counted(summary['groups'], 'group')} train"
    trained = _trained(summary)
    return f"{trained:,} of {counted(summary['responses'], _row(summary))} train"


def _trained(summary: Json) -> int:
    """Return the responses whose mean advantage is not 0; without lengths each is one token."""
    name, key = ("advantage", "total") if summary["tokens"] is None else ("length", "count")
    return sum(_whole(summary, f"{name}_{sign}")[key] or 0 for sign in ("positive", "negative"))


def _picture(summary: Json) -> Iterator[PictureLine]:
    """Yield the picture; its flow has the responses left at each stage, and tokens at the end."""
    facts, trained = summary["facts"], _trained(summary)
    left = sum(entry["all"]["total"] for name, entry in facts.items() if name.startswith(LEFT))
    stages = [
        (summary["responses"], ""), (summary["responses"] - left, "not left out"),
        (_whole(summary, "kept")["total"], "not dropped"), (trained, "with signal"),
    ]  # fmt: skip
    tokens = sum(_whole(summary, f"advantage_{x}")["total"] for x in ("positive", "negative"))
    ends = [] if summary["tokens"] is None else [counted(tokens, "token")]
    signs = "tokens" if ends else "responses"
    yield from picture_of(
        summary["profiles"], facts, summary["findings"], stages, *ends, signs=signs,
        equal="no signal" if "with_signal" in facts else "equal rewards",
    )  # fmt: skip
    yield words("recipe", _recipe(summary))
    if critic := _critic(summary):
        yield words("critic", critic)


def _skipped(summary: Json) -> Iterator[Notice]:
    """Yield the files that a run with --skip-existing did not write."""
    for name, what in (("up_to_date", "up to date"), ("failed", "not written: bad input")):
        if paths := summary.get("skip_existing", {}).get(name):
            level: Severity = "ok" if name == "up_to_date" else "warning"
            yield Notice(level, f"{counted(len(paths), 'file')} {what}", places=first_of(paths))


def _title(summary: Json) -> str:
    """Return what was written, by which estimator, of how many responses."""
    paths = summary.get("outputs") or summary.get("inputs") or ["a table in memory"]
    name = PurePath(paths[0]).name if len(paths) < _SEVERAL else _paths(paths)
    return f"{name} · {summary['estimator']} · {counted(summary['responses'], _row(summary))}"


def _paths(paths: Sequence[str]) -> str:
    """Return the name of one file, or the number of several and their directory."""
    if len(paths) < _SEVERAL:
        return "".join(paths)
    return f"{counted(len(paths), 'file')} of {_folder(paths)}"


def _folder(paths: Sequence[str]) -> str:
    """Return the directory of several files, or the one that has all of their directories."""
    slash = "/" if "://" in paths[0] else os.sep
    levels = zip(*(path.split(slash)[:-1] for path in paths), strict=False)
    shared = [names[0] for names in takewhile(lambda names: len({*names}) == 1, levels)]
    return slash.join(shared) or (slash if shared else os.curdir)


def _whole(summary: Json, name: str) -> Json:
    return whole(summary["facts"], name)


def _overview(summary: Json) -> list[str]:
    parts = [counted(summary["responses"], _row(summary)), _tokens(summary)]
    if summary["rollouts"] is not None:
        parts[0] += f" of {counted(summary['rollouts'], 'rollout')}"
    groups, rule = _whole(summary, "group_size"), _rollout_rule(summary)
    if groups["count"]:
        low, high = groups["min"], groups["max"]
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        unit = f" {plural('rollout')}" if rule else ""
        by = " and ".join(summary["group_by"])
        parts.append(f"{counted(groups['count'], 'group')} of {span}{unit} by {by}")
    lines = [", ".join(parts)]
    lines += [summary["steps_read"]["line"]] if "steps_read" in summary else []
    lines += unit_line(**summary["unit"])
    lines += [rule] if rule else []
    text = summary.get("recorded")
    lines += [text] if text and text not in texts_of(summary, "warning") else []
    if summary["process_rewards"] is not None:
        lines.append(_PROCESS[summary["process_rewards"]])
    lines += mapped_columns(summary["roles"])
    if summary.get("device", CPU) != CPU:
        lines.append(f"computed on {summary['device']}")
    return lines


def unit_line(name: str, reason: str) -> list[str]:
    """Return the line of what statistics of responses count, if the input has rollouts."""
    return [f"counts {plural(name)}: {reason}"] if reason else []


def _row(summary: Json) -> str:
    """Return the noun of a row of the input."""
    return "response" if summary["rollouts"] is None else "row"


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
        column = summary["roles"]["response_length"]["column"]
        return f"without token columns ({counted(tokens['all'], 'token')} by `{column}`)"
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
    if summary["rollouts"] is None:
        return ""
    rule = _ROLLOUT_REWARD[summary["recipe"]["rollout_reward"]]
    return f"reward of a rollout (`{summary['roles']['rollout']['column']}`): {rule}"


def _critic(summary: Json) -> str:
    """Return what the critic's values explain; empty without one."""
    share = _whole(summary, "explained_variance")["value"]
    if share is None:
        return ""
    if share < 0:
        return f"the values are worse than a constant: explained variance -{percent(-share)}"
    return f"the values explain {percent(share)} of the variance of the estimator's returns"


def _mean(facts: Json) -> float | None:
    return mean_beside(facts["mean"], facts["std"])


def _numbers(summary: Json, *, verbose: bool) -> TextTable:
    """Return the statistics of rewards, KL, returns and weights, each with its population."""
    names = {
        "reward": "raw reward",
        "process_reward": "process rewards, sum",
        "response_level_reward": "reward after normalisation",
        "kl": f"KL per token ({(summary['kl'] or {}).get('estimator')})",
        "advantage": "advantage",
        "return": "return",
        "sample_weight": "sample weight",
        "is_weight": "importance weight",
    }
    hidden = set() if verbose else {"advantage", "response_level_reward"}
    if _whole(summary, "return") == _whole(summary, "advantage"):
        hidden.add("return")
    rows = [
        (
            names[name],
            *aligned([_mean(x), x["std"], x["min"], x["max"]]),
            _population(summary, name, x["count"]),
        )
        for name in names
        if name not in hidden and (x := _whole(summary, name))["mean"] is not None
    ]
    return TextTable(("", "mean", "std", "min", "max", "of"), rows, text=(0, 5))


def _population(summary: Json, name: str, count: int) -> str:
    """Return how many of what a measure counts: `12 rollouts`, `12 responses' means`."""
    noun = summary["facts"][name]["of"].split(" that ")[0].split(" of kept")[0]
    noun = noun.removeprefix("kept ").removesuffix("s")
    text = counted(count, _row(summary) if noun == "response" else noun)
    if name != "kl":
        return text
    return f"{text}{'' if count == 1 else chr(39)} means"


def _components(summary: Json) -> list[TextTable]:
    """Return the table of reward components, and what its columns mean."""
    recipe = summary.get("recipe", {})
    names = recipe.get("reward_components") or ()
    if not names:
        return []
    weights = recipe["component_weights"] or [1.0] * len(names)
    facts = [_whole(summary, f"{COMPONENT}{name}") for name in names]
    columns = [aligned(weights), *(aligned([x[part] for x in facts]) for part in ("mean", "std"))]
    rows = []
    for i, name in enumerate(names):
        equal = summary["facts"].get(f"{EQUAL}{name}")
        together = _whole(summary, f"{WITH_REWARD}{name}")["value"]
        rows.append(
            (
                name,
                *(column[i] for column in columns),
                "–" if equal is None else f"{equal['all']['total']:,}",
                "–" if together is None else f"{round(together, 2) + 0.0:+.2f}",
                percent(_whole(summary, f"{SHARE}{name}")["value"]),
            )
        )
    headings = ("reward component", "weight", "mean", "std", "equal", "corr.", "share")
    note = "equal: groups with one value; corr.: with the reward; share: of the advantage"
    return [TextTable(headings, rows, notes=[note])]


def _funnel(summary: Json) -> list[TextTable]:
    """Return what each mask took, in order: `new` adds up to the responses that are kept."""
    responses, flags, masks = summary["responses"], mask_flags(summary["recipe"]), {}
    for name, entry in summary["facts"].items():
        prefix, colon, mask = name.partition(":")
        if f"{prefix}{colon}" in (LEFT, DROPPED):
            total = entry["all"]["total"]
            new = total if f"{prefix}:" == LEFT else _whole(summary, f"{NEWLY}{mask}")["total"]
            if mask in flags or total:
                masks[mask] = (new, total)
    if not masks or not responses:
        return []
    left, rows = responses, [("read", f"{responses:,}", "", bar(1, 1, _BAR))]
    for name, (new, total) in masks.items():
        left -= new
        label = flags.get(name) or f"`{_column(summary, name)}` of the input"
        label = f"failed {_reasons(summary)}" if name == "failure" else label
        if name == "superseded":
            label = f"of older attempts (`{summary['attempts']['column']}`)"
        rows.append((label, f"-{new:,}" if new else "0", f"{total:,}", bar(left, responses, _BAR)))
    kept, tokens = _whole(summary, "kept")["total"], ""
    if summary["tokens"] is not None and reads_tokens(summary):
        count = _whole(summary, "advantage")["count"]
        tokens = f"{count:,} of {summary['tokens']['policy']:,} tokens"
    rows.append(("kept", f"{kept:,}", percent(kept / responses), tokens))
    what = f"{plural(_row(summary)).capitalize()} that train"
    return [TextTable((what, "dropped", "matched", ""), rows, text=(0, 3))]


def _reasons(summary: Json) -> str:
    """Return what failed by reason: `rollouts: timeout 7, crash 2`."""
    unit = "rows" if summary["rollouts"] is None else "rollouts"
    return f"{unit}: {value_list(summary['failures']['reasons'])}"


def _column(summary: Json, mask: str) -> str:
    return str(summary["roles"].get(mask, {"column": mask})["column"])


def _clips(summary: Json) -> list[TextTable]:
    """Return how many numbers were clipped, and of how many."""
    recipe, rows = summary["recipe"], []
    for measure, field, name in (
        ("reward_clipped", "reward_clip", "rewards"),
        ("token_reward_clipped", "reward_clip", "token rewards"),
        ("advantage_clipped", "advantage_clip", "advantages"),
    ):
        bound, clip = recipe[field], _whole(summary, measure)
        if bound is None or (measure == "token_reward_clipped" and not clip["total"]):
            continue
        to = bound.replace(":", " to ") if isinstance(bound, str) else f"±{number(bound)}"
        rows.append((f"{name} to {to}", measure, clip))
    if (quantile := recipe["top_entropy_quantile"]) is not None:
        name = f"to 0 below the top {percent(quantile)} of entropy"
        rows.append((name, "below_top_entropy", _whole(summary, "below_top_entropy")))
    cells = [
        (name, f"{clip['total']:,}", percent(clip["mean"]),
         _population(summary, measure, clip["count"]))
        for name, measure, clip in rows
    ]  # fmt: skip
    table = TextTable(("Clipped", "count", "share", "of"), cells, text=(0, 3))
    return [table] if rows else []


def _correction(summary: Json, *, verbose: bool) -> list[TextTable]:
    """Return what the off-policy correction changed, and the divergence between policies."""
    filters = [x for x in summary["facts"] if x.startswith(REJECTED)]
    in_funnel = f"{DROPPED}off_policy" in summary["facts"] and len(filters) == 1
    names = {"is_truncated": "weights truncated", "is_masked": "weights masked"}
    names |= {} if in_funnel else {x: f"rejected by {x.removeprefix(REJECTED)}" for x in filters}
    names |= {"rejected": "rejected, total"} if len(filters) > 1 else {}
    rows, of = [], ""
    for name, text in names.items():
        kind, colon, which = name.partition(":")
        tokens = _whole(summary, name)
        responses = _whole(summary, f"{kind}_responses{colon}{which}")
        if name in summary["facts"]:
            rows.append((text, f"{tokens['total']:,}", percent(tokens["mean"]),
                         f"{responses['total']:,}", percent(responses["mean"])))  # fmt: skip
            of = f"of {counted(tokens['count'], 'policy token')} in "
            of += counted(responses["count"], "response")
    headings = ("Off-policy correction", "tokens", "share", "responses", "share")
    lines = [*_divergence(summary, verbose=verbose)]
    if not (rows or lines):
        return []
    return [TextTable(headings, rows, lines=lines, notes=[of] if rows else [])]


def _divergence(summary: Json, *, verbose: bool) -> Iterator[str]:
    k1, k3, ess, chi, of_responses = (
        _whole(summary, name)
        for name in ("engine_k1", "engine_k3", "weight_ess", "engine_chi2", "engine_chi2_responses")
    )
    if k3["mean"] is None:
        return
    size = "" if (x := ess["value"]) is None else f", effective sample size {percent(x)}"
    yield f"engine ‖ trainer: KL {number(k3['mean'])} per token (k3; k1 {number(k1['mean'])}){size}"
    if verbose:
        of_tokens, whole = (number(x["mean"]) for x in (chi, of_responses))
        yield f"χ² {of_tokens} per token, {whole} per response"
    if count := _whole(summary, "confident_disagreement")["total"]:
        few = "is" if count == 1 else "are"
        yield (
            f"{counted(count, 'token')} that the engine found likely (≥ 0.5) {few} 7 × less likely "
            "for the trainer"
        )


def _trends(summary: Json, by: str) -> list[Trend]:
    """Return the numbers by step or domain that there are."""
    facts, trends = summary["facts"], []
    known = "with_signal" in facts
    for name, measure, share in (
        ("no signal", "with_signal", True) if known else ("equal rewards", "equal_rewards", True),
        ("A = 0", "advantage_zero", True),
        ("reward", "reward", False),
        ("pass", "passed", True),
        ("not kept", "kept", True),
        ("KL per token", "kl", False),
    ):
        entry = facts.get(measure, {}).get(by)
        if not entry or (name == "not kept" and _whole(summary, "kept")["mean"] == 1):
            continue
        values = entry["mean"]
        if "std" in entry:
            pairs = zip(values, entry["std"], strict=True)
            values = [None if x is None else mean_beside(x, std) for x, std in pairs]
        if measure in ("with_signal", "kept"):
            values = [None if x is None else 1 - x for x in values]
        if any(value is not None for value in values):
            trends.append(Trend(name, values, share))
    return trends


def _labels(summary: Json, by: str) -> list[Any]:
    labels: list[Any] = summary["facts"]["kept"].get(by, {"label": []})["label"]
    return labels


def _domains(summary: Json, *, verbose: bool) -> list[TextTable]:
    """Return the domains, those with the least signal first."""
    labels, trends, facts = _labels(summary, "domain"), _trends(summary, "domain"), summary["facts"]
    if len(labels) < _SEVERAL:
        return []
    named = {trend.name: trend.values for trend in trends}
    nothing: list[float | None] = [None] * len(labels)
    dead = named.get("no signal", named.get("equal rewards", nothing))
    zero = named.get("A = 0", nothing)
    order = sorted(range(len(labels)),
                   key=lambda i: (-(dead[i] or 0), -(zero[i] or 0), str(labels[i])))  # fmt: skip
    shown = order if verbose else order[:_DOMAINS]
    noun, measure = ("groups", "group_size") if "group_size" in facts else ("responses", "kept")
    counts = noun, facts[measure]["domain"]["count"]
    table = slice_table("by domain", labels, counts, trends, order=shown, most=len(order))
    rest = len(order) - len(shown)
    notes = [f"{counted(rest, 'domain')} more, with more signal: --verbose"] if rest else []
    return [replace(table, notes=notes)]


def _details(summary: Json) -> Iterator[TextTable]:
    """Yield what only --verbose prints: columns, all steps, times and bytes."""
    if len(labels := _labels(summary, "step")) >= _SEVERAL:
        counts = "responses", summary["facts"]["kept"]["step"]["count"]
        yield slice_table("by step", labels, counts, _trends(summary, "step"), most=len(labels))
    yield TextTable(title="Columns", lines=[role_columns(summary["roles"])])
    if "seconds" in summary:
        yield TextTable(title="Times", lines=run_times(summary))


def _verdict(summary: Json, errors: Sequence[Notice]) -> Notice | None:
    """Return the last line: what was written, or that nothing trains."""
    written = _written(summary)
    dead = summary["verdict"]
    if dead["level"] == "error":
        text = dead["text"][0].upper() + dead["text"][1:]
        return Notice("error", text, "", dead["cause"], written)
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
    out = outputs[0] if len(outputs) < _SEVERAL else _folder(outputs)
    path = shlex.quote(out)
    page = shlex.quote(_free_name(out))
    browse = [f"rlpost browse {path}"] * is_terminal()  # which needs one
    return [*browse, f"rlpost report {path} {page}"]


def _free_name(output: str) -> str:
    """Return a name beside an output that no report has yet: `out.html`, `out-2.html`."""
    stem = output.removesuffix(".parquet") if "://" not in output else "report"
    names = (f"{stem}{f'-{i}' * (i > 1)}.html" for i in count(1))
    return next(name for name in names if not Path(name).exists())


def role_columns(roles: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the column of each role of a summary, with others that could serve it.

    >>> score = {"column": "score", "found_by": "alias", "ignored": ["raw_reward"]}
    >>> role_columns({"mask": {"column": "mask", "found_by": "map"}, "reward": score})
    'mask, reward = score (alias, not raw_reward)'
    """
    texts = []
    for role, facts in roles.items():
        notes = [f"not {name}" for name in facts.get("ignored", ())]
        if role != facts["column"]:
            notes = [facts["found_by"], *notes]
            role = f"{role} = {facts['column']}"  # noqa: PLW2901
        texts.append(f"{role} ({', '.join(notes)})" if notes else role)
    return ", ".join(texts)


def reads_tokens(summary: Mapping[str, Any]) -> bool:
    """Return whether the input of a run had tokens, by its summary."""
    of_rows = {"response_length", "response"} & summary["roles"].keys()  # a column, or texts
    return summary["tokens"] is not None and not of_rows


def run_times(summary: Mapping[str, Any]) -> list[str]:
    """Return the lines about a run: times by part, bytes and device."""
    seconds, tokens = summary["seconds"], reads_tokens(summary)
    count, unit = (summary["tokens"]["all"], "token") if tokens else (summary["responses"], "row")
    passes = sum(seconds["passes"].values())
    speed = f" · {count / passes / 1e6:.1f} M {unit}s/s in the passes" if passes else ""
    parts = {"start-up": seconds["start_up"], **seconds["passes"]}
    parts |= {name: seconds[name] for name in ("summary", "publishing") if name in seconds}
    lines = [f"{_times(seconds['total'], parts)}{speed}"]
    if "bytes" in summary:
        moved = (f"{name} {size(x)}" for name, x in summary["bytes"].items() if x)
        lines.append(f"bytes: {', '.join(moved).replace('_', ' ')}")
    return [*lines, f"device: {summary['device']}"]


def _times(total: float, parts: Mapping[str, float]) -> str:
    """Return seconds, and those of parts that are not 0.00.

    >>> _times(2.25, {"start_up": 1.5, "write": 0.4, "publishing": 0.001})
    '2.25 s: start-up 1.50, write 0.40, other 0.35'
    """
    times = {**parts, "other": total - sum(parts.values())}
    texts = [f"{name.replace('_', '-')} {x:.2f}" for name, x in times.items() if x >= LEAST_SECONDS]
    return f"{total:.2f} s{': ' * bool(texts)}{', '.join(texts)}"
