"""Charts as Vega-Lite specifications and as SVG: lines over steps, histograms, bars.

Colours are CSS variables of the page, so charts follow its light and dark themes. Text of the data
is shortened.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rlpost.display.controls import printable_line
from rlpost.display.tables import html_line
from rlpost.display.text import number, percent
from rlpost.errors import NotEnoughMemoryError
from rlpost.io.memory_limit import free_addresses

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlpost.analysis.inspect.model import Histogram, Label

Json = dict[str, Any]

WIDTH, HEIGHT = 350, 190
MOST_POINTS = 120
_SHOWN_POINTS = 32  # up to so many points have visible dots
_MOST_LABEL = 24
_TICKS = 4
_COUNTS = "format(datum.value, '~s')"  # 600k, and a plain 0
_SHARES = "format(100 * datum.value, '.1~f') + ' %'"
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_SOFT, _LINE, _ACCENT = "var(--soft)", "var(--line)", "var(--accent)"
CONFIG: Json = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _SOFT, "titleColor": _SOFT, "gridColor": _LINE, "domainColor": _LINE,
        "tickColor": _LINE, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal",
        "titlePadding": 6, "labelOverlap": True, "labelSeparation": 6,
    },
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False, "tickCount": _TICKS, "labelPadding": 6},
}  # fmt: skip


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite specification."""

    title: str
    spec: Json
    note: str = ""


def figures(charts: Iterable[Chart]) -> str:
    """Return charts side by side as HTML; marks have their text as `aria-label`."""
    parts = [
        f"<figure><figcaption><b>{html_line(chart.title)}</b></figcaption>{drawn(chart.spec)}"
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


def histogram(title: str, bins: Histogram, unit: str, axis: str, *, zeros: int = 0) -> Chart:
    """Return a chart with a bar for each bin.

    Args:
        title: of the chart.
        bins: edges [k + 1] and counts [k].
        unit: of the counts, in the plural.
        axis: title of the horizontal axis.
        zeros: numbers that are exactly 0, which are in no bin, but in a note.
    """
    values = [
        {"low": x, "high": y, "n": n, "label": f"{number(x)} to {number(y)}: {n:,} {unit}"}
        for (x, y), n in zip(pairwise(bins.edges), bins.counts, strict=True)
    ]
    x = _field("low", "quantitative", axis, bin="binned", axis={"tickCount": _TICKS + 2})
    share = percent(zeros / (zeros + sum(bins.counts))) if zeros else ""
    note = f"without those of exactly 0: {zeros:,} {unit}, {share}" * bool(zeros)
    return _bars(title, values, note, _COUNTS, x=x, x2={"field": "high"})


def bars(
    title: str, labels: Sequence[str], heights: Sequence[float], unit: str, axis: str
) -> Chart:
    """Return a chart with a bar for each label, in this order; whole heights are counts."""
    whole = all(isinstance(height, int) for height in heights)
    texts = [f"{n:,}" if whole else number(n) for n in heights]
    values = [
        {"x": x, "n": n, "label": f"{x}: {text} {unit}"}
        for x, n, text in zip(map(label_of, labels), heights, texts, strict=True)
    ]
    x = _field("x", "ordinal", axis, sort=None, axis={"labelAngle": 0})
    return _bars(title, values, "", _COUNTS if whole else None, x=x)


def _bars(title: str, values: list[Json], note: str, labels: str | None, **channels: Json) -> Chart:
    """Return bars as high as `n`; `labels` is the expression of counts on the axis."""
    scale = {"format": ".3~g"} if labels is None else {"labelExpr": labels, "tickMinStep": 1}
    return Chart(
        title,
        _whole(
            data={"values": values},
            mark={"type": "bar", "color": _ACCENT, "binSpacing": 1},
            encoding=channels | {"y": _field("n", "quantitative", axis=scale)} | _TEXT,
        ),
        note,
    )


def _field(name: str, kind: str, title: str | None = None, **options: Any) -> Json:
    """Return the channel of a field of the data."""
    return {"field": name, "type": kind, "title": title, **options}


_TEXT: Json = {"description": {"field": "label", "type": "nominal"}}


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
    shown = percent if share else number
    numeric = all(isinstance(first, int) for first, _, _ in points)
    data = [
        {
            "x": first if numeric else label_of(first),
            "y": value,
            "label": f"{axis} {_span(first, last)}: {shown(value)}",
        }
        for first, last, value in points
        if value is not None
    ]
    if each > 1:
        note = f"each point is the mean of {each} neighbours" + (f"; {note}" if note else "")
    flat = (share or from_zero) and not any(value for _, _, value in points)
    x = _field("x", "ordinal", axis, sort=None, axis={"labelAngle": 0})
    if numeric:
        ticks = {"labelAngle": 0, "format": "d", "tickMinStep": 1, "labelFlush": False}
        scale = {"zero": False, "nice": False}
        x = _field("x", "quantitative", axis, sort=None, scale=scale, axis=ticks)
    y = _field(
        "y",
        "quantitative",
        scale={"zero": share or from_zero, **({"domain": [0, 1]} if flat else {})},
        axis={"labelExpr": _SHARES} if share else {"format": ".3~g"},
    )
    dots = len(data) <= _SHOWN_POINTS
    stroke = {"type": "line", "color": _ACCENT, "strokeWidth": 2}
    dot = {"type": "point", "filled": True, "fill": _ACCENT, "stroke": None,
           "size": 42 if dots else 120, "opacity": 1.0 if dots else 0}  # fmt: skip
    layer = [
        {"mark": stroke, "encoding": {"x": x, "y": y}},
        {"mark": dot, "encoding": {"x": x, "y": y, **_TEXT}},
    ]
    return Chart(title, _whole(data={"values": data}, layer=layer), note)


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


def _whole(**parts: Any) -> Json:
    """Return the specification of a chart in the page's size and colours."""
    size = {"width": WIDTH, "height": HEIGHT, "autosize": {"type": "fit", "contains": "padding"}}
    return {"$schema": _SCHEMA, "config": CONFIG, **size, **parts}


def check_engine() -> None:
    """Raise NotEnoughMemoryError under `ulimit -v`: the engine ends the process there."""
    if free_addresses() < _CAGE:
        raise NotEnoughMemoryError(
            "the charts of a report are drawn by an engine that reserves 1 TB of address space, "
            "which `ulimit -v` does not permit",
            tip="ulimit -v unlimited  # rlpost inspect has the same numbers without it",
        )


_CAGE = 1 << 40


def drawn(spec: Json) -> str:
    """Return the SVG of a Vega-Lite specification; marks have their text as `aria-label`."""
    import vl_convert  # noqa: PLC0415 - its engine takes a second to start

    svg: Any = vl_convert.vegalite_to_svg(spec)
    return str(svg)
