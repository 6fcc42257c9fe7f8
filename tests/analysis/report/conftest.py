"""A file with advantages and findings, and its page."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_pages import data_in

import rlpost

SAMPLE = Path(__file__).parents[3] / "sample_data"


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A file with advantages and findings, and its page."""
    folder = tmp_path_factory.mktemp("report")
    enriched, rollouts = folder / "enriched.parquet", folder / "rollouts.parquet"
    recipe = rlpost.Recipe(estimator="grpo", advantage_clip=1.5, drop_difficulty="0.1:0.95")
    rlpost.advantages(SAMPLE / "arithmetic.parquet", enriched, recipe)
    table = pq.read_table(enriched)
    place = table.schema.get_field_index("infer_log_probs")
    apart = [[x - 0.4 for x in row] for row in table["infer_log_probs"].to_pylist()]
    column = pa.array(apart, table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), column), rollouts)
    facts = rlpost.report([str(rollouts)], folder / "report.html")
    return rollouts, folder / "report.html", facts


@pytest.fixture(scope="session")
def data(made):
    """What the page holds as JSON."""
    return data_in(made[1])
