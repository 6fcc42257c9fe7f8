"""What the page says of single tokens: engine against trainer, and what was clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.render import number, percent
from rlpost.report_html.charts import bars
from rlpost.report_html.footers import clip_tables, clip_trends
from rlpost.report_html.model import Section, Tile
from rlpost.report_html.ppo import CLIP
from rlpost.report_html.tallies import CLIPS

if TYPE_CHECKING:
    from rlpost.inspect.model import Bucket, Facts
    from rlpost.parquet.source import Source
    from rlpost.report_html.ppo import PpoClips
    from rlpost.report_html.tallies import Tallies

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
