"""Example responses: which ones the page shows, and their groups and tokens as plain data.

The page shows the best, the worst, those of the most different groups, random ones, and evidence of
findings.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.responses.index import moments_by
from rlpost.analysis.responses.reader import ResponseReader
from rlpost.analysis.responses.token_colors import COLOURS, NAMES, SCALES, visible_text
from rlpost.analysis.responses.views import field_texts, group_text, heading
from rlpost.display.controls import printable as visible
from rlpost.display.controls import printable_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.analysis.inspect.model import Facts
    from rlpost.analysis.report.page import Json
    from rlpost.analysis.responses.index import Index
    from rlpost.analysis.responses.reader import Response, RolloutView


BEST, WORST, DIFFERENT, RANDOM, FOUND = (
    "highest reward", "lowest reward", "most different group", "random", "of a finding",
)  # fmt: skip
"""Highest and lowest of the whole input, not of a group."""
REASONS = (BEST, WORST, DIFFERENT, RANDOM, FOUND)
_OF_DIFFERENT = 4  # responses of each group whose rewards differ most
_EVIDENCE = 2  # responses of each finding
_MOST_FOUND = 12


class ShownResponses(NamedTuple):
    """The responses that are shown, with reasons."""

    reasons: dict[int, list[str]]
    """By row, in order of choice."""
    different: list[int]
    """Codes of the groups whose rewards differ most."""


def chosen(index: Index, facts: Facts, count: int, seed: int) -> ShownResponses:
    """Choose the responses to show, among those that count.

    Among responses with equal rewards the choice is random, and reproducible by the seed.

    Args:
        index: of the input.
        facts: with findings, whose evidence is also shown.
        count: number of the best, of the worst and of random responses; half as many groups.
        seed: of the random choice.
    """
    chance = np.random.default_rng(seed).permutation(len(index))
    chance = chance[index.counts[chance]]
    finite = chance[np.isfinite(index.reward[chance])]
    ranked = finite[np.argsort(index.reward[finite], kind="stable")].tolist()
    choices: list[tuple[list[int], str]] = []
    if len(ranked) and index.reward[ranked[0]] < index.reward[ranked[-1]]:
        choices = [(ranked[::-1][:count], BEST), (ranked[:count], WORST)]
    different, half = _most_different(index, max(1, count // 2)), _OF_DIFFERENT // 2
    for code in different:
        rows = np.sort(finite[index.group[finite] == code])
        best = rows[np.argsort(-index.reward[rows], kind="stable")].tolist()
        ends = best if len(best) <= _OF_DIFFERENT else best[:half] + best[-half:]
        choices.append((ends, DIFFERENT))
    evidence = [row for rows in evidence_rows(index, facts) for row in rows[:_EVIDENCE]]
    first = [row for row in evidence if row is not None][:_MOST_FOUND]
    choices += [(chance[:count].tolist(), RANDOM), ([*dict.fromkeys(first)], FOUND)]
    reasons: dict[int, list[str]] = {}
    for shown, reason in choices:
        for row in shown:
            reasons.setdefault(row, []).append(reason)
    return ShownResponses(reasons, different)


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


def cut(text: str, most: int) -> str:
    """Return the first characters of a text, with the number of the others."""
    return text if len(text) <= most else f"{text[:most]} … {len(text) - most:,} characters more"


def _name(text: str) -> str:
    """Return a name or a path as the page shows it."""
    return printable_line(cut(text, MOST_ID))


MOST_FIELDS = 40
MOST_ID = 200  # characters of names and paths
MOST_REWARDS = 64  # of a group, as bars
_WHOLE = 36  # responses that may all have the full limits
LIMITS = {"tokens": 800, "pieces": 8_000, "text": 4_000, "prompt": 2_000, "fields": 2_000}
"""Of one response on the page, in tokens, or characters of tokens, texts and other columns.

_WHOLE responses stay below 4 MB even if every character needs six bytes.
"""


def scales() -> Json:
    """Return the colours of token numbers: for each measure, the bound of each colour."""
    return {
        measure: {
            "name": NAMES[measure],
            "size": measure == "kl",
            "steps": [step._asdict() for step in SCALES[measure]],
        }
        for measure in COLOURS
    }


def examples(index: Index, choice: ShownResponses) -> list[Json]:
    """Return the groups of the chosen rows with these responses, best reward first.

    Raises:
        ReadWriteError: the input can no longer be read.
    """
    by_row = np.sort(np.array([*choice.reasons], np.int64))
    rows = by_row[np.argsort(-index.reward[by_row], kind="stable")].tolist()  # NaN is the last
    share = min(1.0, _WHOLE / max(len(rows), 1))
    limits = {name: int(limit * share) for name, limit in LIMITS.items()}
    reader = ResponseReader(index, COLOURS)
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
                "step": None if first.step is None else _name(str(first.step)),
                "title": _name(label),
                "prompt": visible(cut(first.prompt, limits["prompt"])),
                "line": group_text(index, members),
                "rewards": [_short(reward) for reward in rewards[places.astype(int)].tolist()],
                "responses": [
                    response_of(responses[row], choice.reasons[row], limits) for row in shown
                ],
            }
        )
    return groups


def response_of(response: Response, reasons: Sequence[str], limits: Mapping[str, int]) -> Json:
    """Return a response as plain data; a long one keeps its first and last tokens."""
    pieces = response.token_texts
    kept = _kept(pieces, limits)
    fields = [(_name(name), _name(text))
              for name, text in [*field_texts(response).items()][:MOST_FIELDS]]  # fmt: skip
    room = np.cumsum([len(name) + len(text) for name, text in fields])
    return {
        "row": response.row,
        "reasons": list(reasons),
        "location": f"{_name(response.path)}, row {response.file_row:,}",
        "line": heading(response),
        "text": visible(cut(response.text, limits["text"])),
        "words": response.has_texts,
        "pieces": [visible_text(pieces[i]) for i in kept],
        "gap": [i for i in range(1, len(kept)) if kept[i] != kept[i - 1] + 1],
        "left_out": len(pieces) - len(kept),
        "mask": "".join("1" if response.mask[i] else "0" for i in kept),
        "rollout": None if response.rollout is None else _rollout(response.rollout),
        "numbers": {
            name: [_short(value) for value in values[kept].tolist()]
            for name, values in response.token_measures.items()
        },
        "fields": fields[: int(np.searchsorted(room, limits["fields"], side="right"))],
    }


def _rollout(rollout: RolloutView) -> Json:
    """Return the rows of a rollout around a row, as a table."""
    table = rollout.table()
    headings, *rows = ([*map(str, row)] for row in (table.headings, *table.rows))
    return {
        "following": rollout.following,
        "table": {"title": _name(table.title), "headings": headings, "rows": rows,
                  "words": sorted(table.text)},
    }  # fmt: skip


def _kept(pieces: Sequence[str], limits: Mapping[str, int]) -> list[int]:
    """Return the tokens to show: all, or as many as fit, three quarters of them from the start."""
    indices, most = [*range(len(pieces))], limits["tokens"]
    if len(indices) > most:
        indices = [*indices[: most - most // 4], *indices[len(indices) - most // 4 :]]
    room = np.cumsum([len(pieces[i]) for i in indices])
    return indices[: int(np.searchsorted(room, limits["pieces"], side="right"))]


def _short(value: float) -> float | None:
    """Return four significant digits, as the page shows them; None if not finite."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
