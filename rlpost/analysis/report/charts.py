"""Charts as SVG: lines over steps, histograms, bars.

Colours are CSS variables of the page, so charts follow its light and dark themes. Text of the data
is shortened. A mark has its text as `aria-label`, and as the title that a pointer shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple, Self

from rlpost.display.controls import printable_line
from rlpost.display.tables import html_line
from rlpost.display.text import number, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rlpost.analysis.inspect.model import Histogram, Label

MOST_POINTS = 120
_SHOWN_POINTS = 32  # up to so many points have visible dots
_MOST_LABEL = 24
_TICKS = 4
_WIDTH, _HEIGHT = 350, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 342, 8, 152
"""Of the area of the marks."""
_LETTER = 6.4  # widest average of a label's letters


@dataclass(frozen=True)
class Chart:
    """A drawing with a title above and a note below it."""

    title: str
    svg: str
    note: str = ""


def figures(charts: Iterable[Chart]) -> str:
    """Return charts side by side as HTML."""
    parts = [
        f"<figure><figcaption><b>{html_line(chart.title)}</b></figcaption>{chart.svg}"
        f"{_note(chart.note)}</figure>"
        for chart in charts
    ]
    return f'<div class="rlpost-charts">{"".join(parts)}</div>' if parts else ""


def _note(text: str) -> str:
    return f'<p class="rlpost-note">{html_line(text)}</p>' if text else ""


def label_of(label: object) -> str:
    """Return a label of the data as short text."""
    text = printable_line(str(label))
    return text if len(text) <= _MOST_LABEL else text[: _MOST_LABEL - 1] + "…"


class _Scale(NamedTuple):
    """The vertical axis, whose ends are ticks."""

    low: float
    step: float
    ticks: int

    @classmethod
    def of(cls, values: Iterable[float], *, zero: bool = True, whole: bool = False) -> Self:
        """Return a scale of some finite values, and of 0 if wanted; whole ones have whole ticks."""
        known = [*values, *[0.0] * zero] or [0.0]
        low, high = min(known), max(known)
        span = (high - low) or abs(high) or 1.0
        size = 10.0 ** math.floor(math.log10(span / _TICKS))
        step = next(size * by for by in (1, 2, 5, 10) if size * by * _TICKS >= span)
        step = max(step, 1.0) if whole else step
        first = math.floor(low / step)
        return cls(first * step, step, max(math.ceil(high / step) - first, 1))

    def place(self, value: float) -> float:
        """Return the height of a value in the drawing."""
        return _BOTTOM - (_BOTTOM - _TOP) * (value - self.low) / (self.step * self.ticks)


def _drawn(
    scale: _Scale, text: Callable[[float], str], places: Sequence[tuple[float, str]], axis: str,
    marks: str,
) -> str:  # fmt: skip
    """Return a chart as SVG.

    Args:
        scale: of heights.
        text: returns the label of a tick.
        places: where labels of the horizontal axis are, and what they are; some are left out.
        axis: its title.
        marks: what is drawn.
    """
    parts = []
    for i in range(scale.ticks + 1):
        value = scale.low + i * scale.step
        y = f"{scale.place(value):.1f}"
        parts.append(f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}" stroke="var(--line)"/>')
        parts.append(_text(_LEFT - 6, float(y) + 4, text(value), "end"))
    room = max((len(label) for _, label in places), default=0) * _LETTER + 8
    each = math.ceil(room * len(places) / (_RIGHT - _LEFT)) or 1
    parts += [_text(x, _BOTTOM + 16, label, "middle") for x, label in places[::each]]
    parts.append(_text((_LEFT + _RIGHT) / 2, _HEIGHT - 4, axis, "middle"))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="11" role="graphics-document">'
        f"{''.join(parts)}{marks}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="var(--soft)">{escape(text)}</text>'


def _mark(tag: str, kind: str, place: str, label: str) -> str:
    named = f'role="graphics-symbol" aria-roledescription="{kind}" aria-label="{escape(label)}"'
    return f'<{tag} {named} fill="var(--accent)" {place}><title>{escape(label)}</title></{tag}>'


def _bar(scale: _Scale, left: float, right: float, value: float, label: str) -> str:
    top, bottom = sorted((scale.place(value), scale.place(0)))
    size = f'width="{max(right - left, 0.5):.1f}" height="{bottom - top:.1f}"'
    return _mark("rect", "bar", f'x="{left:.1f}" y="{top:.1f}" {size}', label)


def _count(value: float) -> str:
    """Return a count of an axis: 600k."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def histogram(title: str, bins: Histogram, unit: str, axis: str, *, zeros: int = 0) -> Chart:
    """Return a chart with a bar for each bin.

    Args:
        title: of the chart.
        bins: edges [k + 1] and counts [k].
        unit: of the counts, in the plural.
        axis: title of the horizontal axis.
        zeros: numbers that are exactly 0, which are in no bin, but in a note.
    """
    scale, (first, *_, last) = _Scale.of(bins.counts, whole=True), bins.edges
    places = [_LEFT + (_RIGHT - _LEFT) * (x - first) / (last - first) for x in bins.edges]
    texts = [number(x) for x in bins.edges]
    marks = [
        _bar(scale, left, right - 1, n, f"{low} to {high}: {n:,} {unit}")
        for (left, right), (low, high), n in zip(
            pairwise(places), pairwise(texts), bins.counts, strict=True
        )
    ]
    share = percent(zeros / (zeros + sum(bins.counts))) if zeros else ""
    note = f"without those of exactly 0: {zeros:,} {unit}, {share}" * bool(zeros)
    named = [*zip(places, texts, strict=True)]
    return Chart(title, _drawn(scale, _count, named, axis, "".join(marks)), note)


def bars(
    title: str, labels: Sequence[str], heights: Sequence[float], unit: str, axis: str
) -> Chart:
    """Return a chart with a bar for each label, in this order; whole heights are counts."""
    whole = all(isinstance(height, int) for height in heights)
    scale, width = _Scale.of(heights, whole=whole), (_RIGHT - _LEFT) / max(len(labels), 1)
    places = [(_LEFT + width * (i + 0.5), label_of(x)) for i, x in enumerate(labels)]
    texts = [f"{n:,}" if whole else number(n) for n in heights]
    marks = [
        _bar(scale, x - 0.4 * width, x + 0.4 * width, n, f"{label}: {text} {unit}")
        for (x, label), n, text in zip(places, heights, texts, strict=True)
    ]
    return Chart(title, _drawn(scale, _count if whole else _short, places, axis, "".join(marks)))


def line(
    title: str, labels: Sequence[Label], values: Sequence[float | None], axis: str, *,
    share: bool = False, from_zero: bool = False, note: str = "",
) -> Chart:  # fmt: skip
    """Return a line over steps or other ordered labels.

    With more than MOST_POINTS labels, each point is the mean of neighbours.

    Args:
        title: of the chart.
        labels: [n], whole numbers or names.
        values: [n]; None leaves a gap.
        axis: title of the horizontal axis.
        share: show values as percentages.
        from_zero: start the scale at 0; shares always do.
        note: a line below the title.
    """
    points, each = thinned(labels, values)
    known = [value for _, _, value in points if value is not None]
    scale, shown = _Scale.of(known, zero=share or from_zero), percent if share else number
    at: list[float] = [*range(len(points))]
    if all(isinstance(first, int) for first, _, _ in points):
        at = [float(first) for first, _, _ in points]
    span = (at[-1] - at[0]) or 1.0
    places = [_LEFT + 6 + (_RIGHT - _LEFT - 12) * (x - at[0]) / span for x in at]
    paths, dots = "", ""
    dot = f'r="{3 if len(known) <= _SHOWN_POINTS else 6}"'
    dot += "" if len(known) <= _SHOWN_POINTS else ' opacity="0"'
    placed = zip(places, points, strict=True)
    for is_known, part in groupby(placed, lambda x: x[1][2] is not None):
        corners = []
        for x, (first, last, value) in part if is_known else ():
            y = scale.place(value or 0.0)
            corners.append(f"{x:.1f},{y:.1f}")
            label = f"{axis} {_span(first, last)}: {shown(value)}"
            dots += _mark("circle", "point", f'cx="{x:.1f}" cy="{y:.1f}" {dot}', label)
        style = 'fill="none" stroke="var(--accent)" stroke-width="2"'
        paths += f'<polyline points="{" ".join(corners)}" {style}/>' if corners else ""
    if each > 1:
        note = f"each point is the mean of {each} neighbours" + (f"; {note}" if note else "")
    named = [(x, label_of(first)) for x, (first, _, _) in zip(places, points, strict=True)]
    ticks = (lambda x: f"{100 * x:.3g} %") if share else _short
    return Chart(title, _drawn(scale, ticks, named, axis, paths + dots), note)


def _short(value: float) -> str:
    return f"{value:.3g}"


def _span(first: Label, last: Label) -> str:
    return label_of(first) if first == last else f"{label_of(first)} to {label_of(last)}"


def thinned(
    labels: Sequence[Label], values: Sequence[float | None]
) -> tuple[list[tuple[Label, Label, float | None]], int]:
    """Return at most MOST_POINTS points (first label, last label, mean), and labels per point.

    >>> thinned(range(3), [0.5, None, 1.0])
    ([(0, 0, 0.5), (1, 1, None), (2, 2, 1.0)], 1)
    """
    each = -(-len(labels) // MOST_POINTS) or 1
    points = []
    for start in range(0, len(labels), each):
        known = [value for value in values[start : start + each] if value is not None]
        last = labels[min(start + each, len(labels)) - 1]
        mean = sum(known) / len(known) if known else None
        points.append((labels[start], last, mean))
    return points, each
