"""Output of `rlpost inspect`: for a terminal, a pipe, as JSON or as Markdown."""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from rlpost.analysis.inspect.findings import FINDINGS
from rlpost.analysis.inspect.tokens import LOG_RATIO_CLAMP
from rlpost.display.charts import bar, spark
from rlpost.display.console import console, print_page
from rlpost.display.controls import printable_line
from rlpost.display.tables import TextTable, elided, hanging, show_json, show_list
from rlpost.display.text import counted, number, percent, share, size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from rich.console import Console, RenderableType

    from rlpost.analysis.inspect.model import (
        AdvantageSlice,
        ColumnFacts,
        Facts,
        FindingEvidence,
        InputFacts,
        InputFinding,
        RoleFacts,
        Slice,
        Spread,
        TokenColumn,
    )

    Row = tuple[str, ...]


BAR = 16  # characters
MOST_COLUMNS = 12  # of the table of stored columns
MOST_K = 9  # of the table of pass@k
MOST_EVIDENCE = 3
MOST_KEY = 40  # characters of a group's key
EXPECTED = ("group", "reward", "mask", "old_log_probs", "ref_log_probs", "infer_log_probs", "batch")
STYLES = {"error": "red", "warning": "yellow"}
MARKS = {"error": "✗", "warning": "!"}
LEGEND = {
    "error": "✗ error: training would use wrong numbers",
    "warning": "! warning: training may suffer",
}


def show(facts: Facts, how: str, out: Console | None = None) -> None:
    """Print all statistics and findings, as a `table`, as `json` or as `markdown`."""
    if how == "json":
        show_json(facts.as_json())
        return
    title = f"rlpost inspect · {', '.join(facts.inputs[:2])}"
    lines, tables = overview(facts), tables_of(facts)
    if how == "markdown":
        _print_markdown(title, [*lines, verdict(facts)], facts.findings, tables)
        return
    parts = [_paragraph(lines), _findings(facts), *tables]
    print_page(
        out or console(sys.stdout), title, [*parts, Text(f"{facts.seconds:.2f} s", style="dim")]
    )


def show_findings(facts: Facts) -> None:
    """Print each finding on one line, of any length, with its severity and its name."""
    for one in facts.findings:
        sys.stdout.write(f"{one.severity}: {one.name}: {printable_line(one.text)}\n")


def show_stored(
    stored: InputFacts, roles: dict[str, RoleFacts], how: str, out: Console | None = None
) -> None:
    """Print the contents of footers, as a `table`, as `json` or as `markdown`."""
    if how == "json":
        columns = {role: asdict(one) for role, one in roles.items()}
        show_json({"schema_version": 1, "input": asdict(stored), "roles": columns})
        return
    title = f"rlpost inspect · {', '.join(file.path for file in stored.files[:2])}"
    lines, tables = _stored_lines(stored), [_roles_table(roles), _stored_table(stored)]
    if how == "markdown":
        _print_markdown(title, lines, [], tables)
        return
    print_page(out or console(sys.stdout), title, [_paragraph(lines), *tables])


def show_checks(how: str) -> None:
    """Print every check and what it means, as a `table`, as `json` or as `markdown`."""
    rows = [
        (one.name, one.severity, ", ".join(one.needs), one.meaning) for one in FINDINGS.values()
    ]
    show_list(("finding", "severity", "needs", "meaning"), rows, how)


def _paragraph(lines: Sequence[str]) -> Text:
    return Text("\n".join(map(printable_line, lines)))


def _print_markdown(
    title: str, lines: Sequence[str], findings: Sequence[InputFinding], tables: Sequence[TextTable]
) -> None:
    parts = [f"# {_escaped(title)}\n", "".join(f"- {_escaped(line)}\n" for line in lines)]
    if findings:
        parts += ["## Findings\n", "".join(map(_markdown_finding, findings))]
    sys.stdout.write("\n".join([*parts, *(table.markdown() for table in tables)]))


def _markdown_finding(one: InputFinding) -> str:
    text = f"- **{one.name}** ({one.severity}): {_escaped(one.text)}\n"
    shown_by = f"  - {_escaped(evidence(one))}\n" if one.evidence else ""
    return f"{text}  - {_escaped(one.advice)}\n{shown_by}"


def _escaped(text: str) -> str:
    """Return text on one line, whose `<` opens no tag."""
    return printable_line(text).replace("<", "&lt;")


# ---- findings ----


def verdict(facts: Facts) -> str:
    """Return the number of findings, by how many checks, and what their marks mean."""
    by, findings = f"by {checks_ran(facts)}", facts.findings
    if not findings:
        return f"No problems found {by} (listed below)"
    severities = {one.severity for one in findings}
    legend = "; ".join(text for severity, text in LEGEND.items() if severity in severities)
    order = ", the most harmful first" if len(findings) > 1 else ""
    return f"{counted(len(findings), 'finding')} {by}{order} ({legend})"


def checks_ran(facts: Facts) -> str:
    """Return `28 checks`, or `24 of 28 checks` if some did not run."""
    ran, count = sum(one.not_run is None for one in facts.checks), len(facts.checks)
    return f"{count} checks" if ran == count else f"{ran} of {count} checks"


def _findings(facts: Facts) -> RenderableType:
    if not facts.findings:
        return Text(f"✓ {verdict(facts)}", style="green")
    parts: list[RenderableType] = [Text(verdict(facts), style="bold")]
    for one in facts.findings:
        name = f"{MARKS[one.severity]} {one.name}"
        head = Text.assemble(
            (name, f"bold {STYLES[one.severity]}"), f"  {printable_line(one.text)}"
        )
        parts.append(hanging(head))
        parts.append(Padding(Text(f"→ {printable_line(one.advice)}"), (0, 0, 0, 4), expand=False))
        if one.evidence:
            parts.append(Padding(Text(evidence(one), style="dim"), (0, 0, 0, 4), expand=False))
    return Group(*parts)


def evidence(finding: InputFinding) -> str:
    """Return `e.g. row 3 (prompt-01: 8 responses); row 5 (prompt-02: 7 responses)`.

    If the rows are of several files, with their names.
    """
    first = finding.evidence[:MOST_EVIDENCE]
    several = len({one.file for one in first}) > 1
    return "e.g. " + "; ".join(_evidence(one, named=several) for one in first)


def _evidence(one: FindingEvidence, *, named: bool) -> str:
    name = printable_line(one.file.rpartition("/")[2])
    text = name if one.row is None else f"row {one.row}" + (f" of {name}" if named else "")
    group = None
    if one.group is not None:
        group = textwrap.shorten(printable_line(str(one.group)), MOST_KEY, placeholder="…")
    notes = ": ".join(part for part in (group, printable_line(one.text)) if part)
    return f"{text} ({notes})" if notes else text


# ---- tables ----


def overview(facts: Facts) -> list[str]:
    """Return the first lines: files, responses and tokens."""
    text = counted(facts.responses, "response")
    if facts.tokens is not None and facts.tokens["all"] is not None:
        tokens, policy = facts.tokens["all"], facts.tokens["policy"]
        text += f", {counted(tokens, 'token')} ({share(policy, tokens)} policy)"
        if "mask" not in facts.roles:
            text += "; there is no mask, so every token counts as a policy token"
    return [
        *_stored_lines(facts.input), text, *without_tokens_lines(facts), *left_out_lines(facts)
    ]  # fmt: skip


def without_tokens_lines(facts: Facts) -> list[str]:
    """Return the line on an input without a list of tokens: why nothing is about tokens."""
    if facts.tokens is None:
        advice = "set their column with --map response_length=COLUMN"
        return [f"no column has tokens, so lengths are unknown ({advice})"]
    if facts.tokens["all"] is None and facts.lengths:
        count = counted(facts.tokens["policy"], "policy token")
        return [f"no column has tokens; {count} according to `{facts.lengths.column}`"]
    return []


def left_out_lines(facts: Facts) -> list[str]:
    """Return the line on responses whose sample mask is 0, if there are any."""
    if not facts.left_out:
        return []
    column, responses = facts.roles["sample_mask"].column, counted(facts.left_out, "response")
    return [f"{responses} with `{column}` 0 count here, but are left out of training"]


def tables_of(facts: Facts) -> list[TextTable]:
    """Return the tables in order, without those that the input has no data for."""
    functions: tuple[Callable[[Facts], TextTable | None], ...] = (
        _roles,
        _groups,
        _distributions,
        _reward_values,
        _components,
        _tokens,
        _mismatch,
        _advantages,
        _masks,
        lambda facts: _slices(facts.steps, facts, "batch"),
        lambda facts: _slices(facts.domains, facts, "domain"),
        _checks,
        lambda facts: (
            _stored_table(facts.input, most=MOST_COLUMNS) if facts.input.columns else None
        ),
    )
    return [table for table in (function(facts) for function in functions) if table is not None]


def _stored_lines(stored: InputFacts) -> list[str]:
    """Return files, bytes, row groups, and the programs that wrote them; of tables, the rows."""
    if not stored.columns:
        return [f"{counted(stored.rows, 'row')} of {counted(len(stored.files), 'table')} in memory"]
    low, high = stored.rows_per_group
    span = f" of {low:,}" if low == high else f" of {low:,} to {high:,}"
    span = span if stored.row_groups else ""
    files, rows = counted(len(stored.files), "file"), counted(stored.rows, "row")
    groups = f"{counted(stored.row_groups, 'row group')}{span}"
    writers = ", ".join(sorted({file.writer for file in stored.files}))
    by_rlpost = sorted({_written_by(file.rlpost) for file in stored.files if file.rlpost})
    return [
        f"{files}, {size(stored.bytes)}, {rows} in {groups}",
        "; ".join([f"written by {writers}", *by_rlpost]),
    ]


def _written_by(rlpost: dict[str, Any]) -> str:
    verb = "written"
    if rlpost.get("estimator"):
        verb = f"enriched with {rlpost['estimator']}"
    elif rlpost.get("format"):
        verb = f"converted from {rlpost['format']}"
    return f"{verb} by rlpost {rlpost['version']}"


def _kind(text: str) -> str:
    """Return a type without the names inside lists."""
    return re.sub(r"(list(?:_view)?<)\w+: ", r"\1", text)


def _roles(facts: Facts) -> TextTable:
    made = ("reward",) if facts.components else ()
    missing = [role for role in EXPECTED if role not in facts.roles and role not in made]
    lines = [f"no column for {', '.join(missing)} (set with --map ROLE=COLUMN)"] if missing else []
    lacks: dict[str, str] = {}
    for file in facts.input.files:
        lacks |= (file.rlpost or {}).get("missing_roles") or {}
    reasons: dict[str, list[str]] = {}
    for role in missing:
        if role in lacks:
            reasons.setdefault(lacks[role], []).append(role)
    lines += [f"{', '.join(roles)}: {reason}" for reason, roles in reasons.items()]
    return _roles_table(facts.roles, [*lines, *ignored_lines(facts)])


def ignored_lines(facts: Facts) -> list[str]:
    """Return the columns that have the name of a role which another column serves."""
    return [
        f"{' and '.join(f'`{name}`' for name in one.ignored)} ignored: {role} is read from "
        f"`{one.column}` (--map {role}=COLUMN)"
        for role, one in facts.roles.items()
        if one.ignored
    ]


def _roles_table(roles: dict[str, RoleFacts], lines: Sequence[str] = ()) -> TextTable:
    rows = [(role, one.column, one.found_by, _kind(one.type)) for role, one in roles.items()]
    headings = ("role", "column", "found by", "type")
    return TextTable(headings, rows, "Columns by role", lines, text=range(4))


def _groups(facts: Facts) -> TextTable | None:
    groups = facts.groups
    if groups is None or not groups.size:
        return None
    low, high = groups.size["min"], groups.size["max"]
    span = counted(low, groups.of)
    if low != high:
        span = f"{low:,} to {high:,} {groups.of}s (median {groups.size['median']:g})"
    by = " and ".join(groups.by)
    lines = [
        (
            f"{counted(groups.count, 'group')} of {span}, by {by}; "
            f"{counted(groups.prompts, 'prompt')}"
        ),
        (
            f"{counted(groups.single, f'single-{groups.of} group')}, "
            f"{counted(groups.zero_variance, 'group')} with zero reward variance"
        ),
    ]
    if not groups.pass_rates:
        return TextTable(title="Groups", lines=lines)
    none, *between, every = (rate.groups for rate in groups.pass_rates)
    chart = spark([none, *between, every], wide=2)
    lines += [
        f"groups by pass rate (reward ≥ {groups.pass_threshold:g}):",
        f"  {none:,} at 0 % {chart} {every:,} at 100 %",
    ]
    highest = facts.rewards.spread.max if facts.rewards else None
    if highest is not None and highest < groups.pass_threshold:
        lines.append(
            f"no reward reaches {groups.pass_threshold:g}, the highest is {number(highest)}; "
            "set the threshold with --pass-threshold"
        )
    shown = groups.pass_at_k
    if len(shown) > MOST_K:
        shown = [*shown[: MOST_K - 1], shown[-1]]
    rows = [("pass@k", *(f"{one.value:.3f}" for one in shown))]
    if len({one.groups for one in shown}) > 1:
        rows.append(("groups", *(f"{one.groups:,}" for one in shown)))
    return TextTable(("k", *(str(one.k) for one in shown)), rows, "Groups", lines)


def _distributions(facts: Facts) -> TextTable:
    """Return a row for each number of a response."""
    rows: list[Row] = []
    if facts.rewards:
        rows.append(_distribution("raw reward", facts.rewards.spread, facts.rewards.quantiles))
    if facts.lengths:
        rows.append(_distribution("policy tokens", facts.lengths.spread, facts.lengths.quantiles))
    if facts.token_facts and facts.token_facts.kl:
        rows.append(
            _distribution("KL (old, ref)", facts.token_facts.kl, facts.token_facts.kl_quantiles)
        )
    lines = []
    for name, one in (("raw reward", facts.rewards), ("policy tokens", facts.lengths)):
        if one and one.histogram:
            low, high = (number(one.histogram.edges[i]) for i in (0, -1))
            lines.append(f"{name:<14}{low:>6} {spark(one.histogram.counts)} {high}")
    truncated = facts.truncated
    if truncated:
        lines.append(
            f"{truncated.responses:,} truncated ({share(truncated.responses, facts.responses)}), "
            f"according to {truncated.column}"
        )
    if facts.token_facts:
        lines += _clamped("KL (old, ref)", facts.token_facts.kl_clamped)
    lines += _correlation(facts)
    headings = ("per response", "mean", "std", "min", "p5", "p50", "p95", "max")
    title = "Rewards and lengths" if facts.lengths else "Rewards"
    return TextTable(headings, rows, title, lines)


def _distribution(name: str, spread: Spread, quantiles: dict[str, float]) -> Row:
    middle = (number(quantiles.get(part)) for part in ("p5", "p50", "p95"))
    return (
        name, number(spread.mean), number(spread.std), number(spread.min), *middle,
        number(spread.max),
    )  # fmt: skip


def _correlation(facts: Facts) -> list[str]:
    values = facts.lengths.reward_correlation if facts.lengths else None
    if not values or values["pearson"] is None:
        return []
    more = [f"ranks {values['spearman'] or 0:+.2f}"]
    if values["within_groups"] is not None:
        more.append(f"within groups {values['within_groups']:+.2f}")
    return [f"correlation of reward and length: {values['pearson']:+.2f} ({', '.join(more)})"]


def _reward_values(facts: Facts) -> TextTable | None:
    rewards = facts.rewards
    if rewards is None or not rewards.values:
        return None
    largest, total = max(rewards.values.values()), rewards.spread.count
    rows = [
        (value, f"{count:,}", percent(count / total), bar(count, largest, BAR * 2))
        for value, count in rewards.values.items()
    ]
    return TextTable(("raw reward", "responses", "share", ""), rows, text=(0, 3))


COMPONENT_HEADINGS = ("component", "weight", "mean", "std", "equal", "corr.", "share")


def component_rows(facts: Facts) -> list[Row]:
    """Return the row of each reward component, of `COMPONENT_HEADINGS`."""
    return [
        (
            name, number(one.weight), number(one.spread.mean), number(one.spread.std),
            "–" if one.zero_variance is None else f"{one.zero_variance:,}",
            signed(one.reward_correlation), percent(one.advantage_share),
        )
        for name, one in facts.components.items()
    ]  # fmt: skip


def component_notes(facts: Facts) -> list[str]:
    """Return what the columns mean, and the correlations between components."""
    components = [*facts.components.items()]
    pairs = [
        f"{name} and {other} {signed(one.correlations[other])}"
        for i, (name, one) in enumerate(components)
        for other, _ in components[i + 1 :]
    ]
    of = next((one.share_of for _, one in components), "")
    return [
        f"equal: groups with one value; corr.: with the reward; share: of {of}",
        *([f"correlation between components: {', '.join(pairs)}"] if pairs else []),
    ]


def signed(value: float | None) -> str:
    """Return a correlation."""
    return "–" if value is None else f"{value:+.2f}"


def _components(facts: Facts) -> TextTable | None:
    if not facts.components:
        return None
    return TextTable(
        COMPONENT_HEADINGS,
        component_rows(facts),
        "Reward components",
        notes=component_notes(facts),
    )


def _tokens(facts: Facts) -> TextTable | None:
    tokens = facts.token_facts
    if tokens is None or not tokens.columns:
        return None
    rows = [_token_row(role, one) for role, one in tokens.columns.items()]
    headings = ("role", "mean", "min", "max", "= 0", "> 0", "not finite")
    return TextTable(headings, rows, "Policy tokens")


def _token_row(role: str, one: TokenColumn) -> Row:
    nonfinite = one.null + one.nan + one.minus_infinity + one.plus_infinity
    positive = f"{one.positive:,}" if role.endswith("log_probs") else "–"
    return (
        role, number(one.mean), number(one.min), number(one.max), f"{one.zero:,}", positive,
        f"{nonfinite:,}",
    )  # fmt: skip


def _mismatch(facts: Facts) -> TextTable | None:
    gap = facts.token_facts.mismatch if facts.token_facts else None
    if gap is None:
        return None
    lines = [
        f"mean |Δ log-prob| {number(gap.mean_abs)} nats, maximum {number(gap.max_abs)}",
        *_clamped("KL and effective sample size", gap.clamped),
        f"KL k1 {number(gap.k1)}, k3 {number(gap.k3)}; effective sample size {percent(gap.ess)}",
        (
            f"{counted(gap.confident_disagreement, 'token')} with high engine probability and low "
            "trainer probability"
        ),
    ]
    largest = max((one.mean_abs for one in gap.by_position), default=0.0)
    rows = [
        (
            f"{one.first:,} to {one.end - 1:,}" if one.end else f"{one.first:,} on",
            f"{one.tokens:,}",
            number(one.mean_abs),
            number(one.k3),
            bar(one.mean_abs, largest, BAR),
        )
        for one in gap.by_position
    ]
    headings = ("position", "tokens", "mean |Δ|", "k3", "")
    rows = rows if len(rows) > 1 else []  # a single bucket repeats the lines above
    return TextTable(headings, rows, "Rollout engine against trainer", lines, text=(0, 4))


def _clamped(names: str, tokens: int) -> list[str]:
    """Return the line on numbers whose differences are clamped; none if no token is."""
    if not tokens:
        return []
    return [f"{names} clamp |Δ| to {LOG_RATIO_CLAMP:g} nats, in {counted(tokens, 'token')}:"]


def _advantages(facts: Facts) -> TextTable | None:
    advantages = facts.advantages
    if advantages is None:
        return None
    lines = [f"of {advantages.whole.count:,} {advantages.of}"]
    if advantages.nonfinite:
        lines.append(f"{advantages.nonfinite:,} more are NaN or infinite")
    rows = [_advantage_row(str(one.label), one) for one in advantages.steps]
    by = facts.roles["batch"].column if advantages.steps else ""
    return TextTable(
        (by, "mean", "std", "min", "max", "= 0"),
        [_advantage_row("all", advantages.whole), *elided(rows)],
        "Advantages",
        lines,
    )


def _advantage_row(name: str, one: AdvantageSlice) -> Row:
    extremes = (number(one.mean), number(one.std), number(one.min), number(one.max))
    return (name, *extremes, percent(one.zero_share))


def _masks(facts: Facts) -> TextTable | None:
    masks = facts.masks
    if masks is None:
        return None
    text = f"{percent(masks.observation_share)} of tokens are observations"
    lines = [text]
    if masks.with_observations:
        lines = [
            f"{text}, in {counted(masks.with_observations, 'response')}:",
            (
                f"  in the middle of {masks.gaps:,}, at the start of {masks.leading:,}, "
                f"at the end of {masks.trailing:,}"
            ),
            f"{counted(masks.empty, 'response')} without a policy token",
        ]
    return TextTable(title="Masks", lines=lines)


def _checks(facts: Facts) -> TextTable:
    """Return which checks ran, and why the others did not."""
    ran = [one.name for one in facts.checks if one.not_run is None]
    lines = [f"{len(ran)} ran: {', '.join(ran)}", *not_run_lines(facts)]
    notes = ["`rlpost inspect --checks` prints what each means"]
    return TextTable(title="Checks", lines=lines, notes=notes)


def not_run_lines(facts: Facts) -> list[str]:
    """Return the checks that did not run, by reason; none if all ran."""
    names: dict[str, list[str]] = {}
    for one in facts.checks:
        if one.not_run is not None:
            names.setdefault(one.not_run, []).append(one.name)
    if not names:
        return []
    count = sum(map(len, names.values()))
    return [f"{count} did not run:", *(f"  {why}: {', '.join(own)}" for why, own in names.items())]


def _slices(slices: Sequence[Slice], facts: Facts, role: str) -> TextTable | None:
    if len(slices) < 2:  # noqa: PLR2004
        return None
    column = facts.roles[role].column
    headings = (column, *_SLICE_COLUMNS)
    rows = [_slice_row(one) for one in slices]
    with_numbers = [i for i, cells in enumerate(zip(*rows, strict=True)) if {*cells} != {"–"}]
    means = [one.reward.mean for one in slices]
    notes = [_slice_note({headings[i] for i in with_numbers}, facts)]
    if role == "domain" and len(facts.steps) > 1:
        notes = []  # the table of steps has them
    lines = []
    if role == "batch" and len(slices) > 3 and None not in means:  # noqa: PLR2004
        rewards = [mean or 0.0 for mean in means]
        lines = [f"reward {spark(rewards, (min(rewards), max(rewards)))}"]
    return TextTable(
        [headings[i] for i in with_numbers],
        elided([tuple(row[i] for i in with_numbers) for row in rows]),
        f"By {column}",
        lines,
        notes=notes,
    )


_SLICE_COLUMNS = ("responses", "reward", "pass", "equal", "tokens", "cut", "KL", "k3")


def _slice_note(headings: Collection[str], facts: Facts) -> str:
    """Explain the short headings of the table by step or domain."""
    threshold = facts.groups.pass_threshold if facts.groups else 1.0
    meanings = {
        "pass": f"responses with reward ≥ {threshold:g}",
        "equal": "groups with zero reward variance",
        "tokens": "mean policy tokens",
        "cut": "truncated responses",
        "KL": "old against ref",
        "k3": "rollout engine against trainer",
    }
    return "; ".join(f"{name}: {text}" for name, text in meanings.items() if name in headings)


def _slice_row(one: Slice) -> Row:
    return (
        str(one.label),
        f"{one.responses:,}",
        number(one.reward.mean),
        percent(one.pass_rate),
        percent(one.zero_variance),
        number(one.length.mean),
        percent(one.truncated),
        number(one.kl),
        number(one.mismatch),
    )


def _stored_table(stored: InputFacts, most: int | None = None) -> TextTable:
    """Return bytes by column, the largest first."""
    total = max(sum(one.bytes for one in stored.columns), 1)
    columns = sorted(stored.columns, key=lambda one: -one.bytes)
    rows = [_stored_row(one, total) for one in columns[:most]]
    rest = columns[len(rows) :]
    if rest:
        count = sum(one.bytes for one in rest)
        rows.append((f"… {len(rest)} more", "", size(count), "", "", bar(count, total, BAR)))
    headings = ("column", "type", "bytes", "ratio", "codec", "")
    return TextTable(headings, rows, "Storage", text=(0, 1, 4, 5))


def _stored_row(one: ColumnFacts, total: int) -> Row:
    ratio = f"{one.uncompressed / one.bytes:.1f}" if one.bytes else "–"
    codecs = ", ".join(one.codecs)
    return one.name, _kind(one.type), size(one.bytes), ratio, codecs, bar(one.bytes, total, BAR)
