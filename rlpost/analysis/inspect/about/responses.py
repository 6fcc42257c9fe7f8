"""Topics on responses: groups, rewards and their components, lengths, failures, steps, domains."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.charts import bar, spark
from rlpost.display.tables import TextTable, elided
from rlpost.display.text import aligned, counted, number, percent, plural, share, value_list
from rlpost.display.trends import Trend, trend_table
from rlpost.pipeline.measures import CORRELATION, WITH_REWARD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import Facts, Histogram, Json, PromptGroup
    from rlpost.display.page import Page


# ---- groups ----

BAR_OF_GROUPS = 24  # characters


@topic
def groups(facts: Facts) -> Page:
    """Prompt groups: their sizes, those without signal, pass rates and pass@k."""
    keys, size, single = facts.prompt_groups, facts.whole("group_size"), facts.whole("single")
    if keys is None or not size["count"]:
        return page_of(facts, "groups", [], without_column("group"))
    units = facts.unit if size["max"] == 1 else f"{facts.unit}s"
    prompts = counted(keys.prompts, "prompt")
    lines = [f"{sizes(facts)} {units}, by {' and '.join(keys.by)}; {prompts}"]
    if single["total"]:
        lines.append(f"{counted(single['total'], 'group')} of one {facts.unit}")
    if not keys.pass_rates:
        return page_of(facts, "groups", [TextTable(title="Groups", lines=lines)], "")
    lines += [without_signal(facts), *threshold_lines(facts)]
    return page_of(facts, "groups", [_pass_rates(facts, keys, lines), _pass_at_k(keys, size)], "")


def sizes(facts: Facts) -> str:
    """Return `64 groups of 8`, or `of 7 to 8`."""
    size = facts.whole("group_size")
    text, low, high = counted(size["count"], "group"), size["min"], size["max"]
    if not size["count"]:
        return text
    return f"{text} of {low:,.0f}" + (f" to {high:,.0f}" if low != high else "")


def without_signal(facts: Facts) -> str:
    """Return how many groups of several responses have equal rewards, and which."""
    equal, passing = facts.whole("equal_rewards"), facts.whole("all_pass")["total"]
    count, several = equal["total"], equal["count"]
    text = f"no signal in {count:,} of {counted(several, 'group')} ({share(count, several)})"
    kinds = {"all pass": passing, "none pass": count - passing}
    parts = [f"{part:,} {kind}" for kind, part in kinds.items() if part]
    return f"{text}: {', '.join(parts)}" if parts else text


def threshold_lines(facts: Facts) -> list[str]:
    """Return the line on a threshold of passing that no reward reaches."""
    highest, groups = facts.whole("reward")["max"], facts.prompt_groups
    if groups is None or highest is None or highest >= groups.pass_threshold:
        return []
    threshold = f"{groups.pass_threshold:g} (--pass-threshold)"
    return [f"no reward reaches {threshold}, the highest is {number(highest)}"]


def rate_names(facts: Facts, keys: PromptGroup) -> list[str]:
    """Return names of the bins of pass rates: `3 of 8` if groups have one size, else a range."""
    between, size = keys.pass_rates[1:-1], facts.whole("group_size")
    names = [f"{100 * rate.low:.3g} to {100 * rate.high:.3g} %" for rate in between]
    if size["min"] == size["max"] == len(between) + 1:
        names = [f"{count} of {size['max']:.0f}" for count in range(1, len(between) + 1)]
    return ["none", *names, "all"]


def _pass_rates(facts: Facts, keys: PromptGroup, lines: list[str]) -> TextTable:
    counts = [rate.groups for rate in keys.pass_rates]
    rows = [
        (name, f"{count:,}", bar(count, max(counts), BAR_OF_GROUPS))
        for name, count in zip(rate_names(facts, keys), counts, strict=True)
    ]
    headings = (f"{facts.unit}s that pass (reward ≥ {keys.pass_threshold:g})", "groups", "")
    return TextTable(headings, rows, "Groups", lines, text=(0, 2))


def _pass_at_k(keys: PromptGroup, size: Json) -> TextTable:
    """Return pass@k up to the largest k that all groups have: of fewer groups it may fall."""
    shown = keys.pass_at_k_of_all
    notes = [
        f"k {x.k:,}: only {x.groups:,} of {counted(size['count'], 'group')} are so large"
        for x in keys.pass_at_k[len(shown) :][:1]
    ]
    return TextTable(
        ("k", *(str(x.k) for x in shown)),
        [("pass@k", *(f"{x.value:.3f}" for x in shown))],
        notes=notes,
    )


# ---- rewards ----

BAR_OF_REWARDS = 32  # characters
QUANTILES = ("p5", "p50", "p95")
CORRELATED = 0.3  # a weaker correlation is not worth a sentence


@topic
def rewards(facts: Facts) -> Page:
    """Raw rewards: mean, quantiles, values, and whether longer responses score higher."""
    numbers = facts.rewards
    if numbers is None:
        return page_of(facts, "rewards", [], without_column("reward"))
    lines = correlation_lines(facts)
    if numbers.nonfinite:
        lines.append(f"{numbers.nonfinite:,} more are null, NaN or infinite")
    whole = distribution(
        f"Raw rewards of {facts.unit}s", facts.whole("reward"), numbers.quantiles,
        numbers.histogram, lines,
    )  # fmt: skip
    return page_of(facts, "rewards", [whole, _reward_values(facts)], "")


def distribution(
    name: str,
    spread: Json,
    quantiles: dict[str, float],
    histogram: Histogram | None,
    lines: Sequence[str] = (),
) -> TextTable:
    """Return the table of a number per response: its histogram, mean, std and quantiles."""
    middle = [quantiles.get(part) for part in QUANTILES]
    cells = aligned([spread["mean"], spread["std"], spread["min"], *middle, spread["max"]])
    headings = ("mean", "std", "min", "5 %", "median", "95 %", "max")
    return TextTable(headings, [cells], name, [*chart(histogram), *lines], text=())


def chart(histogram: Histogram | None) -> list[str]:
    """Return the histogram between its ends; none if all numbers are equal."""
    if histogram is None:
        return []
    low, high = (number(histogram.edges[i]) for i in (0, -1))
    return [f"{low} {spark(histogram.counts)} {high}"]


def correlation_lines(facts: Facts) -> list[str]:
    """Return whether reward and length correlate, over all responses and within groups."""
    values = facts.lengths.reward_correlation if facts.lengths else None
    if not values or values["pearson"] is None:
        return []
    pearson, within = values["pearson"], values["within_groups"]
    numbers = f"{pearson:+.2f}" + ("" if within is None else f", within groups {within:+.2f}")
    of = "" if facts.rollouts is None else " of a row"
    if max(abs(pearson), abs(within or 0.0)) < CORRELATED:
        return [f"reward and length{of} hardly correlate ({numbers})"]
    if abs(pearson) < CORRELATED:
        return [f"reward and length{of} correlate within groups ({numbers})"]
    longer = "longer" if pearson > 0 else "shorter"
    text = f"{longer} {facts.row_noun}s score higher ({pearson:+.2f})"
    if within is not None and (abs(within) < CORRELATED or within * pearson < 0):
        return [f"{text}, but not within a group ({within:+.2f})"]
    return [text if within is None else f"{text}, also within a group ({within:+.2f})"]


def _reward_values(facts: Facts) -> TextTable | None:
    rewards = facts.rewards
    if rewards is None or not rewards.values:
        return None
    largest, total = max(rewards.values.values()), facts.whole("reward")["count"]
    rows = [
        (value, f"{count:,}", percent(count / total), bar(count, largest, BAR_OF_REWARDS))
        for value, count in rewards.values.items()
    ]
    return TextTable(("raw reward", f"{facts.unit}s", "share", ""), rows, text=(0, 3))


# ---- components ----

COMPONENT_HEADINGS = ("component", "weight", "mean", "std", "no signal", "corr.", "share")


@topic
def components(facts: Facts) -> Page:
    """Reward components: mean, groups without signal, correlations, share of the advantage."""
    table = None
    if facts.components:
        rows, notes = _component_rows(facts), _component_notes(facts)
        table = TextTable(COMPONENT_HEADINGS, rows, "Reward components", notes=notes)
    otherwise = "The reward is one column; --reward-components A,B names those whose sum it is."
    return page_of(facts, "components", [table], otherwise)


def _component_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Return the row of each reward component, of `COMPONENT_HEADINGS`."""
    rows: list[tuple[str, ...]] = []
    for name, profile in facts.components.items():
        spread, equal = facts.whole(f"component:{name}"), profile["no_signal"]
        rows.append(
            (
                name, number(profile["weight"]), number(spread["mean"]), number(spread["std"]),
                "–" if equal is None else f"{equal:,}", _signed(facts, f"{WITH_REWARD}{name}"),
                percent(facts.whole(f"advantage_share:{name}")["value"]),
            )
        )  # fmt: skip
    return rows


def _component_notes(facts: Facts) -> list[str]:
    """Return what the columns mean, and the correlations between components."""
    pairs = [
        f"{name} and {other} {_signed(facts, f'{CORRELATION}{name},{other}')}"
        for name, other in combinations(facts.components, 2)
    ]
    of = next(iter(facts.components.values()))["share_of"]
    return [
        f"no signal: groups with one value; corr.: with the reward; share: of {of}",
        *([f"correlation between components: {', '.join(pairs)}"] if pairs else []),
    ]


def _signed(facts: Facts, measure: str) -> str:
    value = facts.whole(measure)["value"]
    return "–" if value is None else f"{value:+.2f}"


# ---- lengths ----


@topic
def lengths(facts: Facts) -> Page:
    """Policy tokens of each response: mean, quantiles, truncated responses."""
    numbers = facts.lengths
    if numbers is None:
        return page_of(facts, "lengths", [], "\n".join(without_tokens_lines(facts)))
    lines = []
    if "truncated" in facts.facts:
        cut, column = facts.whole("truncated"), facts.roles["truncated"].column
        text = f"{counted(cut['total'], facts.unit)} truncated ({percent(cut['mean'] or 0.0)})"
        lines = [f"{text}, according to `{column}`"]
    table = distribution(
        f"Policy tokens of {facts.row_noun}s", facts.whole("policy_tokens"), numbers.quantiles,
        numbers.histogram, lines,
    )  # fmt: skip
    return page_of(facts, "lengths", [table], "")


def without_tokens_lines(facts: Facts) -> list[str]:
    """Return the line on an input without a list of tokens: why nothing is about tokens."""
    if facts.tokens is None:
        advice = "set their column with --map response_length=COLUMN"
        return [f"no column has tokens, so lengths are unknown ({advice})"]
    if facts.tokens["all"] is None and facts.lengths:
        count = counted(facts.tokens["policy"], "policy token")
        return [f"no column has tokens; {count} according to `{facts.lengths.column}`"]
    return []


# ---- failures ----

TREATMENTS = {
    "drop": "left out here, as of `rlpost advantages`: --failures drop, the default",
    "mask": "--failures mask: they count here, but are left out of training",
    "keep": "--failures keep: they count as any other",
    "zero": "--failures zero: they count with reward 0",
}
"""What becomes of failed responses."""
MOST_STEPS = 5


@topic
def failures(facts: Facts) -> Page:
    """Failures: how many by reason and step."""
    numbers = facts.failures
    if numbers is None:
        return page_of(facts, "failures", [], without_column("failure"))
    if not facts.whole("failed")["total"]:
        return page_of(facts, "failures", [], f"No {facts.unit} failed (`{numbers.column}`).")
    reasons = [(reason, f"{count:,}") for reason, count in numbers.reasons.items()]
    shares = zip(facts.labels("step"), facts.by("step", "failed"), strict=True)
    worst = sorted(((label, part) for label, part in shares if part), key=lambda x: -x[1])
    steps = [(str(label), percent(part)) for label, part in worst[:MOST_STEPS]]
    step = facts.roles["batch"].column if "batch" in facts.roles else "step"
    tables = [
        TextTable(
            (f"`{numbers.column}`", plural(facts.unit)), reasons, "Failures", failure_lines(facts)
        ),
        TextTable((step, "failed"), steps) if len(facts.labels("step")) > 1 else None,
    ]
    return page_of(facts, "failures", tables, "")


def failure_lines(facts: Facts) -> list[str]:
    """Return the line on failed responses, if there are any."""
    numbers = facts.failures
    failed = facts.whole("failed")
    if numbers is None or not failed["total"]:
        return []
    text = f"{percent(failed['mean'])} of {counted(failed['count'], facts.unit)} failed: "
    return [f"{text}{value_list(numbers.reasons)} ({TREATMENTS[numbers.treatment]})"]


# ---- steps ----

MOST_ROWS = 60
MOST_NAMED = 3
LARGE = 1e-3  # nats of k3; below, engine and trainer agree
NUMBERS = {
    "reward": ("reward", ""),
    "passed": ("pass", ""),
    "equal_rewards": ("no signal", ""),
    "policy_tokens": ("policy tokens", "tokens"),
    "truncated": ("truncated", ""),
    "kl": ("KL per token", "KL"),
    "engine_k3": ("engine ‖ trainer", "engine KL"),
}
"""By measure, its name beside a trend, and as the heading of a table if that is another one."""
SHARES = ("passed", "equal_rewards", "truncated")
OVERVIEW = ("reward", "equal_rewards", "policy_tokens", "truncated", "kl")


@topic
def steps(facts: Facts) -> Page:
    """Trends over the steps: rewards, groups without signal, lengths, KL."""
    order = range(len(facts.labels("step")))
    return _slices(facts, "step", "batch", order, trends(facts, tuple(NUMBERS)))


@topic
def domains(facts: Facts) -> Page:
    """Rewards, groups without signal, lengths and KL by domain; the least signal first."""
    return _slices(facts, "domain", "domain", by_signal(facts))


def _slices(
    facts: Facts, key: str, role: str, order: Sequence[int], *above: TextTable | None
) -> Page:
    """Return the page of several steps or domains."""
    labels = facts.labels(key)
    otherwise = f"There is one {key}, {labels[0]}." if labels else without_column(role)
    tables = [*above, _slice_table(facts, key, role, order)] if labels[1:] else []
    return page_of(facts, f"{key}s", tables, otherwise)


def trends_of(facts: Facts, key: str, measures: Sequence[str] = tuple(NUMBERS)) -> list[Trend]:
    """Return these numbers by step or domain, without those that are 0 or unknown in all."""
    return [
        Trend(_trend_names(facts, name)[0], values, share=name in SHARES)
        for name in measures
        if any(values := facts.by(key, name))
    ]


def _trend_names(facts: Facts, measure: str) -> tuple[str, str]:
    """Return the names of NUMBERS; tokens are those of rows, not of rollouts."""
    of_row = measure == "policy_tokens" and facts.rollouts is not None
    return ("tokens/row", "tokens") if of_row else NUMBERS[measure]


def trends(facts: Facts, measures: tuple[str, ...] = OVERVIEW) -> TextTable | None:
    """Return a line of blocks for each number; None of fewer than two steps."""
    labels = facts.labels("step")
    if len(labels) < 2:  # noqa: PLR2004
        return None
    if measures == OVERVIEW and any((x or 0.0) > LARGE for x in facts.by("step", "engine_k3")):
        measures = (*measures, "engine_k3")
    lines = trends_of(facts, "step", measures)
    return trend_table(facts.roles["batch"].column, labels, lines) if lines else None


def _slice_table(facts: Facts, key: str, role: str, order: Sequence[int]) -> TextTable:
    """Return a row for each step or domain, with those columns in which any has a number."""
    headings, columns = [facts.roles[role].column, f"{facts.row_noun}s"], []
    for name in NUMBERS:
        (trend, short), values = _trend_names(facts, name), facts.by(key, name)
        if any(values):
            headings.append(short or trend)
            small = name in ("kl", "engine_k3")  # with two digits, so that tables fit
            numbers = [number(x, digits=2) for x in values] if small else aligned(values)
            columns.append([*map(percent, values)] if name in SHARES else numbers)
    labels, counts = facts.labels(key), facts.by(key, "counted", "total")
    rows = [
        (str(labels[at]), f"{counts[at]:,}", *(column[at] for column in columns)) for at in order
    ]
    of_row = ", tokens of a row" if facts.rollouts is not None and "tokens" in headings else ""
    return TextTable(headings, elided(rows, MOST_ROWS), f"By {headings[0]}{of_row}")


def by_signal(facts: Facts) -> list[int]:
    """Return the places of domains, those with the most groups without signal first."""
    shares = [share or 0.0 for share in facts.by("domain", "equal_rewards")]
    shares = shares or [0.0] * len(facts.labels("domain"))
    return sorted(range(len(shares)), key=lambda place: -shares[place])


def domain_lines(facts: Facts) -> list[str]:
    """Return the domains with the most groups without signal; none if all domains are alike."""
    labels, shares = facts.labels("domain"), facts.by("domain", "equal_rewards")
    worst = [place for place in by_signal(facts) if shares and shares[place]]
    if not worst or len({*shares}) < 2:  # noqa: PLR2004
        return []
    named = ", ".join(f"{labels[at]} {percent(shares[at])}" for at in worst[:MOST_NAMED])
    rest = len(labels) - min(len(worst), MOST_NAMED)
    more = f"; {rest:,} more" if rest else ""
    return [f"no signal by {facts.roles['domain'].column}: {named}{more}"]
