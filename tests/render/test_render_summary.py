"""The summary of a run on a terminal: as wide as 80 columns."""

from io import StringIO

import pyarrow.parquet as pq
from corrected_rows import row
from rich.console import Console
from strategies import to_table

import rlpost
from rlpost import Recipe
from rlpost.render import summary as render


def test_the_rendered_summary_fits_80_columns_with_its_frame(tmp_path):
    rows = [row([-1.0, -3.0], [-1.5, -1.0]), row([-1.0], [-1.125])]
    pq.write_table(to_table(rows), tmp_path / "in.parquet")
    filters = ("token:ratio:0.5:1.5", "geometric:k3::0.03125")
    options = {"is_weight": "sequence", "is_cap": 1.1, "is_mask": (0.1, 9), "is_filter": filters}
    recipe = Recipe(estimator="raw", **options)
    summary = rlpost.advantages(tmp_path / "in.parquet", tmp_path / "out.parquet", recipe)
    text = StringIO()
    Console(file=text, width=76).print(*render._correction(summary), sep="\n")
    for words in ("weights truncated", "weights masked", *filters, "rejected, total", "KL(", "χ²"):
        assert words in text.getvalue()
    assert "…" not in text.getvalue()
    assert all(len(line) <= 76 for line in text.getvalue().splitlines())
