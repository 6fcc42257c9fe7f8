"""The shown responses as plain data: groups, their rewards, and token by token what is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.browse.rows import Reader
from rlpost.controls import shown as visible
from rlpost.render import number
from rlpost.render_strip import COLOURS, NAMES, SCALES, shown
from rlpost.report_html.text import cut, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.browse.index import Index
    from rlpost.browse.rows import Response
    from rlpost.report_html.choice import Choice, Groups
    from rlpost.report_html.model import Json

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
