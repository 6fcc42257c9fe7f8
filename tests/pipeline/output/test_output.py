"""What a run writes: the input's columns as they were, the new ones, and how it was made."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from processed_files import ALL_ON, USUAL, foreign
from runs import rollout, strict_json

from rlpost import Recipe, enrich


@pytest.mark.parametrize("rows", [1, 5, 100])
def test_the_inputs_columns_stay_as_they_were(process, tmp_path, rows):
    out = process(foreign(), rows=rows)
    before = pq.read_table(tmp_path / "in.parquet")
    assert out.column_names == [*before.column_names, *USUAL]
    kept = out.select(before.column_names)
    assert kept.equals(before)
    for field in before.schema:
        assert kept.schema.field(field.name).equals(field, check_metadata=True)
    assert before.schema.metadata.items() <= out.schema.metadata.items()
    groups = [
        pq.ParquetFile(tmp_path / name).num_row_groups for name in ("in.parquet", "out.parquet")
    ]
    assert groups[0] == groups[1]


# How it was made


@pytest.mark.parametrize("words", [[], ["--numerics", "log_ratio_clamp=inf"], ALL_ON], ids=str)
def test_a_file_says_how_it_was_made(process, tmp_path, words):
    process(rollout(), *words)
    metadata = pq.read_metadata(tmp_path / "out.parquet").metadata
    recipe = Recipe.model_validate_json(metadata[b"rlpost.recipe"])
    summary = strict_json(metadata[b"rlpost.summary"].decode())
    assert metadata[b"rlpost.version"].decode() == "0.1.0"
    assert summary["schema_version"] == 2
    assert summary["responses"] == 12
    assert recipe.kl_coef == (0.1 if words is ALL_ON else 0.0)
    assert enrich(rollout(), recipe)[0].equals(process(rollout(), *words))
