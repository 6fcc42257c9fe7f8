"""What the page says of the whole input: how much there is, steps, distributions, groups.

What the metadata of enriched files says of clipping and masking.

Anybody may have written it: what does not look as `rlpost` writes it is passed over.

What the page says of single tokens: engine against trainer, and what was clipped.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rlpost.analysis.report.charts import bars, histogram, label_of, line
from rlpost.analysis.report.page import Section, Table, Tile
from rlpost.analysis.report.totals import CLIP, CLIPS
from rlpost.display.text import number, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlpost.analysis.inspect.model import Bucket, Facts, GroupFacts, Slice, Spread
    from rlpost.analysis.report.page import Chart, Row
    from rlpost.analysis.report.totals import PpoClips, Tallies
    from rlpost.io.parquet.source import Source


SUMMARY, LOSS = b"rlpost.summary", b"rlpost.loss_summary"
_MOST = 10
_CLIPS = {
    "reward_clip": ("response rewards", "responses"),
    "token_reward_clip": ("token rewards", "policy tokens"),
    "advantage_clip": ("advantages", "kept policy tokens"),
}
_SIDES = ("low", "high", "dual", "any")


def dug(found: Any, *path: str | int) -> Any:
    """What lies at a path of keys; None where there is no such thing."""
    for key in path:
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and isinstance(key, int) and key < len(found):
            found = found[key]
        else:
            return None
    return found


def figure(found: Any, *path: str | int) -> float | None:
    """A finite number at a path of keys; None where there is none."""
    value = dug(found, *path)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return value if plain and math.isfinite(value) else None


def _distinct(source: Source, key: bytes) -> Iterator[tuple[str, Any]]:
    """Each different JSON text under a key, with the name of the first file that has it."""
    seen: set[bytes] = set()
    for file, footer in zip(source.files, source.footers, strict=True):
        text = (footer.metadata or {}).get(key)
        if text is None or text in seen or len(seen) >= _MOST:
            continue
        seen.add(text)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        yield file.path.name, found


def clip_tables(source: Source) -> list[Table]:
    """What `rlpost advantages` clipped and masked, and what `rlpost loss` would clip."""
    rates, losses = _rates(source), _losses(source)
    found = [
        Table(
            "Clipped and masked by rlpost advantages",
            ("file", "what", "bound", "count", "share", "of"),
            rates,
            (0, 1, 5),
        ),
        Table(
            "Clipped by the policy loss, share of policy tokens",
            ("file", "loss", "low", "high", "dual", "any", "no gradient"),
            losses,
            (0, 1),
        ),
    ]
    return [table for table in found if table.rows]


def _rates(source: Source) -> list[Row]:
    rows: list[Row] = []
    for name, summary in _distinct(source, SUMMARY):
        for key, (label, of) in _CLIPS.items():
            share, count = figure(summary, key, "fraction"), figure(summary, key, "count")
            if share is not None and count is not None:
                bound = f"±{number(figure(summary, key, 'bound'))}"
                rows.append((name, label, bound, f"{int(count):,}", percent(share), of))
        masked = dug(summary, "masked")
        for mask in masked if isinstance(masked, dict) else ():
            share, count = figure(masked, mask, "rate"), figure(masked, mask, "responses")
            if share is not None and count is not None and (count or mask == "all"):
                label = f"masked: {str(mask)[:40].replace('_', ' ')}"
                rows.append((name, label, "", f"{int(count):,}", percent(share), "responses"))
    return rows


def _losses(source: Source) -> list[Row]:
    rows: list[Row] = []
    for name, summary in _distinct(source, LOSS):
        settings = dug(summary, "settings")
        for setting in settings[:_MOST] if isinstance(settings, list) else ():
            shares = [figure(setting, "clip", side, "fraction") for side in _SIDES]
            idle = figure(setting, "no_gradient", "fraction")
            if shares[-1] is None:
                continue
            swept = dug(setting, "swept")
            options = [f"{k}={v}" for k, v in swept.items()] if isinstance(swept, dict) else []
            loss = " ".join([str(dug(setting, "options", "loss")), *options])[:120]
            cells = tuple("–" if x is None else percent(x) for x in (*shares, idle))
            rows.append((name, loss, *cells))
    return rows


def clip_trends(source: Source) -> list[Chart]:
    """Shares that were clipped, step by step, of the first file that tells."""
    for _, summary in _distinct(source, SUMMARY):
        steps = dug(summary, "steps")
        if not isinstance(steps, list) or len(steps) < 2:  # noqa: PLR2004
            continue
        charts = []
        for key, (label, of) in _CLIPS.items():
            shares = [figure(step, key, "fraction") for step in steps]
            labels = [_label(step, place) for place, step in enumerate(steps)]
            if any(share is not None for share in shares):
                title = f"{label[0].upper()}{label[1:]} clipped, share of {of}"
                charts.append(line(title, labels, shares, "step", share=True))
        if charts:
            return charts
    return []


def _label(step: Any, place: int) -> str | int:
    label = dug(step, "step")
    return label if isinstance(label, str | int) else place


MOST_ROWS = 200
MOST_FILES = 50
_BINS = 30
_LEAST_STEPS = 2


def overview(facts: Facts) -> Section:
    """How much there is and how it went: one tile each."""
    tiles = [Tile("Responses", f"{facts.responses:,}", _stored(facts), "responses")]
    if facts.tokens:
        share = facts.tokens["policy"] / facts.tokens["all"] if facts.tokens["all"] else 0.0
        note = f"{percent(share)} of {facts.tokens['all']:,} tokens"
        tiles.append(Tile("Policy tokens", f"{facts.tokens['policy']:,}", note, "tokens.policy"))
    tiles += _group_tiles(facts)
    if facts.rewards:
        note = f"std {number(facts.rewards.spread.std)}, {_ends(facts.rewards.spread)}"
        value = number(facts.rewards.spread.mean)
        tiles.append(Tile("Mean reward", value, note, "rewards.spread.mean"))
    if facts.lengths:
        note = f"median {number(facts.lengths.quantiles.get('p50'))}, {_ends(facts.lengths.spread)}"
        value = number(facts.lengths.spread.mean)
        tiles.append(Tile("Mean length", value, f"tokens; {note}", "lengths.spread.mean"))
        cut = facts.lengths.truncated
        if cut:
            note = f"{cut.responses:,} responses, by {cut.column}"
            tiles.append(Tile("Truncated", percent(cut.share), note, "lengths.truncated.share"))
    kl = facts.token_facts.kl if facts.token_facts else None
    if kl:
        note = f"to the reference, k1; {_ends(kl)}"
        tiles.append(Tile("Mean KL", number(kl.mean), note, "token_facts.kl.mean"))
    return Section("overview", "Overview", tiles=tiles)


def _stored(facts: Facts) -> str:
    files = len(facts.input.files)
    size = facts.input.bytes / 1e6
    return f"{files:,} file{'' if files == 1 else 's'}, {size:,.1f} MB"


def _ends(spread: Spread) -> str:
    return f"{number(spread.min)} to {number(spread.max)}"


def _group_tiles(facts: Facts) -> list[Tile]:
    groups = facts.groups
    if groups is None or not groups.size:
        return []
    low, high = groups.size["min"], groups.size["max"]
    size = f"{low}" if low == high else f"{low} to {high}"
    note = f"of {size}, by {', '.join(groups.by)}"
    tiles = [Tile("Groups", f"{groups.count:,}", note, "groups.count")]
    if groups.pass_rate is None:
        return tiles
    note = f"mean of groups, reward ≥ {groups.pass_threshold:g}"
    tiles.append(Tile("Pass rate", percent(groups.pass_rate), note, "groups.pass_rate"))
    if len(groups.pass_at_k) > 1:
        place, best = max(enumerate(groups.pass_at_k), key=lambda one: (one[1].groups, one[1].k))
        key = f"groups.pass_at_k.{place}.value"
        tiles.append(Tile(f"Pass@{best.k}", percent(best.value), "unbiased", key))
    note = f"{percent(groups.zero_variance / groups.count)} of groups: no signal"
    tiles.append(Tile("Equal rewards", f"{groups.zero_variance:,}", note, "groups.zero_variance"))
    return tiles


_TRENDS: tuple[tuple[str, Callable[[Slice], float | None], bool, bool], ...] = (
    ("Mean reward", lambda one: one.reward.mean, False, False),
    ("Pass rate", lambda one: one.pass_rate, True, True),
    ("Groups with equal rewards", lambda one: one.zero_variance, True, True),
    ("Mean length, policy tokens", lambda one: one.length.mean, False, True),
    ("Truncated responses", lambda one: one.truncated, True, True),
    ("KL to the reference, k1", lambda one: one.kl, False, False),
    ("Engine against trainer, k3", lambda one: one.mismatch, False, True),
)


def steps(facts: Facts) -> Section | None:
    """Trends over steps; None where there are fewer than two."""
    if len(facts.steps) < _LEAST_STEPS:
        return None
    axis = facts.roles["batch"].column
    labels = [one.label for one in facts.steps]
    charts = []
    for title, of, share, from_zero in _TRENDS:
        values = [of(one) for one in facts.steps]
        if any(value is not None for value in values):
            charts.append(line(title, labels, values, axis, share=share, from_zero=from_zero))
    table = _slice_table("All steps", axis, facts.steps)
    return Section("steps", "Steps", charts=charts, tables=[table])


_COLUMNS = ("responses", "reward", "pass rate", "equal groups", "length", "truncated", "KL", "k3")


def _slice_table(title: str, name: str, slices: Sequence[Slice]) -> Table:
    """A row per step or domain; columns that no row has a number for are left out."""
    rows = [_slice_row(one) for one in slices[:MOST_ROWS]]
    known = [place for place, cells in enumerate(zip(*rows, strict=True)) if {*cells} != {"–"}]
    rows = [tuple(row[place] for place in known) for row in rows]
    if len(slices) > MOST_ROWS:
        rows.append((f"… {len(slices) - MOST_ROWS:,} more", *("" for _ in known[1:])))
    headings = (name, *_COLUMNS)
    return Table(title, tuple(headings[place] for place in known), rows)


def _slice_row(one: Slice) -> Row:
    return (
        label_of(one.label), f"{one.responses:,}", number(one.reward.mean), _share(one.pass_rate),
        _share(one.zero_variance), number(one.length.mean), _share(one.truncated), number(one.kl),
        number(one.mismatch),
    )  # fmt: skip


def _share(share: float | None) -> str:
    return "–" if share is None else percent(share)


def distributions(facts: Facts, tallies: Tallies) -> Section | None:
    """How rewards, lengths and advantages are spread."""
    charts = [*_reward_charts(facts)]
    lengths = facts.lengths
    if lengths and lengths.histogram:
        charts.append(
            histogram("Lengths", lengths.histogram, "responses", "policy tokens of a response")
        )
    tiles: list[Tile] = []
    lines: list[str] = []
    if tallies.advantage is not None:
        more_charts, tiles, lines = _advantage(tallies)
        charts += more_charts
    else:
        lines.append("There are no advantages in the input; rlpost advantages writes them.")
    rows = _quantile_rows(facts)
    tables = [Table("Quantiles of responses", _QUANTILES, rows)] if rows else []
    return Section("distributions", "Distributions", lines, tiles, charts, tables)


_QUANTILES = ("", "p1", "p5", "p25", "p50", "p75", "p95", "p99")


def _quantile_rows(facts: Facts) -> list[Row]:
    found = {
        "reward": facts.rewards.quantiles if facts.rewards else {},
        "policy tokens": facts.lengths.quantiles if facts.lengths else {},
        "KL": facts.token_facts.kl_quantiles if facts.token_facts else {},
    }
    return [
        (name, *(number(quantiles.get(part)) for part in _QUANTILES[1:]))
        for name, quantiles in found.items()
        if quantiles
    ]


def _reward_charts(facts: Facts) -> list[Chart]:
    rewards = facts.rewards
    if rewards is None:
        return []
    if rewards.values:
        counts = [*rewards.values.values()]
        return [bars("Rewards", [*rewards.values], counts, "responses", "reward")]
    if rewards.histogram:
        return [histogram("Rewards", rewards.histogram, "responses", "reward")]
    return []


def _advantage(tallies: Tallies) -> tuple[list[Chart], list[Tile], list[str]]:
    counted = tallies.advantage
    assert counted is not None
    spread = counted.spread
    unit = "policy tokens" if tallies.of_tokens else "responses"
    lines = []
    if tallies.masked is not None:
        lines = [
            f"Advantages leave out {tallies.masked:,} responses that the sample masks dropped."
        ]
    share = counted.zeros / spread.count if spread.count else 0.0
    tiles = [
        Tile("Mean advantage", number(spread.mean), f"of {spread.count:,} {unit}"),
        Tile("Std of advantages", number(spread.std), _ends(spread)),
        Tile("Advantages of exactly 0", percent(share), f"{counted.zeros:,} {unit}"),
    ]
    if counted.left_out:
        tiles.append(Tile("Advantages that are no number", f"{counted.left_out:,}", unit))
    found = counted.shown(_BINS)
    if found is None:
        return [], tiles, lines
    shown, outside = found
    note = f"{outside:,} {unit} lie outside" if outside else ""
    return [histogram("Advantages", shown, unit, "advantage", note)], tiles, lines


def groups(facts: Facts) -> Section | None:
    """How often groups pass, and how large they are; None without groups."""
    found = facts.groups
    if found is None or not found.size:
        return None
    charts = []
    if found.pass_rates:
        names = _rate_names(found)
        counts = [one.groups for one in found.pass_rates]
        note = f"all {found.all_pass:,}, none {found.all_fail:,} of groups of several"
        charts.append(bars("Pass rates of groups", names, counts, "groups", "pass rate", note))
    if len(found.pass_at_k) > 1:
        ks, values = [str(one.k) for one in found.pass_at_k], [o.value for o in found.pass_at_k]
        few = len({one.groups for one in found.pass_at_k}) > 1
        note = "a large k leaves out groups that are smaller" if few else "over all groups"
        charts.append(line("Pass@k", ks, values, "k", share=True, note=note))
    if len(found.sizes) > 1:
        labels, counts = [str(size) for size in found.sizes], [*found.sizes.values()]
        charts.append(bars("Sizes of groups", labels, counts, "groups", "responses of a group"))
    tables = []
    if len(facts.domains) > 1:
        name = facts.roles["domain"].column
        tables.append(_slice_table(f"By {name}", name, facts.domains))
    return Section("groups", "Groups", charts=charts, tables=tables)


def _rate_names(found: GroupFacts) -> list[str]:
    """What bins of pass rates are called: `3/8` where groups are of one size, else `<40%`."""
    assert found.size is not None
    between = found.pass_rates[1:-1]
    size = found.size["max"]
    if found.size["min"] == size == len(between) + 1:
        return ["none", *(f"{passed}/{size}" for passed in range(1, size)), "all"]
    return ["none", *(f"<{100 * one.high:.0f}%" for one in between), "all"]


def storage(facts: Facts) -> Section:
    """Which column serves a role, and the files."""
    roles = [(role, one.column, one.found_by, one.type) for role, one in facts.roles.items()]
    files = [
        (file.path, f"{file.rows:,}", f"{file.bytes / 1e6:,.2f}", _writer(file.rlpost, file.writer))
        for file in facts.input.files[:MOST_FILES]
    ]
    if len(facts.input.files) > MOST_FILES:
        files.append((f"… {len(facts.input.files) - MOST_FILES:,} more", "", "", ""))
    tables = [
        Table("Columns that are used", ("role", "column", "found by", "type"), roles, (0, 1, 2, 3)),
        Table("Files", ("file", "responses", "MB", "written by"), files, (0, 3)),
    ]
    return Section("storage", "Files and columns", tables=tables)


def _writer(made: dict[str, object] | None, writer: str) -> str:
    return f"rlpost {made['version']}, {made.get('estimator') or ''}" if made else writer


_MISMATCH = "token_facts.mismatch"


def engine(facts: Facts) -> Section | None:
    """How far the rollout engine is from the trainer; None where the input cannot tell."""
    gap = facts.token_facts.mismatch if facts.token_facts else None
    if gap is None:
        return None
    identical = gap.identical / gap.tokens
    shares = ("Effective sample size", percent(gap.ess), "of token weights old / engine")
    tiles = [
        Tile("Mean |Δ log-prob|", number(gap.mean_abs), "nats", f"{_MISMATCH}.mean_abs"),
        Tile("Largest |Δ|", number(gap.max_abs), "nats", f"{_MISMATCH}.max_abs"),
        Tile("KL, k1", number(gap.k1), "engine ‖ trainer", f"{_MISMATCH}.k1"),
        Tile("KL, k3", number(gap.k3), "engine ‖ trainer", f"{_MISMATCH}.k3"),
        Tile(
            "χ², estimated", number(gap.chi_square),
            "trainer ‖ engine, mean of w² - 1: chance can make it negative",
            f"{_MISMATCH}.chi_square",
        ),
        Tile(*shares, f"{_MISMATCH}.ess"),
        Tile(
            "Sure, but wrong", f"{gap.sure_but_wrong:,}",
            "tokens that the engine gave p ≥ 0.5, over 2 nats off", f"{_MISMATCH}.sure_but_wrong",
        ),
        Tile(
            "Identical", f"{gap.identical:,}", f"tokens, {percent(identical)}",
            f"{_MISMATCH}.identical",
        ),
    ]  # fmt: skip
    charts = []
    if len(gap.by_position) > 1:
        names = [_place(bucket) for bucket in gap.by_position]
        for title, heights in (
            ("Mean |Δ log-prob| by place in the response", [b.mean_abs for b in gap.by_position]),
            ("KL, k3, by place in the response", [b.k3 for b in gap.by_position]),
        ):
            charts.append(bars(title, names, heights, "nats", "from token"))
    return Section("engine", "Rollout engine against trainer", tiles=tiles, charts=charts)


def _place(bucket: Bucket) -> str:
    return f"{bucket.first:,}"


def clipping(source: Source, tallies: Tallies) -> Section | None:
    """What was clipped, counted and as the files' metadata say; None where nothing tells."""
    tiles, lines = _counted(tallies), []
    if tallies.clips is None and tallies.ppo is not None and tallies.ppo.tokens:
        tiles += _ppo(tallies.ppo, _of(tallies))
        lines.append(
            f"What PPO would clip with its default range, {CLIP:g}, of these log-probs and "
            "advantages; rlpost loss says it for other losses and ranges, by step and place."
        )
    tables, charts = clip_tables(source), clip_trends(source)
    if not (tiles or tables or charts):
        return None
    return Section("clipping", "Clipping", lines, tiles, charts, tables)


def _of(tallies: Tallies) -> str:
    return "policy tokens" if tallies.masked is None else "kept policy tokens"


def _counted(tallies: Tallies) -> list[Tile]:
    """What `rlpost loss` wrote of each token."""
    if tallies.clips is None:
        return []
    every = int(tallies.clips.sum())
    pairs = list(zip(CLIPS, tallies.clips.tolist(), strict=True))[1:]
    return [_clip_tile(f"Clipped: {name}", count, every, _of(tallies)) for name, count in pairs]


def _ppo(found: PpoClips, of: str) -> list[Tile]:
    low = f"Clipped: ratio below {1 - CLIP:g}, advantage below 0"
    high = f"Clipped: ratio above {1 + CLIP:g}, advantage above 0"
    every = found.tokens
    return [_clip_tile(low, found.low, every, of), _clip_tile(high, found.high, every, of)]


def _clip_tile(label: str, count: int, every: int, of: str) -> Tile:
    share = percent(count / every) if every else percent(0.0)
    return Tile(label, share, f"{count:,} of {every:,} {of}")
