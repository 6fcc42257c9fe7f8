"""The charts of a page: points, labels and bars."""

from __future__ import annotations

import math
import re

from rlpost.analysis.inspect.model import Histogram
from rlpost.analysis.report import charts
from rlpost.analysis.report.charts import drawn


def values_of(spec):
    """The rows that a specification draws."""
    return spec["data"]["values"]


def test_a_line_has_a_point_per_step_or_means_of_neighbours():
    few = charts.line("t", [3, 5], [0.5, None], "step").spec
    assert [(one["x"], one["y"]) for one in values_of(few)] == [(3, 0.5)]
    assert few["layer"][0]["encoding"]["x"]["type"] == "quantitative"
    many = charts.line("t", list(range(1000)), [float(x) for x in range(1000)], "step")
    points = values_of(many.spec)
    assert len(points) == math.ceil(1000 / 9)
    assert points[0] == {"x": 0, "y": 4.0, "label": "step 0 to 8: 4"}
    assert "mean of 9" in many.note


def test_bars_count_each_bin_and_a_note_the_zeros():
    chart = charts.histogram("t", Histogram([-1.0, 0.0, 1.0], [2, 9]), "tokens", "A", zeros=6)
    marks = re.findall(r'aria-label="([^"]*)"[^>]*aria-roledescription="bar"', drawn(chart.spec))
    assert [int(re.search(r": ([\d,]+) tokens", label)[1]) for label in marks] == [2, 9]
    assert chart.note == "without those of exactly 0: 6 tokens, 35.3 %"
