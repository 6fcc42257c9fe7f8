"""Schemas of other writers, with the new columns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from splicing import (
    FIELDS,
    check_splice,
    enrich,
    source_table,
)

import rlpost
from rlpost.io.parquet.schemas import SPARK_SCHEMA

SAMPLE = Path(__file__).parents[3] / "sample_data" / "calculator.parquet"


@pytest.mark.parametrize("emit_only", [False, True])
def test_a_table_that_spark_wrote_keeps_its_schema_with_the_new_columns(emit_only):
    table = pq.read_table(SAMPLE)
    fields = [{"name": name, "type": "x", "nullable": True} for name in table.column_names]
    told = {SPARK_SCHEMA: json.dumps({"type": "struct", "fields": fields}), "kept": "yes"}
    recipe = rlpost.Recipe(emit_only=emit_only, rollout_reward="last")
    made, _ = rlpost.enrich(table.replace_schema_metadata(told), recipe)
    found = json.loads(made.schema.metadata[SPARK_SCHEMA])
    assert [field["name"] for field in found["fields"]] == made.column_names
    assert made.schema.metadata[b"kept"] == b"yes"


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


def test_pandas_metadata_and_key_values_are_kept(tmp_path):
    metadata = {
        "pandas": '{"columns": []}',
        "huggingface": "{}",
        "note": "ä",
        "rlpost.version": "9",
    }
    source = tmp_path / "source.parquet"
    pq.write_table(source_table().replace_schema_metadata(metadata), source)
    for target in (check_splice(source, tmp_path), tmp_path / "rewritten.parquet"):
        kept = pq.read_schema(target).metadata
        assert {k.decode(): v.decode() for k, v in kept.items()} == metadata | {
            "rlpost.version": "0"
        }
        assert pq.read_schema(target).field("advantages").type == FIELDS.field("advantages").type


SPARK = "org.apache.spark.sql.parquet.row.metadata"


def spark_field(name, kind):
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def test_sparks_schema_has_the_columns_of_the_file(tmp_path):
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    old = [spark_field("a", "date"), spark_field("b", "long"), spark_field("score", "string")]
    value = json.dumps({"type": "struct", "fields": old})
    table = pa.table({"a": [1], "b": [2], "score": ["x"]}).replace_schema_metadata({SPARK: value})
    pq.write_table(table, source)
    floats = {"type": "array", "elementType": "float", "containsNull": True}
    new = [
        spark_field("advantages", floats),
        spark_field("returns", floats),
        spark_field("score", "float"),
        spark_field("kept", "boolean"),
    ]
    for drop, kept in ((["score"], old[:2]), (["a", "score"], old[1:2])):
        assert enrich(source, target, drop=drop) is None
        found = json.loads(pq.read_metadata(target).metadata[SPARK.encode()])
        assert found == {"type": "struct", "fields": [*kept, *new]}


@pytest.mark.parametrize("value", ["{", "[]", "1", '{"fields": [1]}', '{"fields": []}', "[" * 9999])
def test_an_invalid_spark_schema_is_dropped(tmp_path, value):
    source, target = tmp_path / "source.parquet", tmp_path / "target.parquet"
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({SPARK: value, "b": "c"}), source)
    assert enrich(source, target) is None
    assert SPARK.encode() not in pq.read_metadata(target).metadata
    assert pq.read_metadata(target).metadata[b"b"] == b"c"


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
