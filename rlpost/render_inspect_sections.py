"""What `rlpost inspect` shows, as titles, sentences and rows of text, for every format alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.render import MOST_ROWS, number, percent
from rlpost.render_inspect_charts import bar, spark
from rlpost.render_inspect_storage import (
    BAR,
    Row,
    Section,
    counted,
    roles_section,
    storage,
    storage_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlpost.inspect.model import (
        AdvantageSlice,
        Facts,
        RewardFacts,
        Slice,
        Spread,
        TokenColumn,
    )

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
