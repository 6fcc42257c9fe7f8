"""An enriched file to train on, and its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import rlpost

SAMPLE = Path("sample_data/calculator.parquet")


@pytest.fixture(scope="module")
def enriched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an enriched file with observation tokens, masked responses, several row groups."""
    folder = tmp_path_factory.mktemp("enriched")
    rows = pl.read_parquet(SAMPLE).head(200)
    rows.write_parquet(folder / "rows.parquet", row_group_size=23)
    recipe = rlpost.Recipe(unit="row", drop_truncated=True, difficulty_weight=True)
    rlpost.advantages(folder / "rows.parquet", folder / "out.parquet", recipe)
    return folder / "out.parquet"


@pytest.fixture(scope="module")
def rows(enriched: Path) -> list[dict[str, Any]]:
    """Return the file's rows."""
    return pl.read_parquet(enriched).to_dicts()
