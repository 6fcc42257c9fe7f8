"""The shown responses as plain data: groups, their rewards, and token by token what is known.

Which responses the page shows: the best, the worst, the most different, some at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.report.page import cut, plain
from rlpost.analysis.responses.rows import Reader
from rlpost.analysis.responses.token_colors import COLOURS, NAMES, SCALES, shown
from rlpost.display.text import number
from rlpost.io.text import printable as visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.model import Facts
    from rlpost.analysis.report.page import Json
    from rlpost.analysis.responses.index import Index
    from rlpost.analysis.responses.rows import Response


BEST, WORST, DIFFERENT, RANDOM, FOUND = (
    "highest reward", "lowest reward", "most different group", "random", "of a finding",
)  # fmt: skip
"""Highest and lowest are of the whole input, not of a response's group."""
WHYS = (BEST, WORST, DIFFERENT, RANDOM, FOUND)
_OF_DIFFERENT = 4  # shown responses of a group whose rewards differ most
_EVIDENCE = 2  # shown rows of each finding
_MOST_FOUND = 12


@dataclass
class Choice:
    """Rows that are shown and why, and the groups that they are of."""

    whys: dict[int, list[str]] = field(default_factory=dict)
    """By row, in the order of choosing."""
    different: list[int] = field(default_factory=list)
    """Codes of the groups whose rewards differ most."""

    def add(self, rows: NDArray[np.int64] | list[int], why: str) -> None:
        """Show these rows."""
        for row in rows:
            reasons = self.whys.setdefault(int(row), [])
            if why not in reasons:
                reasons.append(why)


class Groups:
    """The rows of each group, in the input's order; groups by code, as in the index."""

    def __init__(self, index: Index) -> None:
        self._order = np.argsort(index.group, kind="stable")
        self.count = int(index.group.max(initial=-1)) + 1
        sizes = np.bincount(index.group, minlength=self.count)
        self._starts = np.concatenate([[0], sizes.cumsum()])

    def rows(self, code: int) -> NDArray[np.int64]:
        """The rows of a group."""
        return self._order[self._starts[code] : self._starts[code + 1]]


def chosen(index: Index, groups: Groups, facts: Facts, count: int, seed: int) -> Choice:
    """The rows to show.

    Among responses of one reward, chance decides; it is the same for the same seed and input.

    Args:
        index: of the input.
        groups: its groups.
        facts: whose findings' evidence is shown too.
        count: responses each of the best, worst and random ones; half as many groups.
        seed: of the chance.
    """
    choice = Choice()
    chance = np.random.default_rng(seed).permutation(len(index))
    known = chance[np.isfinite(index.reward[chance])]
    ranked = known[np.argsort(index.reward[known], kind="stable")]
    if len(ranked) and index.reward[ranked[0]] < index.reward[ranked[-1]]:
        choice.add(ranked[::-1][:count], BEST)
        choice.add(ranked[:count], WORST)
    choice.different = _most_different(index, groups, max(1, count // 2))
    for code in choice.different:
        rows = groups.rows(code)
        rows = rows[np.isfinite(index.reward[rows])]
        rows = rows[np.argsort(-index.reward[rows], kind="stable")]
        half = _OF_DIFFERENT // 2
        choice.add(rows if len(rows) <= _OF_DIFFERENT else [*rows[:half], *rows[-half:]], DIFFERENT)
    choice.add(chance[:count], RANDOM)
    choice.add(_evidence(index, facts), FOUND)
    return choice


def _most_different(index: Index, groups: Groups, count: int) -> list[int]:
    """The groups whose rewards deviate most from their mean, the most first."""
    valid = np.isfinite(index.reward)
    codes, rewards = index.group[valid], index.reward[valid]
    sizes = np.bincount(codes, minlength=groups.count)
    several = np.maximum(sizes, 1)
    means = np.bincount(codes, rewards, groups.count) / several
    squares = np.bincount(codes, (rewards - means[codes]) ** 2, groups.count) / several
    order = np.lexsort((np.arange(groups.count), -sizes, -squares))[:count]
    return [int(code) for code in order if squares[code] > 0]


def evidence_rows(index: Index, facts: Facts) -> list[list[int | None]]:
    """The row of each evidence of each finding, counted over all files; None where it has none."""
    firsts = {
        str(file.path): first
        for file, first in zip(index.source.files, index.source.first_rows, strict=False)
    }
    return [
        [
            None if one.row is None or one.file not in firsts else firsts[one.file] + one.row
            for one in finding.evidence
        ]
        for finding in facts.findings
    ]


def _evidence(index: Index, facts: Facts) -> list[int]:
    shown = [
        row for rows in evidence_rows(index, facts) for row in rows[:_EVIDENCE] if row is not None
    ]
    return shown[:_MOST_FOUND]


MOST_FIELDS = 40
MOST_ID = 200  # characters of names and places
MOST_REWARDS = 64  # of a group, as bars
_WHOLE = 36  # responses that may all be as long as a Room allows


@dataclass(frozen=True)
class Room:
    """Bounds of what one response may bring to the page, whatever the input holds.

    The defaults keep _WHOLE responses below 4 MB even where every character takes six bytes.
    """

    tokens: int = 800
    pieces: int = 8_000
    """Characters of all tokens."""
    text: int = 4_000
    prompt: int = 2_000
    fields: int = 2_000
    """Characters of all other columns."""

    @classmethod
    def for_rows(cls, rows: int) -> Room:
        """For each of some responses; of many, each has less."""
        share = min(1.0, _WHOLE / max(rows, 1))
        return cls(*(int(getattr(cls, one.name) * share) for one in fields(cls)))


def scales() -> Json:
    """How numbers of tokens are coloured: for each measure, from which number on which colour."""
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


def examples(index: Index, groups: Groups, choice: Choice, pass_threshold: float) -> list[Json]:
    """The groups of the chosen rows, each with its chosen responses, best reward first.

    Raises:
        ReadWriteError: the input can no longer be read.
    """
    rows = list(choice.whys)
    found = dict(zip(rows, Reader(index, COLOURS).read(rows), strict=True))
    room = Room.for_rows(len(rows))
    codes = dict.fromkeys([*choice.different, *(int(index.group[row]) for row in rows)])
    shown_groups = []
    for code in codes:
        own = [row for row in rows if index.group[row] == code]
        own.sort(key=lambda row: (-_sortable(float(index.reward[row])), row))
        if own:
            responses = [response_of(found[row], choice.whys[row], room) for row in own]
            facts = group_facts(index, groups.rows(code), pass_threshold, len(own))
            first = found[own[0]]
            shown_groups.append(
                {
                    "step": None if first.step is None else plain(cut(str(first.step), MOST_ID)),
                    "title": _title(first),
                    "prompt": visible(cut(first.prompt, room.prompt)),
                    **facts,
                    "responses": responses,
                }
            )
    return shown_groups


def _sortable(reward: float) -> float:
    return -math.inf if math.isnan(reward) else reward


def _title(one: Response) -> str:
    return f"row {one.row:,}" if one.prompt_id is None else plain(cut(str(one.prompt_id), MOST_ID))


def group_facts(
    index: Index, rows: NDArray[np.int64], pass_threshold: float, shown_rows: int
) -> Json:
    """What is said of a group as a whole: `said`, and its `rewards`, the highest first."""
    every = index.reward[rows]
    rewards = np.sort(every[np.isfinite(every)])[::-1]
    parts = [f"{len(rows):,} response{'' if len(rows) == 1 else 's'}"]
    if shown_rows < len(rows):
        parts = [f"{shown_rows:,} of {parts[0]} shown"]
    if len(rewards):
        parts.append(f"mean reward {number(float(rewards.mean()))}")
        if len(rewards) > 1:
            parts.append(f"std {number(float(rewards.std(ddof=1)))}")
        parts.append(f"{int((rewards >= pass_threshold).sum()):,} pass")
    places = np.linspace(0, len(rewards) - 1, min(len(rewards), MOST_REWARDS)).round().astype(int)
    return {"said": " · ".join(parts), "rewards": [_short(x) for x in rewards[places].tolist()]}


def response_of(one: Response, whys: Sequence[str], room: Room) -> Json:
    """One response as plain data; long ones keep their first and last tokens."""
    kept = _kept(one.pieces, room)
    left_out = len(one.pieces) - len(kept)
    facts = [("reward", number(None if math.isnan(one.reward) else one.reward))]
    facts.append(("policy tokens", f"{one.length:,}"))
    facts += [
        (NAMES[name], number(value) if math.isfinite(value) else "–")
        for name, value in one.measured.items()
    ]
    return {
        "row": one.row,
        "why": list(whys),
        "place": f"{plain(cut(one.path, MOST_ID))}, row {one.file_row:,}",
        "facts": facts,
        "text": visible(cut(one.text, room.text)),
        "words": one.words,
        "pieces": [shown(one.pieces[place]) for place in kept],
        "gap": [place for place in range(1, len(kept)) if kept[place] != kept[place - 1] + 1],
        "left_out": left_out,
        "mask": "".join("1" if one.mask[place] else "0" for place in kept),
        "numbers": {
            name: [_short(value) for value in values[kept].tolist()]
            for name, values in one.colours.items()
        },
        "fields": _fields(one, room),
    }


def _kept(pieces: Sequence[str], room: Room) -> list[int]:
    """Places of the tokens that are shown: all, or three quarters of the first, then the last."""
    places = list(range(len(pieces)))
    if len(places) > room.tokens:
        last = room.tokens // 4
        places = [*places[: room.tokens - last], *places[len(places) - last :]]
    left, kept = room.pieces, []
    for place in places:
        left -= len(pieces[place])
        if left < 0:
            break
        kept.append(place)
    return kept


def _fields(one: Response, room: Room) -> list[tuple[str, str]]:
    """The row's other columns, as many as there is room for."""
    left, found = room.fields, []
    for name, value in list(one.fields.items())[:MOST_FIELDS]:
        pair = plain(cut(str(name), MOST_ID)), plain(cut(_field(value), MOST_ID))
        left -= sum(map(len, pair))
        if left < 0:
            break
        found.append(pair)
    return found


def _field(value: Any) -> str:
    return number(value) if isinstance(value, float) and math.isfinite(value) else str(value)


def _short(value: float) -> float | None:
    """Four significant digits are what the page shows; what is not finite is null."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
