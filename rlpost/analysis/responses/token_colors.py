"""Tokens as a strip of text, coloured or with numbers, by log-prob, KL or advantage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from rlpost.io import text as controls

if TYPE_CHECKING:
    from rlpost.analysis.responses.rows import Response


COLOURS = ("logprob", "kl", "advantage")
NAMES = {"logprob": "log-prob", "kl": "KL", "advantage": "advantage"}
_OBSERVED = "dim italic"
_CURSOR = "reverse bold"


class Step(NamedTuple):
    """From this number on, tokens look like this."""

    above: float
    label: str
    style: str


# Dark text on pastel reads on dark and on light terminals; what is usual has no colour at all.
_CALM, _PALE, _WARM, _HOT = ("black on " + c for c in ("#dfe8c8", "#f6e3a1", "#f3bd7e", "#e58a7b"))
_UP = tuple("black on " + colour for colour in ("#d8e6f3", "#b0cfe8", "#86b4dc"))
_DOWN = tuple("black on " + colour for colour in ("#f6dcd5", "#efb7aa", "#e58a7b"))
SCALES: dict[str, tuple[Step, ...]] = {
    "logprob": (
        Step(-math.inf, "p<0.01", _HOT),
        Step(math.log(0.01), "p<0.1", _WARM),
        Step(math.log(0.1), "p<0.5", _PALE),
        Step(math.log(0.5), "p<0.9", _CALM),
        Step(math.log(0.9), "more", ""),
    ),
    "kl": (  # of the log-ratio's size
        Step(0.0, "|KL|<0.01", ""),
        Step(0.01, "<0.1", _CALM),
        Step(0.1, "<0.5", _PALE),
        Step(0.5, "<1", _WARM),
        Step(1.0, "1 up", _HOT),
    ),
    "advantage": (
        Step(-math.inf, "<-1", _DOWN[2]),
        Step(-1.0, "-1", _DOWN[1]),
        Step(-0.5, "-0.5", _DOWN[0]),
        Step(0.0, "0", ""),
        Step(5e-324, "to 0.5", _UP[0]),
        Step(0.5, "0.5", _UP[1]),
        Step(1.0, "1 up", _UP[2]),
    ),
}


def style_of(measure: str, value: float) -> str:
    """The style of a token; none for what is usual, and for NaN."""
    if math.isnan(value):
        return ""
    at = abs(value) if measure == "kl" else value
    return next(step.style for step in reversed(SCALES[measure]) if at >= step.above)


def legend(measure: str) -> Text:
    """The scale of a measure, in its own colours."""
    line = Text().append(f"{NAMES[measure]} ", style="dim")
    for step in SCALES[measure]:
        line.append(f" {step.label} ", style=step.style or "dim")
    return line.append(" observed", style=_OBSERVED)


def shown(piece: str) -> str:
    """A token's text with line breaks, tabs, other control characters and nothing made visible."""
    return controls.printable(piece.replace("\n", "⏎").replace("\t", "⇥")) or "∅"


def strip(
    response: Response,
    measure: str | None,
    *,
    numbers: bool = False,
    first: int = 0,
    limit: int | None = None,
    cursor: int | None = None,
) -> Text:
    """The tokens of a response.

    Args:
        response: with the measure's columns read.
        measure: one of COLOURS, or None: plain.
        numbers: write each token's number behind it; for streams without colour.
        first: the token to begin with.
        limit: stop after this many tokens, and say how many more there are.
        cursor: the token that is marked.
    """
    values = response.colours.get(measure or "")
    count = len(response.pieces)
    last = count if limit is None else min(first + limit, count)
    apart = "" if response.words and not numbers else " "
    line = Text()
    if first:
        line.append(f"{first:,} tokens … ", style="dim")
    for place in range(first, last):
        piece, own = shown(response.pieces[place]), bool(response.mask[place])
        value = math.nan if values is None else float(values[place])
        if numbers and values is not None:
            piece += f"({value:.3g})" if own else "(obs)"
        style = style_of(measure, value) if own and measure and values is not None else ""
        line.append(piece, style=_CURSOR if place == cursor else style if own else _OBSERVED)
        line.append("\n" if response.pieces[place].endswith("\n") else apart)
    if last < count:
        line.append(f" … {count - last:,} tokens more", style="dim")
    return line
