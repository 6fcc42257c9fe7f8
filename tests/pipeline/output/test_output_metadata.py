"""The metadata of an enriched file: what is damaged in it is an error that names it."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from runs import run
from verified_files import rewritten

from rlpost.pipeline.output.metadata import RUN_KEY


@pytest.mark.parametrize("metadata", [{b"rlpost.recipe": b"{"}, {RUN_KEY.encode(): b"[1]"},
                                      {b"rlpost.summary": b"?"}])  # fmt: skip
def test_metadata_that_is_damaged_is_an_error(enriched, metadata):
    rewritten(enriched, lambda table: table, metadata)
    ran = run("verify", enriched)
    assert ran.code == 3
    assert "damaged" in ran.err


@pytest.mark.parametrize(
    "recipe",
    ['{"no_such_field": 1}', '{"gamma": 1e400}', "[" * 100_000, '{"a": ' * 100 + "1" + "}" * 100,
     '{"estimator": "no_such_one"}', "[1]", '{"domain_moments": []}'],
    ids=["unknown", "infinite", "deep", "nested", "estimator", "list", "other"],
)  # fmt: skip
def test_a_recipe_in_the_metadata_that_is_invalid_is_bad_data(enriched, recipe):
    """Not a wrong command line: nobody typed it."""
    rewritten(enriched, lambda table: table, {b"rlpost.recipe": recipe.encode()})
    ran = run("verify", enriched)
    assert ran.code == 3
    assert enriched.name in ran.err
    assert "recursion" not in ran.err
    assert len(ran.err) < 1500


@pytest.mark.parametrize(
    "metadata",
    [{RUN_KEY.encode(): b'{"run": "a", "file": 0, "files": 1e400, "rows": 1}'},
     {RUN_KEY.encode(): b'{"run": [], "file": 0, "files": 1, "rows": 1}'},
     {b"rlpost.summary": b"[]"}, {b"rlpost.summary": b'{"roles": 1}'},
     {b"rlpost.summary": b"[" * 100_000}],
)  # fmt: skip
def test_metadata_of_another_shape_is_bad_data(enriched, metadata):
    rewritten(enriched, lambda table: table, metadata)
    ran = run("verify", enriched)
    assert (ran.code, enriched.name in ran.err) == (3, True)
    assert "recursion" not in ran.err


def test_a_run_that_claims_to_have_very_many_files_takes_no_memory(enriched):
    part = json.loads(pq.read_schema(enriched).metadata[RUN_KEY.encode()])
    part["files"] = 10**15
    rewritten(enriched, lambda table: table, {RUN_KEY.encode(): json.dumps(part).encode()})
    ran = run("verify", enriched)
    assert (ran.code, "belongs to a run of 1000000000000000 files" in ran.err) == (2, True)
