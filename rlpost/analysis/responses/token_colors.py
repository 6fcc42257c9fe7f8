"""Tokens as a line of text, with colours or numbers for log-prob, KL or advantage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from rlpost.display import controls
from rlpost.display.text import counted

if TYPE_CHECKING:
    from rlpost.analysis.responses.reader import Response


COLOURS = ("logprob", "kl", "advantage")
NAMES = {"logprob": "log-prob", "kl": "KL", "advantage": "advantage"}
_OBSERVED = "dim italic"
_CURSOR = "reverse bold"


class ScaleStep(NamedTuple):
    """The colour of tokens from this number on; of the lowest step, of all numbers below."""

    above: float | None
    label: str
    colour: str


# Dark text on pastel is readable on dark and light terminals; usual values have no colour.
_CALM, _PALE, _WARM, _HOT = "#dfe8c8", "#f6e3a1", "#f3bd7e", "#e58a7b"
SCALES: dict[str, tuple[ScaleStep, ...]] = {
    "logprob": (
        ScaleStep(None, "p<0.01", _HOT),
        ScaleStep(math.log(0.01), "p<0.1", _WARM),
        ScaleStep(math.log(0.1), "p<0.5", _PALE),
        ScaleStep(math.log(0.5), "p<0.9", _CALM),
        ScaleStep(math.log(0.9), "p≥0.9", ""),
    ),
    "kl": (  # of the log-ratio's size
        ScaleStep(None, "|KL|<0.01", ""),
        ScaleStep(0.01, "<0.1", _CALM),
        ScaleStep(0.1, "<0.5", _PALE),
        ScaleStep(0.5, "<1", _WARM),
        ScaleStep(1.0, "≥1", _HOT),
    ),
    "advantage": (
        ScaleStep(None, "<-1", "#e58a7b"),
        ScaleStep(-1.0, "-1 to -0.5", "#efb7aa"),
        ScaleStep(-0.5, "-0.5 to 0", "#f6dcd5"),
        ScaleStep(0.0, "0", ""),
        ScaleStep(5e-324, "0 to 0.5", "#d8e6f3"),
        ScaleStep(0.5, "0.5 to 1", "#b0cfe8"),
        ScaleStep(1.0, "≥1", "#86b4dc"),
    ),
}


def style_of(measure: str, value: float) -> str:
    """Return the style of a token; empty for usual values and NaN."""
    if math.isnan(value):
        return ""
    at = abs(value) if measure == "kl" else value
    steps = reversed(SCALES[measure])
    return _style(next(step for step in steps if step.above is None or at >= step.above))


def _style(step: ScaleStep) -> str:
    return f"black on {step.colour}" if step.colour else ""


def legend(measure: str) -> Text:
    """Return the scale of a measure in its colours."""
    line = Text().append(f"{NAMES[measure]} ", style="dim")
    for step in SCALES[measure]:
        line.append(f" {step.label} ", style=_style(step) or "dim")
    return line.append(" observation", style=_OBSERVED)


def visible_text(text: str) -> str:
    """Return a token's text with visible line breaks, tabs, control characters and empty text."""
    return controls.printable(text.replace("\n", "⏎").replace("\t", "⇥")) or "∅"


def coloured_tokens(
    response: Response,
    measure: str | None,
    *,
    numbers: bool = False,
    first: int = 0,
    limit: int | None = None,
    cursor: int | None = None,
) -> Text:
    """Return the tokens of a response as a line.

    Args:
        response: with the columns of the measure.
        measure: one of COLOURS, or None: no colours.
        numbers: write each token's number after it, for output without colours.
        first: the first token.
        limit: the number of tokens to write; a note counts the others.
        cursor: the token to highlight.
    """
    values = response.token_measures.get(measure or "")
    nulls = response.nulls.get(measure or "")
    count = len(response.token_texts)
    last = count if limit is None else min(first + limit, count)
    separator = "" if response.has_texts and not numbers else " "
    line = Text()
    if first:
        line.append(f"{counted(first, 'token')} … ", style="dim")
    for i in range(first, last):
        text, policy = visible_text(response.token_texts[i]), bool(response.mask[i])
        value = math.nan if values is None else float(values[i])
        if numbers and values is not None:
            null = bool(nulls is not None and nulls[i])
            text += "(obs)" if not policy else "(null)" if null else f"({value:.3g})"
        style = style_of(measure, value) if policy and measure and values is not None else ""
        style = style if policy else _OBSERVED
        line.append(text, style=_CURSOR if i == cursor else style)
        line.append("\n" if response.token_texts[i].endswith("\n") else separator)
    if last < count:
        line.append(f" … {counted(count - last, 'more token')}", style="dim")
    return line
