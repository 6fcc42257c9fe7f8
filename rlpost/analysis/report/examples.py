"""Example responses: which ones the page shows, and their groups and tokens as plain data.

The page shows the best, the worst, those of the most different groups, random ones, and evidence of
findings.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.report.charts import plain
from rlpost.analysis.responses.index import moments_by
from rlpost.analysis.responses.reader import ResponseReader
from rlpost.analysis.responses.token_colors import COLOURS, NAMES, SCALES, visible_text
from rlpost.analysis.responses.views import group_text, heading
from rlpost.display.controls import printable as visible
from rlpost.display.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.model import Facts
    from rlpost.analysis.report.page import Json
    from rlpost.analysis.responses.index import Index
    from rlpost.analysis.responses.reader import Response
    from rlpost.analysis.responses.rollouts import RolloutView


BEST, WORST, DIFFERENT, RANDOM, FOUND = (
    "highest reward", "lowest reward", "most different group", "random", "of a finding",
)  # fmt: skip
"""Highest and lowest of the whole input, not of a group."""
REASONS = (BEST, WORST, DIFFERENT, RANDOM, FOUND)
_OF_DIFFERENT = 4  # responses of each group whose rewards differ most
_EVIDENCE = 2  # responses of each finding
_MOST_FOUND = 12


@dataclass
class ShownResponses:
    """The responses that are shown, with reasons."""

    reasons: dict[int, list[str]] = field(default_factory=dict)
    """By row, in order of choice."""
    different: list[int] = field(default_factory=list)
    """Codes of the groups whose rewards differ most."""

    def add(self, rows: NDArray[np.int64] | list[int], reason: str) -> None:
        """Choose these rows."""
        for row in rows:
            reasons = self.reasons.setdefault(int(row), [])
            if reason not in reasons:
                reasons.append(reason)


def chosen(index: Index, facts: Facts, count: int, seed: int) -> ShownResponses:
    """Choose the responses to show.

    Among responses with equal rewards the choice is random, and reproducible by the seed.

    Args:
        index: of the input.
        facts: with findings, whose evidence is also shown.
        count: number of the best, of the worst and of random responses; half as many groups.
        seed: of the random choice.
    """
    choice = ShownResponses()
    chance = np.random.default_rng(seed).permutation(len(index))
    chance = chance[index.counts[chance]]
    finite = chance[np.isfinite(index.reward[chance])]
    ranked = finite[np.argsort(index.reward[finite], kind="stable")]
    if len(ranked) and index.reward[ranked[0]] < index.reward[ranked[-1]]:
        choice.add(ranked[::-1][:count], BEST)
        choice.add(ranked[:count], WORST)
    choice.different = _most_different(index, max(1, count // 2))
    for code in choice.different:
        rows = np.flatnonzero((index.group == code) & index.counts & np.isfinite(index.reward))
        rows = rows[np.argsort(-index.reward[rows], kind="stable")]
        half = _OF_DIFFERENT // 2
        choice.add(rows if len(rows) <= _OF_DIFFERENT else [*rows[:half], *rows[-half:]], DIFFERENT)
    choice.add(chance[:count], RANDOM)
    choice.add(_evidence(index, facts), FOUND)
    return choice


def _most_different(index: Index, count: int) -> list[int]:
    """Return the groups with the largest reward variance, the largest first."""
    units, groups = index.table.units["group"], int(index.group.max(initial=-1)) + 1
    sizes, _, std = moments_by(index.rewards, units, groups)
    variances = std**2 * (sizes - 1) / np.maximum(sizes, 1)
    order = np.lexsort((np.arange(groups), -sizes, -variances))[:count]
    return [int(code) for code in order if variances[code] > 0]


def evidence_rows(index: Index, facts: Facts) -> list[list[int | None]]:
    """Return the row of each evidence of each finding, over all files; None if it has no row."""
    firsts = {
        str(file.path): first
        for file, first in zip(index.source.files, index.source.first_rows, strict=False)
    }
    return [
        [
            None if row is None or file not in firsts else firsts[file] + row
            for file, row in finding.rows
        ]
        for finding in facts.findings
    ]


def _evidence(index: Index, facts: Facts) -> list[int]:
    shown = [
        row for rows in evidence_rows(index, facts) for row in rows[:_EVIDENCE] if row is not None
    ]
    return shown[:_MOST_FOUND]


def cut(text: str, most: int) -> str:
    """Return the first characters of a text, with the number of the others."""
    return text if len(text) <= most else f"{text[:most]} … {len(text) - most:,} characters more"


MOST_FIELDS = 40
MOST_ID = 200  # characters of names and paths
MOST_REWARDS = 64  # of a group, as bars
_WHOLE = 36  # responses that may all have the full limits


@dataclass(frozen=True)
class Limits:
    """Limits of one response on the page, in characters and tokens.

    The defaults keep _WHOLE responses below 4 MB even if every character needs six bytes.
    """

    tokens: int = 800
    pieces: int = 8_000
    """Characters of all tokens."""
    text: int = 4_000
    prompt: int = 2_000
    fields: int = 2_000
    """Characters of all other columns."""

    @classmethod
    def for_rows(cls, rows: int) -> Limits:
        """Return the limits for each of so many responses; more responses have lower limits."""
        share = min(1.0, _WHOLE / max(rows, 1))
        return cls(*(int(limit * share) for limit in astuple(cls())))


def scales() -> Json:
    """Return the colours of token numbers: for each measure, the bound of each colour."""
    return {
        measure: {
            "name": NAMES[measure],
            "size": measure == "kl",
            "steps": [
                {
                    "above": None if step.above == -math.inf else step.above,
                    "label": step.label,
                    "colour": step.style.rpartition(" ")[2],
                }
                for step in SCALES[measure]
            ],
        }
        for measure in COLOURS
    }


def examples(index: Index, choice: ShownResponses) -> list[Json]:
    """Return the groups of the chosen rows with these responses, best reward first.

    Raises:
        ReadWriteError: the input can no longer be read.
    """
    rows = sorted(choice.reasons, key=lambda row: (-_sortable(float(index.reward[row])), row))
    reader, limits = ResponseReader(index, COLOURS), Limits.for_rows(len(rows))
    responses = dict(zip(rows, reader.read(rows), strict=True))
    groups = []
    for code in dict.fromkeys(
        [*choice.different, *(int(index.group[row]) for row in choice.reasons)]
    ):
        shown = [row for row in rows if index.group[row] == code]
        if not shown:
            continue
        first, members = responses[shown[0]], np.flatnonzero(index.group == code)
        rewards = index.rewards[index.counted(members)]
        rewards = np.sort(rewards[~np.isnan(rewards)])[::-1]
        places = np.linspace(0, len(rewards) - 1, min(len(rewards), MOST_REWARDS)).round()
        label = f"row {first.row:,}" if first.prompt_id is None else str(first.prompt_id)
        groups.append(
            {
                "step": None if first.step is None else plain(cut(str(first.step), MOST_ID)),
                "title": plain(cut(label, MOST_ID)),
                "prompt": visible(cut(first.prompt, limits.prompt)),
                "line": group_text(index, members),
                "rewards": [_short(reward) for reward in rewards[places.astype(int)].tolist()],
                "responses": [
                    response_of(reader.with_rollout(responses[row]), choice.reasons[row], limits)
                    for row in shown
                ],
            }
        )
    return groups


def _sortable(reward: float) -> float:
    return -math.inf if math.isnan(reward) else reward


def response_of(response: Response, reasons: Sequence[str], limits: Limits) -> Json:
    """Return a response as plain data; a long one keeps its first and last tokens."""
    kept, shared = _kept(response.token_texts, limits), response.shared
    return {
        "row": response.row,
        "reasons": list(reasons),
        "location": f"{plain(cut(response.path, MOST_ID))}, row {response.file_row:,}",
        "line": heading(response),
        "text": visible(cut(response.text, limits.text)),
        "words": response.has_texts,
        "pieces": [visible_text(response.token_texts[i]) for i in kept],
        "gap": [i for i in range(1, len(kept)) if kept[i] != kept[i - 1] + 1],
        "left_out": len(response.token_texts) - len(kept),
        "mask": "".join("1" if response.mask[i] else "0" for i in kept),
        "shared": [int(shared[i]) for i in kept] if shared is not None and response.shares else [],
        "rollout": None if response.rollout is None else _rollout(response.rollout),
        "numbers": {
            name: [_short(value) for value in values[kept].tolist()]
            for name, values in response.token_measures.items()
        },
        "fields": _fields(response, limits),
    }


def _rollout(rollout: RolloutView) -> Json:
    """Return the rows of a rollout around a row, as a table."""
    table = rollout.table()
    headings, *rows = ([*map(str, row)] for row in (table.headings, *table.rows))
    return {
        "shares": rollout.shares,
        "following": rollout.following,
        "table": {"title": plain(cut(table.title, MOST_ID)), "headings": headings, "rows": rows,
                  "words": sorted(table.text)},
    }  # fmt: skip


def _kept(pieces: Sequence[str], limits: Limits) -> list[int]:
    """Return the tokens to show: all, or as many as fit, three quarters of them from the start."""
    indices = list(range(len(pieces)))
    if len(indices) > limits.tokens:
        last = limits.tokens // 4
        indices = [*indices[: limits.tokens - last], *indices[len(indices) - last :]]
    left, kept = limits.pieces, []
    for i in indices:
        left -= len(pieces[i])
        if left < 0:
            break
        kept.append(i)
    return kept


def _fields(response: Response, limits: Limits) -> list[tuple[str, str]]:
    """Return the other columns of the row, within the limits."""
    left, pairs = limits.fields, []
    for name, value in list(response.fields.items())[:MOST_FIELDS]:
        pair = plain(cut(str(name), MOST_ID)), plain(cut(_field(value), MOST_ID))
        left -= sum(map(len, pair))
        if left < 0:
            break
        pairs.append(pair)
    return pairs


def _field(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return number(value)
    return "null" if value is None else str(value)


def _short(value: float) -> float | None:
    """Return four significant digits, as the page shows them; None if not finite."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
