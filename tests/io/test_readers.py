"""The enriched file in the libraries that people read Parquet with: values and types.

Those that are not installed are skipped, save in CI, which installs them all.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import rlpost

SAMPLE = Path(__file__).parents[2] / "sample_data" / "arithmetic.parquet"
EMIT = (
    "advantages",
    "returns",
    "response_level_rewards",
    "sample_mask",
    "sample_weight",
    "group_size",
    "kl",
)
RECIPE = rlpost.Recipe(
    estimator="gae", drop_difficulty="0.1:0.95", length_weight=True, kl_coef=0.01, emit=EMIT
)


def library(name):
    """The module; skips with the reason where it is missing, and fails in CI."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{error}; pip install 'rlpost[nightly]'")


@pytest.fixture(scope="module")
def enriched(tmp_path_factory):
    path = tmp_path_factory.mktemp("out") / "out.parquet"
    rlpost.advantages(SAMPLE, path, RECIPE)
    return path


@pytest.fixture(scope="module")
def wanted(enriched):
    return pq.read_table(enriched)


def assert_rows(rows, wanted):
    """Lists, numbers and flags of every row, bit for bit; and a column of the input."""
    assert len(rows) == wanted.num_rows
    for name in ("advantages", "returns", "response_tokens", "kl"):
        for found, own in zip((row[name] for row in rows), wanted[name].to_pylist(), strict=True):
            np.testing.assert_array_equal(np.asarray(found), np.asarray(own, dtype=np.float32))
    for name in ("response_level_rewards", "sample_mask", "sample_weight", "group_size", "reward"):
        assert [row[name] for row in rows] == wanted[name].to_pylist(), name


def test_polars(enriched, wanted):
    polars = library("polars")
    frame = polars.read_parquet(enriched)
    assert frame.schema["advantages"] == polars.List(polars.Float32)
    assert frame.schema["sample_mask"] == polars.Boolean
    assert frame.schema["response_level_rewards"] == polars.Float32
    assert_rows(frame.to_dicts(), wanted)
    lazy = polars.scan_parquet(enriched).select(polars.col("advantages").list.sum()).collect()
    assert lazy.height == wanted.num_rows


def test_duckdb(enriched, wanted):
    found = library("duckdb").sql(f"select * from '{enriched}'")  # noqa: S608 - our own file
    types = dict(zip(found.columns, map(str, found.types), strict=True))
    assert types["advantages"] == "FLOAT[]"
    assert types["sample_mask"] == "BOOLEAN"
    assert types["response_level_rewards"] == "FLOAT"
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
    assert_rows(rows, wanted)


def test_pandas(enriched, wanted):
    pandas = library("pandas")
    frame = pandas.read_parquet(enriched)
    assert frame["sample_mask"].dtype == bool
    assert frame["response_level_rewards"].dtype == np.float32
    assert frame["advantages"][0].dtype == np.float32
    assert_rows(frame.to_dict("records"), wanted)
    arrow = pandas.read_parquet(enriched, dtype_backend="pyarrow")
    assert str(arrow["advantages"].dtype) == "list<element: float>[pyarrow]"


@pytest.mark.nightly
def test_hugging_face_datasets(enriched, wanted, tmp_path):
    datasets = library("datasets")
    found = datasets.load_dataset(
        "parquet", data_files=str(enriched), split="train", cache_dir=str(tmp_path)
    )
    features = found.features
    assert features["advantages"] == datasets.List(datasets.Value("float32"))
    assert features["sample_mask"] == datasets.Value("bool")
    assert features["response_level_rewards"] == datasets.Value("float32")
    assert_rows(list(found), wanted)
    streamed = datasets.load_dataset(
        "parquet", data_files=str(enriched), split="train", streaming=True
    )
    first = next(iter(streamed))
    assert_rows([first], wanted.slice(0, 1))
    tensors = found.with_format("torch")[0]
    assert tensors["advantages"].tolist() == wanted["advantages"][0].as_py()


SPARK = """
import json, sys
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = session.read.parquet(sys.argv[1])
frame.coalesce(1).write.json(sys.argv[2])
print(json.dumps(dict(frame.dtypes)))
"""


@pytest.mark.nightly
def test_pyspark(enriched, wanted, tmp_path):
    library("pyspark")
    if shutil.which("java") is None:
        assert os.environ.get("CI") != "true", "CI installs a Java runtime"
        pytest.skip("Spark needs a Java runtime: apt-get install default-jre-headless")
    # With the optimizing compiler a start takes 25 s of CPU time, without it 15 s.
    options = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1", "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, "-c", SPARK, enriched, tmp_path / "rows"],
        capture_output=True, text=True, check=True, cwd=tmp_path, env=os.environ | options,
    )  # fmt: skip
    types = json.loads(ran.stdout)
    assert types["advantages"] == "array<float>"
    assert types["sample_mask"] == "boolean"
    assert types["response_level_rewards"] == "float"
    (part,) = (tmp_path / "rows").glob("part-*.json")
    rows = library("polars").read_ndjson(part, infer_schema_length=None).to_dicts()
    for row in rows:  # JSON has the shortest digits that give the same float
        for name in ("response_level_rewards", "sample_weight"):
            row[name] = float(np.float32(row[name]))
        for name in ("advantages", "returns", "kl"):
            row[name] = np.asarray(row[name], dtype=np.float32)
    assert_rows(rows, wanted)
