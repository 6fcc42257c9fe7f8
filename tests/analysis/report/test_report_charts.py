"""The charts of a page: points, labels and bars."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import pytest

from rlpost.analysis.inspect.model import Histogram
from rlpost.analysis.report import charts


def marks_of(chart):
    """The labels of the marks, which a chart as XML has, within its area."""
    root = ET.fromstring(chart.svg)  # noqa: S314 - our own
    for mark in root.iter():
        for name in ("x", "y", "cx", "cy"):
            assert -1 <= float(mark.get(name, 0)) <= 350
    return [mark.get("aria-label") for mark in root.iter() if mark.get("aria-label")]


def test_a_line_has_a_point_per_step_or_means_of_neighbours():
    assert marks_of(charts.line("t", [3, 5], [0.5, None], "step")) == ["step 3: 0.5"]
    many = charts.line("t", list(range(1000)), [float(x) for x in range(1000)], "step")
    points = marks_of(many)
    assert len(points) == math.ceil(1000 / 9)
    assert points[0] == "step 0 to 8: 4"
    assert "mean of 9" in many.note


def test_bars_count_each_bin_and_a_note_the_zeros():
    chart = charts.histogram("t", Histogram([-1.0, 0.0, 1.0], [2, 9]), "tokens", "A", zeros=6)
    assert marks_of(chart) == ["-1 to 0: 2 tokens", "0 to 1: 9 tokens"]
    assert chart.note == "without those of exactly 0: 6 tokens, 35.3 %"
    heights = [float(x) for x in re.findall('height="([0-9.]+)"', chart.svg)]
    assert heights[0] / heights[1] == pytest.approx(2 / 9, rel=0.01)


@pytest.mark.parametrize("heights", [[0, 0], [1, 2_000_000], [0.5], [-1.5, 2.5], [1e-9, 0.0]])
def test_any_heights_have_ticks_and_labels_that_are_no_html(heights):
    chart = charts.bars("t", ["<b>", "x" * 99][: len(heights)], heights, "groups", "pass rate")
    assert len(marks_of(chart)) == len(heights)
    assert "<b>" not in chart.svg
    line = charts.line("t", ["a", "b"][: len(heights)], heights, "step", share=True)
    assert len(marks_of(line)) == len(heights)
