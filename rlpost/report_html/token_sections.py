"""What the page says of single tokens: engine against trainer, and what was clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.render import number, percent
from rlpost.report_html.charts import bars
from rlpost.report_html.footers import clip_tables, clip_trends
from rlpost.report_html.model import Section, Tile
from rlpost.report_html.tallies import CLIPS

if TYPE_CHECKING:
    from rlpost.inspect.model import Bucket, Facts
    from rlpost.parquet.source import Source
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
        Tile("χ²", number(gap.chi_square), "trainer ‖ engine", f"{_MISMATCH}.chi_square"),
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
    tiles = []
    if tallies.clips is not None:
        every = int(tallies.clips.sum())
        of = "policy tokens" if tallies.masked is None else "kept policy tokens"
        for name, count in list(zip(CLIPS, tallies.clips.tolist(), strict=True))[1:]:
            share = percent(count / every) if every else percent(0.0)
            note = f"{count:,} of {every:,} {of}"
            tiles.append(Tile(f"Clipped: {name}", share, note))
    tables, charts = clip_tables(source), clip_trends(source)
    if not (tiles or tables or charts):
        return None
    return Section("clipping", "Clipping", tiles=tiles, charts=charts, tables=tables)
