"""Sections about the whole input: overview, steps, distributions, groups, engine, files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rlpost.analysis.inspect.about.checks import checks_ran, not_run_lines
from rlpost.analysis.inspect.about.columns import ignored_lines
from rlpost.analysis.inspect.about.components import (
    COMPONENT_HEADINGS,
    component_notes,
    component_rows,
)
from rlpost.analysis.inspect.about.lengths import without_tokens_lines
from rlpost.analysis.inspect.about.masks import left_out_lines
from rlpost.analysis.inspect.findings import FINDINGS
from rlpost.analysis.report.charts import (
    bars,
    histogram,
    histogram_beside_zeros,
    histograms_by,
    label_of,
    line,
)
from rlpost.analysis.report.page import Section, Tile
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, counted, mean_beside, number, percent, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rlpost.analysis.inspect.model import (
        AdvantageFacts,
        AdvantageSlice,
        CheckRun,
        Facts,
        Label,
        Mismatch,
        PromptGroup,
        Slice,
        Spread,
    )
    from rlpost.analysis.report.page import Chart


MOST_ROWS = 200
MOST_FILES = 50
_LEAST_STEPS = 2


def signal(facts: Facts) -> Section | None:
    """Return what trains anything: tokens by the sign of their advantage, groups with signal.

    None without advantages and groups.
    """
    tiles = []
    if facts.advantages is not None and facts.advantages.whole.count:
        whole, of = facts.advantages.whole, facts.advantages.of
        zero, positive = whole.zero_share or 0.0, whole.positive_share or 0.0
        negative = max(1.0 - zero - positive, 0.0)
        key = "advantages.whole"
        tiles = [
            Tile("A > 0", percent(positive), f"of {whole.count:,} {of}", f"{key}.positive_share"),
            Tile("A < 0", percent(negative), of),
            Tile("A = 0", percent(zero), f"{of}: no gradient", f"{key}.zero_share"),
        ]
    groups = facts.groups
    if groups is not None and groups.size and groups.pass_rate is not None:
        share = percent(groups.no_signal / groups.count)
        note = f"{share} of {groups.count:,}: a group baseline makes their advantages 0"
        key = "groups.no_signal"
        tiles.append(Tile("Groups with equal rewards", f"{groups.no_signal:,}", note, key))
    return Section("signal", "Signal", tiles=tiles) if tiles else None


def overview(facts: Facts) -> Section:
    """Return tiles with the sizes and means of the input."""
    tiles = [
        Tile(f"{facts.row_noun}s".capitalize(), f"{facts.responses:,}", _stored(facts), "responses")
    ]
    if facts.tokens and facts.lengths:
        every, policy = facts.tokens["all"], facts.tokens["policy"]
        note = f"according to {facts.lengths.column}"
        if every is not None:
            note = f"{percent(policy / every if every else 0.0)} of {every:,} tokens"
        tiles.append(Tile("Policy tokens", f"{policy:,}", note, "tokens.policy"))
    tiles += _group_tiles(facts)
    if facts.rewards:
        note = f"std {number(facts.rewards.spread.std)}, {_ends(facts.rewards.spread)}"
        value = number(facts.rewards.spread.mean)
        tiles.append(Tile("Mean reward", value, note, "rewards.spread.mean"))
    if facts.lengths:
        note = f"median {number(facts.lengths.quantiles.get('p50'))}, {_ends(facts.lengths.spread)}"
        value = number(facts.lengths.spread.mean)
        tiles.append(Tile("Mean length", value, f"tokens; {note}", "lengths.spread.mean"))
    if facts.truncated:
        note = f"{counted(facts.truncated.responses, facts.unit)}, according to "
        note += facts.truncated.column
        share = percent(facts.truncated.share)
        tiles.append(Tile("Truncated", share, note, "truncated.share"))
    kl = facts.token_facts.kl if facts.token_facts else None
    if kl:
        note = f"old ‖ ref, k1, mean of responses; {_ends(kl)}"
        tiles.append(Tile("KL per token", number(kl.mean), note, "token_facts.kl.mean"))
    lines = [*facts.where_lines, *without_tokens_lines(facts), *left_out_lines(facts)]
    return Section("overview", "Overview", lines, tiles)


def _stored(facts: Facts) -> str:
    if not facts.input.columns:
        return f"{counted(len(facts.input.files), 'table')} in memory"
    return f"{counted(len(facts.input.files), 'file')}, {size(facts.input.bytes)}"


def _ends(spread: Spread | AdvantageSlice) -> str:
    return f"{number(spread.min)} to {number(spread.max)}"


def _group_tiles(facts: Facts) -> list[Tile]:
    groups = facts.groups
    if groups is None or not groups.size:
        return []
    low, high = groups.size["min"], groups.size["max"]
    span = f"{low}" if low == high else f"{low} to {high}"
    note = f"of {span} {groups.of}s, by {', '.join(groups.by)}"
    tiles = [Tile("Groups", f"{groups.count:,}", note, "groups.count")]
    if groups.pass_rate is None:
        return tiles
    note = f"mean of groups, reward ≥ {groups.pass_threshold:g}"
    tiles.append(Tile("Pass rate", percent(groups.pass_rate), note, "groups.pass_rate"))
    pass_at_k = groups.pass_at_k_of_all
    if len(pass_at_k) > 1:
        best, key = pass_at_k[-1], f"groups.pass_at_k.{len(pass_at_k) - 1}.value"
        tiles.append(Tile(f"Pass@{best.k}", percent(best.value), "unbiased", key))
    return tiles


class _StepChart(NamedTuple):
    """A chart over steps."""

    title: str
    values: Sequence[float | None]
    share: bool
    from_zero: bool


_TRENDS: tuple[tuple[str, Callable[[Slice], float | None], bool, bool], ...] = (
    ("Mean reward", lambda one: one.reward.mean, False, False),
    ("Pass rate", lambda one: one.pass_rate, True, True),
    ("Groups without signal: equal rewards", lambda one: one.no_signal, True, True),
    ("Mean length, policy tokens", lambda one: one.length.mean, False, True),
    ("Truncated responses", lambda one: one.truncated, True, True),
    ("KL per token, old ‖ ref, k1", lambda one: one.kl, False, False),
    ("Engine ‖ trainer, k3", lambda one: one.mismatch, False, True),
)


_SIGNALS = 3  # trends above, of rewards and groups; those of advantages follow
_OF_ADVANTAGES: tuple[tuple[str, Callable[[AdvantageSlice], float | None], bool, bool], ...] = (
    ("Std of advantages", lambda one: one.std, False, True),
    ("Advantages of exactly 0", lambda one: one.zero_share, True, True),
)


def steps(facts: Facts, clipped: Mapping[Label, tuple[float, float]]) -> Section | None:
    """Return trends over steps; None with fewer than two steps.

    Args:
        facts: of the input.
        clipped: by step, the shares of policy tokens that the loss clips below and above.
    """
    if len(facts.steps) < _LEAST_STEPS:
        return None
    axis = facts.roles["batch"].column
    labels = [one.label for one in facts.steps]
    trends = [
        _StepChart(title, [*map(of, facts.steps)], share, from_zero)
        for title, of, share, from_zero in _TRENDS
    ]
    own = {one.label: one for one in facts.advantages.steps} if facts.advantages else {}
    slices = [own.get(label) for label in labels]
    for title, of_slice, share, from_zero in _OF_ADVANTAGES:
        values = [None if one is None else of_slice(one) for one in slices]
        trends.insert(_SIGNALS, _StepChart(title, values, share, from_zero))
    for side, title in enumerate(("Clipped below", "Clipped above")):
        shares = [clipped.get(label, (None, None))[side] for label in labels]
        trends.append(_StepChart(f"{title}, policy tokens", shares, share=True, from_zero=True))
    charts = [
        line(one.title, labels, one.values, axis, share=one.share, from_zero=one.from_zero)
        for one in trends
        if any(value is not None for value in one.values)
    ]
    table = _slice_table("All steps", axis, facts.steps, facts.row_noun)
    return Section("steps", "Steps", charts=charts, tables=[table])


_COLUMNS = (
    *("reward", "pass rate", "no signal", "policy tokens", "truncated"),
    *("KL per token", "engine ‖ trainer"),
)


def _slice_table(title: str, name: str, slices: Sequence[Slice], noun: str) -> TextTable:
    """Return a row per step or domain, without columns that have no numbers."""
    columns = _slice_cells(slices[:MOST_ROWS])
    with_numbers = [i for i, cells in enumerate(columns) if {*cells} != {"–"}]
    rows = [*zip(*(columns[i] for i in with_numbers), strict=True)]
    if len(slices) > MOST_ROWS:
        rows.append((f"… {len(slices) - MOST_ROWS:,} more", *("" for _ in with_numbers[1:])))
    headings = (name, f"{noun}s", *_COLUMNS)
    return TextTable(tuple(headings[i] for i in with_numbers), rows, title)


def _slice_cells(slices: Sequence[Slice]) -> list[list[str]]:
    """Return the columns of a table of steps or domains; each has one number of decimals."""
    return [
        [label_of(one.label) for one in slices],
        [f"{one.responses:,}" for one in slices],
        aligned([one.reward.mean for one in slices]),
        [percent(one.pass_rate) for one in slices],
        [percent(one.no_signal) for one in slices],
        aligned([one.length.mean for one in slices]),
        [percent(one.truncated) for one in slices],
        aligned([one.kl for one in slices]),
        aligned([one.mismatch for one in slices]),
    ]


def distributions(facts: Facts) -> Section | None:
    """Return the distributions of rewards, lengths and advantages."""
    charts = [*_reward_charts(facts)]
    lengths = facts.lengths
    if lengths and lengths.histogram:
        charts.append(
            histogram(
                "Lengths",
                lengths.histogram,
                f"{facts.row_noun}s",
                f"policy tokens of a {facts.row_noun}",
            )
        )
    tiles: list[Tile] = []
    lines: list[str] = []
    if facts.advantages is not None:
        advantage_charts, tiles, lines = _advantages(facts.advantages)
        charts += advantage_charts
    else:
        lines.append("The input has no advantages; rlpost advantages computes them.")
    rows = _quantile_rows(facts)
    tables = [TextTable(_QUANTILES, rows, "Quantiles")] if rows else []
    if facts.components:
        tables.append(TextTable(COMPONENT_HEADINGS, component_rows(facts), "Reward components"))
        lines += component_notes(facts)
    return Section("distributions", "Distributions", lines, tiles, charts, tables)


_QUANTILES = ("", "p1", "p5", "p25", "p50", "p75", "p95", "p99")


def _quantile_rows(facts: Facts) -> list[tuple[str, ...]]:
    quantiles_of = {
        "raw reward": facts.rewards.quantiles if facts.rewards else {},
        "policy tokens": facts.lengths.quantiles if facts.lengths else {},
        "KL": facts.token_facts.kl_quantiles if facts.token_facts else {},
    }
    return [
        (name, *(number(quantiles.get(part)) for part in _QUANTILES[1:]))
        for name, quantiles in quantiles_of.items()
        if quantiles
    ]


def _reward_charts(facts: Facts) -> list[Chart]:
    rewards = facts.rewards
    if rewards is None:
        return []
    if rewards.values:
        counts = [*rewards.values.values()]
        return [bars("Rewards", [*rewards.values], counts, f"{facts.unit}s", "reward")]
    if rewards.histogram:
        return [histogram("Rewards", rewards.histogram, f"{facts.unit}s", "reward")]
    return []


def _advantages(facts: AdvantageFacts) -> tuple[list[Chart], list[Tile], list[str]]:
    whole, key, lines = facts.whole, "advantages.whole", []
    if facts.left_out is not None:
        responses = counted(facts.left_out, "response")
        lines = [f"Advantages leave out {responses} with sample mask 0."]
    zeros = round((whole.zero_share or 0.0) * whole.count)
    mean = number(mean_beside(whole.mean, whole.std))
    tiles = [
        Tile("Mean advantage", mean, f"of {whole.count:,} {facts.of}", f"{key}.mean"),
        Tile("Std of advantages", number(whole.std), _ends(whole), f"{key}.std"),
    ]
    if facts.nonfinite:
        label = "NaN or infinite advantages"
        tiles.append(Tile(label, f"{facts.nonfinite:,}", facts.of, "advantages.nonfinite"))
    if facts.histogram is None:
        return [], tiles, lines
    outside = whole.count - sum(facts.histogram.counts)
    note = f"{outside:,} {facts.of} are outside this range" if outside else ""
    chart = histogram_beside_zeros(
        "Advantages", facts.histogram, zeros, facts.of, "advantage", note
    )
    return [chart], tiles, lines


def groups(facts: Facts) -> Section | None:
    """Return pass rates, pass@k and sizes of groups; None without groups."""
    stats = facts.groups
    if stats is None or not stats.size:
        return None
    charts = []
    if stats.pass_rates:
        names = _rate_names(stats)
        counts = [one.groups for one in stats.pass_rates]
        note = f"in {stats.all_pass:,} groups all {stats.of}s pass, in {stats.all_fail:,} none"
        charts.append(bars("Pass rates of groups", names, counts, "groups", "pass rate", note))
    pass_at_k = stats.pass_at_k_of_all
    if len(pass_at_k) > 1:
        ks, values = [str(one.k) for one in pass_at_k], [one.value for one in pass_at_k]
        smaller = len(pass_at_k) < len(stats.pass_at_k)
        note = f"over all groups, up to their least number of {stats.of}s" * smaller
        charts.append(line("Pass@k", ks, values, "k", share=True, note=note or "over all groups"))
    if len(stats.sizes) > 1:
        labels, counts = [str(size) for size in stats.sizes], [*stats.sizes.values()]
        charts.append(bars("Sizes of groups", labels, counts, "groups", f"{stats.of}s of a group"))
    tables = []
    if len(facts.domains) > 1:
        name = facts.roles["domain"].column
        tables.append(_slice_table(f"By {name}", name, facts.domains, facts.row_noun))
    return Section("groups", "Groups", charts=charts, tables=tables)


def _rate_names(groups: PromptGroup) -> list[str]:
    """Return names of bins of pass rates: `3/8` if groups have one size, else `<40 %`."""
    assert groups.size is not None
    between = groups.pass_rates[1:-1]
    size = groups.size["max"]
    if groups.size["min"] == size == len(between) + 1:
        return ["none", *(f"{passed}/{size}" for passed in range(1, size)), "all"]
    return ["none", *(f"<{100 * one.high:.0f} %" for one in between), "all"]


def checks(facts: Facts) -> Section:
    """Return every check, with its result."""
    rows = [(one.name, _check_result(one), FINDINGS[one.name].meaning) for one in facts.checks]
    table = TextTable(("check", "result", "meaning"), rows, "All checks", text=(0, 1, 2))
    lines = [f"{checks_ran(facts)} ran", *not_run_lines(facts)]
    return Section("checks", "Checks", lines, tables=[table])


def _check_result(one: CheckRun) -> str:
    if one.not_run is not None:
        return f"did not run: {one.not_run}"
    return "problem found" if one.found else "no problem"


def storage(facts: Facts) -> Section:
    """Return the columns by role, and the files."""
    roles = [(role, one.column, one.found_by, one.type) for role, one in facts.roles.items()]
    files = [
        (file.path, f"{file.rows:,}", f"{file.bytes / 1e6:,.2f}", _writer(file.rlpost, file.writer))
        for file in facts.input.files[:MOST_FILES]
    ]
    if len(facts.input.files) > MOST_FILES:
        files.append((f"… {len(facts.input.files) - MOST_FILES:,} more", "", "", ""))
    tables = [
        TextTable(("role", "column", "found by", "type"), roles, "Columns by role", text=range(4))
    ]
    if facts.input.columns:  # tables in memory have none
        tables.append(
            TextTable(("file", "responses", "MB", "written by"), files, "Files", text=(0, 3))
        )
    return Section("storage", "Files and columns", ignored_lines(facts), tables=tables)


def _writer(rlpost: dict[str, object] | None, writer: str) -> str:
    if not rlpost:
        return writer
    version, estimator = f"rlpost {rlpost['version']}", rlpost.get("estimator")
    return f"{version}, {estimator}" if estimator else version


_MISMATCH = "mismatch"


def engine(facts: Facts) -> Section | None:
    """Return the difference between rollout engine and trainer; None if it is unknown."""
    gap = facts.mismatch
    if gap is None:
        return None
    identical = gap.identical / gap.tokens
    shares = ("Effective sample size", percent(gap.ess), "of token weights old / engine")
    clamped = (
        "|Δ| over 40 nats",
        f"{gap.clamped:,}",
        "tokens, clamped to 40 in KL, χ² and sample size",
    )
    tiles = [
        Tile("Mean |Δ log-prob|", number(gap.mean_abs), "nats", f"{_MISMATCH}.mean_abs"),
        Tile("Largest |Δ|", number(gap.max_abs), "nats", f"{_MISMATCH}.max_abs"),
        Tile("KL, k1", number(gap.k1), "engine ‖ trainer", f"{_MISMATCH}.k1"),
        Tile("KL, k3", number(gap.k3), "engine ‖ trainer", f"{_MISMATCH}.k3"),
        Tile(
            "χ², estimated", number(gap.chi_square),
            "trainer ‖ engine, mean of w² - 1; may be negative by chance",
            f"{_MISMATCH}.chi_square",
        ),
        Tile(*shares, f"{_MISMATCH}.ess"),
        *([Tile(*clamped, f"{_MISMATCH}.clamped")] if gap.clamped else []),
        Tile(
            "Low trainer probability", f"{gap.confident_disagreement:,}",
            "tokens with engine probability ≥ 0.5, more than 2 nats off",
            f"{_MISMATCH}.confident_disagreement",
        ),
        Tile(
            "Identical", f"{gap.identical:,}", f"tokens, {percent(identical)}",
            f"{_MISMATCH}.identical",
        ),
    ]  # fmt: skip
    charts = []
    if len(gap.by_position) > 1:
        names = [f"{bucket.first:,}" for bucket in gap.by_position]
        for title, heights in (
            (
                "Mean |Δ log-prob| by position in the response",
                [b.mean_abs for b in gap.by_position],
            ),
            ("KL, k3, by position in the response", [b.k3 for b in gap.by_position]),
        ):
            charts.append(bars(title, names, heights, "nats", "from token"))
    charts += _ratio_charts(gap)
    rows = [
        (
            one.name, percent(one.share), one.sure, one.change, one.evidence,
            "; ".join((one.advice, *one.options)),
        )
        for one in gap.causes
    ]  # fmt: skip
    headings = ("cause", "of the gap", "sure", "change", "evidence", "what to do")
    tables = [TextTable(headings, rows, "Causes", text=(0, 2, 3, 4, 5))] if rows else []
    title = "Rollout engine against trainer"
    return Section("engine", title, tiles=tiles, charts=charts, tables=tables)


def _ratio_charts(gap: Mismatch) -> Iterator[Chart]:
    """Yield the histograms of log-ratios by position, lag and step."""
    names = {"position": "policy token of the turn", "lag": "version lag", "step": "step"}
    for by, name in names.items():
        own = [one for one in gap.ratios if one.by == by]
        if len(own) > 1:
            yield histograms_by(
                f"Log-ratio old / engine by {name}", [str(one.label) for one in own],
                gap.ratio_edges, [one.counts for one in own], "tokens", "nats",
                f"of {gap.sampled:,} tokens",
            )  # fmt: skip
