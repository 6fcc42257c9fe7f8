"""Schemas of other writers, with the new columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import rollout
from splicing import (
    FIELDS,
    check_splice,
    enrich,
    source_table,
)

import rlpost
from rlpost.io.parquet.schemas import SPARK_SCHEMA


def test_arrow_types_that_parquet_lacks_are_kept(tmp_path):
    table = pa.table(
        {
            "large": pa.array([["a"], [], None], pa.large_list(pa.large_string())),
            "fixed": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
            "words": pa.array(["x", "y", "x"]).dictionary_encode(),
            "span": pa.array([1, None, 3], pa.duration("ms")),
            "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", "[]", None])),
            "uuid": pa.ExtensionArray.from_storage(
                pa.uuid(), pa.array([b"0" * 16] * 3, pa.binary(16))
            ),
            "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
            "half": pa.array([*map(np.float16, (1, 2)), None], pa.float16()),
            "none": pa.nulls(3),
            "zoned": pa.array([1000, 2000, 3000], pa.timestamp("ns", "Europe/Berlin")),
        }
    )
    source = tmp_path / "source.parquet"
    pq.write_table(table, source)
    after = pq.read_table(check_splice(source, tmp_path)).select(table.column_names)
    assert after.schema.equals(table.schema)
    assert after.equals(table)


def test_sparks_schema_is_left_out_since_it_lacks_the_new_columns(tmp_path):
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    metadata = {SPARK_SCHEMA: "{}", "b": "c"}
    table = rollout().replace_schema_metadata(metadata)
    pq.write_table(table, source)
    enrich(source, target)
    enriched, _ = rlpost.enrich(table)
    for kept in (pq.read_metadata(target).metadata, enriched.schema.metadata):
        assert SPARK_SCHEMA not in kept
        assert kept[b"b"] == b"c"


@pytest.mark.parametrize("store_schema", [True, False])
def test_dropped_and_kept_columns_may_be_nested(tmp_path, store_schema):
    source = tmp_path / "source.parquet"
    pq.write_table(source_table(), source, row_group_size=20, store_schema=store_schema)
    for options, names in (
        ({"drop": ["info", "log_probs"]}, ["prompt_id", "reward", "messages", "step"]),
        ({"keep": ["step", "messages"]}, ["messages", "step"]),
        ({"keep": ["step", "messages"], "drop": ["step"]}, ["messages"]),
        ({"keep": []}, []),
    ):
        spliced = check_splice(source, tmp_path, **options)
        assert pq.read_schema(spliced).names == names + FIELDS.names


def test_sorting_columns_are_renumbered(tmp_path):
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    order = [pq.SortingColumn(2, descending=True), pq.SortingColumn(0), pq.SortingColumn(1)]
    pq.write_table(pa.table({"a": [1], "b": [2], "c": [3]}), source, sorting_columns=order)
    for drop, left in ((["b"], [1, 0]), (["a"], [1]), (["c"], [])):
        enrich(source, target, drop=drop)
        kept = pq.read_metadata(target).row_group(0).sorting_columns
        assert [column.column_index for column in kept] == left
