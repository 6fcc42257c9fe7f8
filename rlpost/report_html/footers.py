"""What the metadata of enriched files says of clipping and masking.

Anybody may have written it: what does not look as `rlpost` writes it is passed over.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rlpost.render import number, percent
from rlpost.report_html.charts import line
from rlpost.report_html.model import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.parquet.source import Source
    from rlpost.report_html.model import Chart, Row

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
