"""`rlpost inspect`: its numbers, the names it knows, its screens."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from inspected_files import RUN

import rlpost
from rlpost import Recipe
from rlpost.analysis.inspect.facts import inspect
from rlpost.cli.app import app_of


def test_the_layout_of_files_changes_no_number(sample, facts, tmp_path):
    table = pq.read_table(sample)
    order = np.random.default_rng(1).permutation(len(table))
    shuffled = table.take(order)
    pq.write_table(shuffled.slice(0, 100), tmp_path / "a.parquet", row_group_size=7)
    pq.write_table(shuffled.slice(100), tmp_path / "b.parquet")
    again, before = inspect([tmp_path], unit="row").as_json(), facts.as_json()
    for one in (again, before):
        if gap := one["mismatch"]:  # these name files and rows
            gap["largest"] = [(token["position"], token["infer"]) for token in gap["largest"]]
    names = ("facts", "prompt_groups", "histograms", "responses", "tokens", "mismatch")
    for name in (*names, "turns", "token_columns"):
        assert again[name] == before[name], name


# ---- inputs that are not as they should be ----


def test_an_empty_file_has_a_finding(tmp_path, sample):
    pq.write_table(pq.read_table(sample).slice(0, 0), tmp_path / "a.parquet")
    found = inspect([tmp_path / "a.parquet"])
    assert found.responses == 0
    assert [finding.check for finding in found.findings] == ["no_rows"]
    assert found.whole("reward")["mean"] is None
    for how in ("table", "json", "markdown"):
        done = RUN.invoke(app_of("inspect"), [str(tmp_path / "a.parquet"), "--format", how])
        assert done.exit_code == 0, done.output


def test_files_written_by_rlpost_have_their_recipe(sample, tmp_path):
    recipe = Recipe(estimator="rloo", rollout_reward="last")
    rlpost.advantages(sample, tmp_path / "a.parquet", recipe)
    (file,) = inspect(tmp_path / "a.parquet").input.files
    assert (file.rlpost["version"], file.rlpost["estimator"]) == (rlpost.__version__, "rloo")


def test_converted_files_show_the_missing_roles_of_their_dump(tmp_path):
    lacks = {"mask": "masks are not dumped"}
    metadata = {
        "rlpost.version": "1",
        "rlpost.format": "verl",
        "rlpost.missing_roles": json.dumps(lacks),
    }
    table = pa.table({"prompt_id": ["a"], "reward": [1.0]}).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "a.parquet")
    shown = RUN.invoke(app_of("inspect"), [str(tmp_path / "a.parquet"), "--verbose"]).stdout
    assert "mask: masks are not dumped" in shown
