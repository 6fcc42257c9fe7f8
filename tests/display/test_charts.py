"""Bars and sparklines: exact pictures, laws, and how consoles of all kinds print them."""

from __future__ import annotations

import io
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rlpost.display.charts import ascii_chart, bar, spark
from rlpost.display.console import console
from rlpost.display.tables import TextTable

COUNTS = [0, 1, 5, 40, 400, 913, 20, 0]
BLOCKS = " ▁▂▃▄▅▆▇█"
TABLE = TextTable(
    ("reward", "responses", ""),
    [(str(i), f"{count:,}", bar(count, 913, 16)) for i, count in enumerate(COUNTS)],
    "Rewards",
    [f"0 {spark(COUNTS)} 7"],
    text=(0, 2),
)
CHARTS = [spark(COUNTS), *(bar(count, 913, 16) for count in COUNTS if count)]
numbers = st.floats(-1e6, 1e6)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.sampled_from([16, 28, 32]))
def test_a_bar_is_as_long_as_its_value_to_an_eighth(value, largest, width):
    found = bar(value, largest, width)
    length = 8 * found.count("█") + sum("▏▎▍▌▋▊▉".find(block) + 1 for block in found)
    assert 1 <= length <= 8 * width
    assert abs(length - min(value / largest, 1) * width * 8) <= (0.5 if length > 1 else 1)


@given(st.lists(numbers, min_size=1, max_size=60))
def test_a_sparkline_has_the_order_of_its_values(values):
    for bounds in (None, (min(values), max(values))):
        heights = [BLOCKS.index(block) for block in spark(values, bounds)]
        assert len(heights) == len(values)
        ranked = [height for _, height in sorted(zip(values, heights, strict=True))]
        assert all(a <= b for a, b in pairwise(ranked))
        assert bounds is None or min(heights) == 1
        assert bounds is not None or [h > 0 for h in heights] == [v > 0 for v in values]


def test_an_encoding_without_blocks_gets_charts_of_its_characters():
    texts = []
    for encoding in ("utf-8", "ascii"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)  # strict
        console(stream).print(TABLE)
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(encoding))
    assert texts[1] == ascii_chart(texts[0]).replace("─", "-")
    assert [len(line) for line in texts[0].split("\n")] == list(map(len, texts[1].split("\n")))
    heights = ascii_chart(spark(range(9)))
    assert len(set(heights)) == 9
    assert heights.isascii()
