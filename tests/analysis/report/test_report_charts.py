"""The charts of a page: points, labels and bars."""

from __future__ import annotations

import math
import re

import pytest
from report_pages import HOSTILE

from rlpost.analysis.inspect.model import Histogram
from rlpost.analysis.report import charts
from rlpost.analysis.report.charts import drawn


def values_of(spec):
    """The rows that a specification draws."""
    (values,) = spec["datasets"].values()
    return values


def test_a_line_has_a_point_per_step_or_means_of_neighbours():
    few = charts.line("t", [3, 5], [0.5, None], "step").spec
    assert [(one["x"], one["y"]) for one in values_of(few)] == [(3, 0.5)]
    assert few["layer"][0]["encoding"]["x"]["type"] == "quantitative"
    many = charts.line("t", list(range(1000)), [float(x) for x in range(1000)], "step")
    points = values_of(many.spec)
    assert len(points) == math.ceil(1000 / 9)
    assert points[0] == {"x": 0, "y": 4.0, "label": "step 0 to 8: 4"}
    assert "mean of 9" in many.note


def test_labels_of_charts_are_short_and_valid_xml():
    chart = charts.line("t", [HOSTILE, "b" * 99], [1.0, 2.0], "step")
    svg = drawn(chart.spec)
    assert "<img" not in svg
    assert not re.search(r"[\x00-\x08\u202e\ufffe]", svg)
    assert charts.label_of("b" * 99) == "b" * 23 + "…"


def test_bars_of_a_histogram_are_drawn_from_edge_to_edge():
    chart = charts.histogram("t", Histogram([0.0, 1.0, 3.0], [3, 6]), "rows", "x")
    svg = drawn(chart.spec)
    marks = re.findall(
        r'aria-label="([^"]*)"[^>]*aria-roledescription="bar" d="M[^h]*h([\d.]+)', svg
    )
    assert [said for said, _ in marks] == ["0 to 1: 3 rows", "1 to 3: 6 rows"]
    narrow, wide = (float(width) for _, width in marks)
    assert wide / narrow == pytest.approx(2, rel=0.02)
