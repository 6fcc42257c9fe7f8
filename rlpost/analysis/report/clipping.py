"""Clipping: counts over the tokens, what the files' metadata report, and the page's section.

The metadata may be written by any program: whatever does not look like rlpost's is ignored.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from rlpost.analysis.report.charts import line
from rlpost.analysis.report.page import Section, Tile
from rlpost.analysis.responses import columns as lists
from rlpost.display.tables import TextTable
from rlpost.display.text import number, percent
from rlpost.io.arrow import is_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.model import Label
    from rlpost.analysis.report.page import Chart
    from rlpost.io.parquet.source import RowChunk, Source
    from rlpost.recipe.roles import ColumnMap


# ---- counts over the tokens ----

CLIP = 0.2  # arXiv 1707.06347, and the default of `rlpost loss`
NEW, OLD = "log_probs", "old_log_probs"
CLIP_STATE, SAMPLE_MASK = "clip_state", "sample_mask"
CLIPS = ("not clipped", "low", "high", "dual", "selected")
"""Meanings of the values 0 to 4 of `clip_state`, which `rlpost loss` writes."""


@dataclass
class PpoClips:
    """Policy tokens without a gradient because of PPO's clip; r = exp(new - old) is the ratio."""

    tokens: int = 0
    """Tokens with finite numbers, of responses whose lists have equal lengths."""
    low: int = 0
    """r < 1 - 0.2, with a negative advantage."""
    high: int = 0
    """r > 1 + 0.2, with a positive advantage."""

    def add(
        self, ratio: NDArray[np.float64], advantage: NDArray[np.float64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Count tokens, [t] each; return which are clipped below, and above."""
        low, high = (ratio < 1 - CLIP) & (advantage < 0), (ratio > 1 + CLIP) & (advantage > 0)
        self.tokens += len(ratio)
        self.low += int(np.count_nonzero(low))
        self.high += int(np.count_nonzero(high))
        return low, high


def _ppo_columns(source: Source, columns: ColumnMap) -> tuple[str, str, str] | None:
    """Return the columns of new and old log-probs and advantages; None if one is missing.

    Also None if both log-probs are the same column.
    """
    new, old = (columns.columns.get(role) for role in (NEW, OLD))
    advantage = lists.named(source.columns).get("advantage")
    if new is None or old is None or advantage is None or new == old:
        return None
    return new, old, advantage


@dataclass(frozen=True)
class _ClippedTokens:
    """Tokens that count, [t]: whether each is clipped below or above, and the row of each."""

    rows: NDArray[np.int64]
    low: NDArray[np.bool_]
    high: NDArray[np.bool_]


def add_clips(
    counts: PpoClips,
    chunk: RowChunk,
    columns: tuple[str, str, str],
    mask: str | None,
    kept: NDArray[np.bool_],
) -> _ClippedTokens | None:
    """Count the tokens of a chunk that PPO would clip; return them, or None without numbers.

    Args:
        counts: of tokens.
        chunk: rows, [n].
        columns: from `_ppo_columns`.
        mask: the column of policy tokens; None if all tokens are.
        kept: [n] rows that count.
    """
    new, old, advantage = (chunk.table.column(name) for name in columns)
    if not (lists.holds_numbers(new.type) and lists.holds_numbers(old.type)):
        return None
    offsets, after = lists.flat(new)
    before_offsets, before = lists.flat(old)
    lengths = np.diff(offsets)
    fits = kept & (lengths == np.diff(before_offsets))
    if lists.holds_numbers(advantage.type):
        own, weight = lists.flat(advantage)
        fits &= lengths == np.diff(own)
        weight = weight[np.repeat(fits, np.diff(own))]
    elif is_number(advantage.type):
        weight = np.repeat(lists.numbers(advantage), np.where(fits, lengths, 0))
    else:
        return None
    policy = lists.mask_beside(_mask(chunk, mask), offsets)[np.repeat(fits, lengths)]
    with np.errstate(over="ignore", invalid="ignore"):  # only finite numbers count
        nats = after[np.repeat(fits, lengths)] - before[np.repeat(fits, np.diff(before_offsets))]
        ratio = np.exp(nats)
    chosen = policy & np.isfinite(nats) & np.isfinite(weight)
    rows = np.repeat(np.arange(len(lengths)), np.where(fits, lengths, 0))[chosen]
    return _ClippedTokens(rows, *counts.add(ratio[chosen], weight[chosen]))


@dataclass
class ClipCounts:
    """Over policy tokens of responses whose `sample_mask` is not 0."""

    left_out: int | None = None
    """Responses with sample mask 0; None without a sample mask."""
    states: NDArray[np.int64] | None = None
    """[5] tokens by `clip_state`; other values are ignored. None without that column."""
    ppo: PpoClips | None = None
    """What PPO would clip, if there is no `clip_state` but log-probs and advantages."""
    steps: dict[Label, NDArray[np.int64]] = field(default_factory=dict)
    """[3] by step: tokens, and those clipped below and above. Empty without steps."""

    def shares(self) -> dict[Label, tuple[float, float]]:
        """Return by step the shares of tokens that are clipped below and above."""
        counted = {label: one.tolist() for label, one in self.steps.items() if one[0]}
        return {label: (low / all_, high / all_) for label, (all_, low, high) in counted.items()}

    def add_steps(self, labels: pa.Array, tokens: _ClippedTokens) -> None:
        """Add the tokens of rows whose step is known."""
        encoded = pc.dictionary_encode(labels, null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False)[tokens.rows]
        names = encoded.dictionary.to_pylist()
        columns = (np.ones_like(tokens.low), tokens.low, tokens.high)
        counts = [np.bincount(codes, one, len(names)).astype(np.int64) for one in columns]
        for name, one in zip(names, np.stack(counts, axis=1), strict=True):
            if name is not None:
                self.steps[name] = self.steps.get(name, 0) + one


class ClipCounter:
    """Counts clipped tokens from the columns of clip states, or of log-probs and advantages."""

    def __init__(self, source: Source, columns: ColumnMap) -> None:
        self.counts = ClipCounts()
        self._states = CLIP_STATE if CLIP_STATE in source.columns else None
        self._ppo = _ppo_columns(source, columns) if self._states is None else None
        self._mask = columns.columns.get("mask")
        self._sample_mask = SAMPLE_MASK if SAMPLE_MASK in source.columns else None
        self._steps = columns.columns.get("batch")
        clips = {self._states, *(self._ppo or ())} - {None}
        beside = {self._mask, self._sample_mask, self._steps}
        read = clips | beside - {None} if clips else set()
        self.read = sorted(map(str, read))
        """The columns that chunks need; none if there is nothing to count."""

    def add(self, chunk: RowChunk) -> None:
        """Count the tokens of a chunk."""
        if not self.read:
            return
        kept, tokens = _kept(self.counts, chunk, self._sample_mask), None
        if self._states is not None:
            tokens = _add_states(self.counts, chunk, self._states, self._mask, kept)
        if self._ppo is not None:
            self.counts.ppo = self.counts.ppo or PpoClips()
            tokens = add_clips(self.counts.ppo, chunk, self._ppo, self._mask, kept)
        if tokens is not None and self._steps is not None:
            self.counts.add_steps(chunk.table.column(self._steps), tokens)


def _kept(counts: ClipCounts, chunk: RowChunk, sample_mask: str | None) -> NDArray[np.bool_]:
    """Return which responses the sample mask keeps, [n]."""
    count = chunk.table.num_rows
    if sample_mask is None or not is_number(chunk.table.column(sample_mask).type):
        return np.ones(count, np.bool_)
    kept: NDArray[np.bool_] = lists.numbers(chunk.table.column(sample_mask)) != 0
    counts.left_out = (counts.left_out or 0) + count - int(kept.sum())
    return kept


def _add_states(
    counts: ClipCounts, chunk: RowChunk, column: str, mask: str | None, kept: NDArray[np.bool_]
) -> _ClippedTokens | None:
    """Count the clip states of policy tokens of kept responses; return these tokens."""
    array = chunk.table.column(column)
    if not lists.holds_numbers(array.type):
        return None
    offsets, values = lists.flat(array)
    policy = lists.mask_beside(_mask(chunk, mask), offsets) & np.repeat(kept, np.diff(offsets))
    policy &= np.isin(values, range(len(CLIPS)))
    states = values[policy].astype(np.int64)
    before = np.zeros(len(CLIPS), np.int64) if counts.states is None else counts.states
    counts.states = before + np.bincount(states, minlength=len(CLIPS))
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[policy]
    low, high = (states == CLIPS.index(side) for side in ("low", "high"))
    return _ClippedTokens(rows, low, high)


def _mask(chunk: RowChunk, mask: str | None) -> lists.Flat | None:
    if mask is None or not lists.holds_numbers(chunk.table.column(mask).type):
        return None
    return lists.flat(chunk.table.column(mask))


# ---- metadata of the files ----

SUMMARY, LOSS = b"rlpost.summary", b"rlpost.loss_summary"
_MOST = 10
_CLIPS = {
    "reward_clip": "response rewards",
    "token_reward_clip": "token rewards",
    "advantage_clip": "advantages",
}
"""What each entry of a summary counts."""
_SIDES = ("low", "high", "dual", "any")


def value_at(data: Any, *path: str | int) -> Any:
    """Return the value at a path of keys; None if there is none."""
    for key in path:
        if isinstance(data, dict):
            data = data.get(key)
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            return None
    return data


def number_at(data: Any, *path: str | int) -> float | None:
    """Return the finite number at a path of keys; None if there is none."""
    value = value_at(data, *path)
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return value if numeric and math.isfinite(value) else None


def _distinct(source: Source, key: bytes) -> Iterator[tuple[str, Any]]:
    """Yield each different JSON value under a key, with the first file that has it."""
    seen: set[bytes] = set()
    for file, footer in zip(source.files, source.footers, strict=True):
        text = (footer.metadata or {}).get(key)
        if text is None or text in seen or len(seen) >= _MOST:
            continue
        seen.add(text)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        yield file.path.name, value


def clip_tables(source: Source) -> list[TextTable]:
    """Return what `rlpost advantages` clipped and masked, and what `rlpost loss` would clip."""
    rates, losses = _rates(source), _losses(source)
    tables = [
        TextTable(
            ("file", "quantity", "bound", "count", "share", "of"),
            rates,
            "Clipped and masked by rlpost advantages",
            text=(0, 1, 5),
        ),
        TextTable(
            ("file", "loss", "low", "high", "dual", "any", "zero gradient"),
            losses,
            "Clipped by the policy loss, share of policy tokens",
            text=(0, 1),
        ),
    ]
    return [table for table in tables if table.rows]


def _population(summary: Any, key: str) -> str:
    """Return what a share in a summary is of."""
    of = value_at(summary, key, "of")
    return of[:40] if isinstance(of, str) else ""


def _rates(source: Source) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, summary in _distinct(source, SUMMARY):
        for key, label in _CLIPS.items():
            share, count = number_at(summary, key, "fraction"), number_at(summary, key, "count")
            if share is not None and count is not None:
                bound = f"±{number(number_at(summary, key, 'bound'))}"
                of = _population(summary, key)
                rows.append((name, label, bound, f"{int(count):,}", percent(share), of))
        masked = value_at(summary, "masked")
        counts = {}
        for mask in masked if isinstance(masked, dict) else ():
            share, count = number_at(masked, mask, "rate"), number_at(masked, mask, "responses")
            if share is not None and count:
                counts[mask] = int(count), share
        if len(counts) == 2:  # noqa: PLR2004 - one mask, whose row that of all repeats
            counts.pop("all", None)
        for mask, (count, share) in counts.items():
            label = f"masked: {str(mask)[:40].replace('_', ' ')}"
            rows.append((name, label, "", f"{count:,}", percent(share), "responses"))
    return rows


def _losses(source: Source) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, summary in _distinct(source, LOSS):
        settings = value_at(summary, "settings")
        for setting in settings[:_MOST] if isinstance(settings, list) else ():
            shares = [number_at(setting, "clip", side, "fraction") for side in _SIDES]
            idle = number_at(setting, "no_gradient", "fraction")
            if shares[-1] is None:
                continue
            swept = value_at(setting, "swept")
            options = [f"{k}={v}" for k, v in swept.items()] if isinstance(swept, dict) else []
            loss = " ".join([str(value_at(setting, "options", "loss")), *options])[:120]
            cells = tuple("–" if x is None else percent(x) for x in (*shares, idle))
            rows.append((name, loss, *cells))
    return rows


def clip_trends(source: Source) -> list[Chart]:
    """Return clipped shares by step, of the first file whose metadata have them."""
    for _, summary in _distinct(source, SUMMARY):
        steps = value_at(summary, "steps")
        if not isinstance(steps, list) or len(steps) < 2:  # noqa: PLR2004
            continue
        charts = []
        for key, label in _CLIPS.items():
            of = _population(summary, key)
            shares = [number_at(step, key, "fraction") for step in steps]
            labels = [_label(step, i) for i, step in enumerate(steps)]
            if any(shares):
                title = f"{label[0].upper()}{label[1:]} clipped, share of {of}"
                charts.append(line(title, labels, shares, "step", share=True))
        if charts:
            return charts
    return []


def _label(step: Any, index: int) -> str | int:
    label = value_at(step, "step")
    return label if isinstance(label, str | int) else index


# ---- the section ----


def section(source: Source, counts: ClipCounts) -> Section | None:
    """Return what was clipped, counted and from metadata; None if neither has anything."""
    of = "policy tokens" if counts.left_out is None else "policy tokens of kept responses"
    tiles, lines = _state_tiles(counts, of), []
    if counts.states is None and counts.ppo is not None and counts.ppo.tokens:
        tiles += _ppo_tiles(counts.ppo, of)
        lines.append(
            f"Tokens that PPO with its default clip range of {CLIP:g} would clip, from the "
            "log-probs and advantages of the files. rlpost loss computes other losses and ranges, "
            "by step and position."
        )
    tables, charts = clip_tables(source), clip_trends(source)
    if not (tiles or tables or charts):
        return None
    return Section("clipping", "Clipping", lines, tiles, charts, tables)


def _state_tiles(counts: ClipCounts, of: str) -> list[Tile]:
    """Return tiles of the clip states that `rlpost loss` wrote."""
    if counts.states is None:
        return []
    total = int(counts.states.sum())
    pairs = list(zip(CLIPS, counts.states.tolist(), strict=True))[1:]
    tiles = [_clip_tile(f"Clipped: {name}", count, total, of) for name, count in pairs[:-1]]
    name, count = pairs[-1]  # by clip_cov and kl_cov alone
    return [*tiles, *([_clip_tile(f"Tokens {name}", count, total, of)] if count else [])]


def _ppo_tiles(counts: PpoClips, of: str) -> list[Tile]:
    low = f"Clipped: ratio below {1 - CLIP:g}, advantage below 0"
    high = f"Clipped: ratio above {1 + CLIP:g}, advantage above 0"
    return [
        _clip_tile(low, counts.low, counts.tokens, of),
        _clip_tile(high, counts.high, counts.tokens, of),
    ]


def _clip_tile(label: str, count: int, total: int, of: str) -> Tile:
    share = percent(count / total) if total else percent(0.0)
    return Tile(label, share, f"{count:,} of {total:,} {of}")
