"""What `rlpost inspect` shows, as titles, sentences and rows of text, for every format alike.

What the footers tell, as titles, sentences and rows of text.

`rlpost inspect` on stdout: for a terminal, a pipe, as JSON or as Markdown.
"""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlpost.display.console import console
from rlpost.display.tables import MOST_ROWS, markdown_table, show_json
from rlpost.display.text import EIGHTHS, LEVELS, bar, number, percent, spark
from rlpost.io.text import printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console, RenderableType

    from rlpost.analysis.inspect.model import (
        AdvantageSlice,
        ColumnFacts,
        Evidence,
        Facts,
        Finding,
        InputFacts,
        RewardFacts,
        RoleFacts,
        Slice,
        Spread,
        TokenColumn,
    )


Row = tuple[str, ...]
BAR = 16
MOST_COLUMNS = 12


@dataclass(frozen=True)
class Section:
    """A title, sentences, and a table of text; columns in `left` are aligned to the left."""

    title: str
    lines: Sequence[str] = ()
    headings: Row = ()
    rows: Sequence[Row] = ()
    left: frozenset[int] = field(default_factory=lambda: frozenset({0}))


def counted(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def storage_lines(stored: InputFacts) -> list[str]:
    """Files, bytes, row groups, and who wrote them."""
    low, high = stored.rows_per_group
    span = f" of {low:,}" if low == high else f" of {low:,} to {high:,}"
    span = span if stored.row_groups else ""
    files = f"{len(stored.files):,} files" if len(stored.files) > 1 else "1 file"
    groups = f"{counted(stored.row_groups, 'row group')}{span}"
    lines = [f"{files}, {size(stored.bytes)}, {counted(stored.rows, 'row')} in {groups}"]
    writers = ", ".join(sorted({file.writer for file in stored.files}))
    made = sorted({_made_by(file.rlpost) for file in stored.files if file.rlpost})
    return [*lines, "; ".join([f"written by {writers}", *made])]


def _made_by(rlpost: dict[str, Any]) -> str:
    """How rlpost made a file."""
    how = "made"
    if rlpost.get("estimator"):
        how = f"enriched with {rlpost['estimator']}"
    elif rlpost.get("format"):
        how = f"converted from {rlpost['format']}"
    return f"{how} by rlpost {rlpost['version']}"


def size(count: int) -> str:
    """Bytes, with a unit that reads well."""
    amount, unit = float(count), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:  # noqa: PLR2004
            break
        amount, unit = amount / 1000, bigger
    return f"{amount:.3g} {unit}" if unit != "B" else f"{count} B"


def kind(text: str) -> str:
    """A type without the names inside lists."""
    return re.sub(r"(list(?:_view)?<)\w+: ", r"\1", text)


def roles_section(roles: dict[str, RoleFacts], lines: Sequence[str] = ()) -> Section:
    """Which column serves what, and how it was found."""
    rows = [(role, one.column, one.found_by, kind(one.type)) for role, one in roles.items()]
    return Section(
        "Columns by role", lines, ("role", "column", "found by", "type"), rows, frozenset(range(4))
    )


def storage(stored: InputFacts, *, every_column: bool) -> Section:
    """Bytes by column, the largest first."""
    total = max(sum(one.bytes for one in stored.columns), 1)
    columns = sorted(stored.columns, key=lambda one: -one.bytes)
    shown = columns if every_column else columns[:MOST_COLUMNS]
    rows = [_stored(one, total) for one in shown]
    rest = columns[len(shown) :]
    if rest:
        some = sum(one.bytes for one in rest)
        rows.append((f"… {len(rest)} more", "", size(some), "", "", bar(some, total, BAR)))
    headings = ("column", "type", "bytes", "ratio", "codec", "")
    return Section("Storage", (), headings, rows, frozenset({0, 1, 4, 5}))


def _stored(one: ColumnFacts, total: int) -> Row:
    ratio = f"{one.uncompressed / one.bytes:.1f}" if one.bytes else "–"
    codecs = ", ".join(one.codecs)
    return one.name, kind(one.type), size(one.bytes), ratio, codecs, bar(one.bytes, total, BAR)


EXPECTED = ("group", "reward", "mask", "old_log_probs", "ref_log_probs", "infer_log_probs", "batch")
MOST_K = 9


def sections(facts: Facts, *, every_column: bool = False) -> list[Section]:
    """All there is to show, in order; parts that the input cannot tell are left out."""
    parts: tuple[Callable[[Facts], Section | None], ...] = (
        _roles,
        _groups,
        _distributions,
        _rewards,
        _tokens,
        _mismatch,
        _advantages,
        _masks,
        lambda facts: _slices(facts.steps, facts, "batch"),
        lambda facts: _slices(facts.domains, facts, "domain"),
    )
    found = [section for section in (part(facts) for part in parts) if section is not None]
    return [*found, storage(facts.input, every_column=every_column)]


def overview(facts: Facts) -> list[str]:
    """The first lines: how much there is."""
    lines = storage_lines(facts.input)
    text = counted(facts.responses, "response")
    if facts.tokens:
        every, policy = facts.tokens["all"], facts.tokens["policy"]
        text += (
            f", {counted(every, 'token')}, {percent(policy / every if every else 0.0)} the policy's"
        )
        if "mask" not in facts.roles:
            text += ": there is no mask, so every token counts as the policy's"
    return [*lines, text]


def _roles(facts: Facts) -> Section:
    lacking = [role for role in EXPECTED if role not in facts.roles]
    lines = [f"no column for {', '.join(lacking)} (--map ROLE=COLUMN)"] if lacking else []
    noted: dict[str, str] = {}
    for file in facts.input.files:
        noted |= (file.rlpost or {}).get("lacks") or {}
    lines += [f"{role}: {noted[role]}" for role in lacking if role in noted]
    return roles_section(facts.roles, lines)


def _groups(facts: Facts) -> Section | None:
    groups = facts.groups
    if groups is None or not groups.size:
        return None
    low, high = groups.size["min"], groups.size["max"]
    span = f"{low}" if low == high else f"{low} to {high} (median {groups.size['median']:g})"
    by = " and ".join(groups.by)
    lines = [
        f"{counted(groups.count, 'group')} of {span}, by {by}; {counted(groups.prompts, 'prompt')}",
        f"{groups.single:,} of a single row, {groups.zero_variance:,} with equal rewards",
    ]
    if not groups.pass_rates:
        return Section("Groups", lines)
    none, *between, every = (rate.groups for rate in groups.pass_rates)
    tenths = spark([none, *between, every], wide=2)
    lines.append(
        f"pass rate  none {none:,} {tenths} all {every:,}  (reward ≥ {groups.pass_threshold:g})"
    )
    highest = facts.rewards.spread.max if facts.rewards else None
    if highest is not None and highest < groups.pass_threshold:
        lines.append(
            f"no reward reaches {groups.pass_threshold:g}, the highest is {number(highest)}: "
            "--pass-threshold R says what passes"
        )
    found = groups.pass_at_k
    if len(found) > MOST_K:
        found = [*found[: MOST_K - 1], found[-1]]
    rows = [("pass@k", *(f"{one.value:.3f}" for one in found))]
    if len({one.groups for one in found}) > 1:
        rows.append(("groups", *(f"{one.groups:,}" for one in found)))
    return Section("Groups", lines, ("k", *(str(one.k) for one in found)), rows)


def _distributions(facts: Facts) -> Section:
    """Numbers of responses: one line each."""
    rows: list[Row] = []
    if facts.rewards:
        rows.append(_distribution("reward", facts.rewards.spread, facts.rewards.quantiles))
    if facts.lengths:
        rows.append(_distribution("policy tokens", facts.lengths.spread, facts.lengths.quantiles))
    if facts.token_facts and facts.token_facts.kl:
        rows.append(
            _distribution("KL (old, ref)", facts.token_facts.kl, facts.token_facts.kl_quantiles)
        )
    lines = []
    for name, one in (("reward", facts.rewards), ("policy tokens", facts.lengths)):
        if one and one.histogram:
            edges = [number(one.histogram.edges[place]) for place in (0, -1)]
            lines.append(f"{name:<14}{edges[0]:>6} {spark(one.histogram.counts)} {edges[1]}")
    cut = facts.lengths.truncated if facts.lengths else None
    if cut:
        lines.append(f"{cut.responses:,} truncated ({percent(cut.share)}), by {cut.column}")
    lines += _correlation(facts)
    headings = ("of a response", "mean", "std", "min", "p5", "p50", "p95", "max")
    return Section("Rewards and lengths", lines, headings, rows)


def _distribution(name: str, spread: Spread, quantiles: dict[str, float]) -> Row:
    middle = (number(quantiles.get(part)) for part in ("p5", "p50", "p95"))
    return (
        name, number(spread.mean), number(spread.std), number(spread.min), *middle,
        number(spread.max),
    )  # fmt: skip


def _correlation(facts: Facts) -> list[str]:
    found = facts.lengths.reward_correlation if facts.lengths else None
    if not found or found["pearson"] is None:
        return []
    text = f"reward against length: r {found['pearson']:+.2f}, rank {found['spearman'] or 0:+.2f}"
    within = found["within_groups"]
    return [text + (f", within groups {within:+.2f}" if within is not None else "")]


def _rewards(facts: Facts) -> Section | None:
    rewards: RewardFacts | None = facts.rewards
    if rewards is None or not rewards.values:
        return None
    largest = max(rewards.values.values())
    rows = [
        (value, f"{count:,}", percent(count / rewards.spread.count), bar(count, largest, BAR * 2))
        for value, count in rewards.values.items()
    ]
    return Section("", (), ("reward", "responses", "share", ""), rows, frozenset({0, 3}))


def _tokens(facts: Facts) -> Section | None:
    found = facts.token_facts
    if found is None or not found.columns:
        return None
    rows = [_token_row(role, one) for role, one in found.columns.items()]
    return Section(
        "Tokens of the policy",
        [],
        ("role", "mean", "min", "max", "0", "> 0", "NaN, inf"),
        rows,
    )


def _token_row(role: str, one: TokenColumn) -> Row:
    infinite = one.nan + one.minus_infinity + one.plus_infinity
    over = f"{one.positive:,}" if role.endswith("log_probs") else "–"
    return (
        role, number(one.mean), number(one.min), number(one.max), f"{one.zero:,}", over,
        f"{infinite:,}",
    )  # fmt: skip


def _mismatch(facts: Facts) -> Section | None:
    gap = facts.token_facts.mismatch if facts.token_facts else None
    if gap is None:
        return None
    sizes = f"mean |Δ| {number(gap.mean_abs)} nats, at most {number(gap.max_abs)}"
    sure = f"{counted(gap.sure_but_wrong, 'token')} the engine was sure of, but not the trainer"
    lines = [
        f"{sizes}; KL k1 {number(gap.k1)}, k3 {number(gap.k3)}",
        f"effective sample {percent(gap.ess)}; {sure}",
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
    headings = ("place in response", "tokens", "mean |Δ|", "k3", "")
    rows = rows if len(rows) > 1 else []  # one bucket repeats what stands above
    return Section("Rollout engine against trainer", lines, headings, rows, frozenset({0, 4}))


def _advantages(facts: Facts) -> Section | None:
    found = facts.advantages
    if found is None:
        return None
    lines = [f"of {found.whole.count:,} {found.of}"]
    if found.nonfinite:
        lines.append(f"{found.nonfinite:,} more are NaN or infinite")
    steps = found.steps
    if len(steps) > MOST_ROWS:
        steps = [*steps[: MOST_ROWS // 2], *steps[-MOST_ROWS // 2 :]]
    rows = [_advantage_row("all", found.whole)]
    rows += [_advantage_row(str(one.label), one) for one in steps]
    if len(found.steps) > MOST_ROWS:
        rows.insert(MOST_ROWS // 2 + 1, (f"… {len(found.steps) - MOST_ROWS} more", *("",) * 5))
    by = facts.roles["batch"].column if found.steps else ""
    return Section("Advantages", lines, (by, "mean", "std", "min", "max", "exactly 0"), rows)


def _advantage_row(name: str, one: AdvantageSlice) -> Row:
    ends = (number(one.mean), number(one.std), number(one.min), number(one.max))
    return (name, *ends, _rate(one.zero_share))


def _masks(facts: Facts) -> Section | None:
    masks = facts.masks
    if masks is None:
        return None
    share = percent(masks.observation_share)
    lines = [f"{share} of tokens are observations, in {masks.with_observations:,} responses"]
    if masks.with_observations:
        lines.append(
            f"{masks.gaps:,} responses have them between policy tokens, {masks.leading:,} at the "
            f"start, {masks.trailing:,} at the end; {masks.empty:,} have no policy token"
        )
    return Section("Masks", lines)


def _slices(slices: Sequence[Slice], facts: Facts, role: str) -> Section | None:
    if len(slices) < 2:  # noqa: PLR2004
        return None
    column = facts.roles[role].column
    shown = [*slices]
    if len(slices) > MOST_ROWS:
        shown = [*slices[: MOST_ROWS // 2], *slices[-MOST_ROWS // 2 :]]
    headings = (column, "responses", "reward", "pass", "equal", "tokens", "cut", "KL", "k3")
    known = [
        place
        for place, cells in enumerate(zip(*map(_slice, shown), strict=True))
        if {*cells} != {"–"}
    ]
    rows: list[Row] = [tuple(_slice(one)[place] for place in known) for one in shown]
    if len(slices) > MOST_ROWS:
        rows.insert(
            MOST_ROWS // 2, (f"… {len(slices) - MOST_ROWS} more", *("",) * (len(known) - 1))
        )
    means = [one.reward.mean for one in slices]
    lines = []
    if role == "batch" and len(slices) > 3 and None not in means:  # noqa: PLR2004
        lines = [f"reward {spark([mean or 0.0 for mean in means], from_zero=False)}"]
    return Section(f"By {column}", lines, tuple(headings[place] for place in known), rows)


def _slice(one: Slice) -> Row:
    return (
        str(one.label),
        f"{one.responses:,}",
        number(one.reward.mean),
        _rate(one.pass_rate),
        _rate(one.zero_variance),
        number(one.length.mean),
        _rate(one.truncated),
        number(one.kl),
        number(one.mismatch),
    )


def _rate(share: float | None) -> str:
    if share is None:
        return "–"
    text = f"{100 * share:.1f}"
    return f"{'99.9' if text == '100.0' and share < 1 else text} %"


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
    out, title = out or console(sys.stdout), printable_line(title)
    spaced = [piece for part in parts for piece in (part, Text(""))][:-1]
    if out.is_terminal:
        out.print(Panel(Group(*spaced), title=Text(title), title_align="left", border_style="dim"))
    else:
        out.print(Text(title), *spaced, sep="\n")


def _stacked(lines: Sequence[str]) -> Text:
    return Text("\n".join(map(printable_line, lines)))


def _drawn(section: Section) -> RenderableType:
    """A section for the console: its title, its table, its sentences."""
    parts: list[RenderableType] = []
    if section.title:
        parts.append(Text(printable_line(section.title), style="bold cyan"))
    if section.lines:
        parts.append(Group(*(_charted(line) for line in section.lines)))
    if section.rows:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        for place, heading in enumerate(section.headings):
            left = place in section.left
            table.add_column(
                printable_line(heading),
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
    drawn = Text(printable_line(text))
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
        head = Text.assemble(
            (f"{mark} {one.name}", f"bold {style}"), f"  {printable_line(one.said)}"
        )
        parts.append(_hanging(head, 2))
        parts.append(Padding(Text(f"→ {printable_line(one.advice)}"), (0, 0, 0, 4), expand=False))
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
    name = printable_line(one.file.rpartition("/")[2])
    text = name if one.row is None else f"row {one.row}" + (f" of {name}" if named else "")
    group = None
    if one.group is not None:
        group = textwrap.shorten(printable_line(str(one.group)), WIDEST, placeholder="…")
    notes = ": ".join(part for part in (group, printable_line(one.said)) if part)
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
    return printable_line(text).replace("<", "&lt;")
