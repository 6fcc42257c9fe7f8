"""The metadata of an enriched file: what is damaged in it is an error that names it."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from runs import run
from verified_files import rewritten

from rlpost.pipeline.output.metadata import RUN_KEY

DAMAGED = {
    b"rlpost.recipe": [
        b"{", b'{"no_such_field": 1}', b'{"gamma": 1e400}', b"[" * 100_000, b"[1]",
        b'{"a": ' * 100 + b"1" + b"}" * 100, b'{"estimator": "no_such_one"}',
        b'{"domain_moments": []}',
    ],
    RUN_KEY.encode(): [
        b"[1]", b'{"run": "a", "file": 0, "files": 1e400, "rows": 1}',
        b'{"run": [], "file": 0, "files": 1, "rows": 1}',
    ],
    b"rlpost.summary": [b"?", b"[]", b'{"roles": 1}', b"[" * 100_000],
}  # fmt: skip


@pytest.mark.parametrize(("key", "text"), [(key, text) for key in DAMAGED for text in DAMAGED[key]],
                         ids=lambda value: value[:20].decode())  # fmt: skip
def test_metadata_that_is_damaged_or_of_another_shape_is_bad_data(enriched, key, text):
    """Not a wrong command line: nobody typed it."""
    rewritten(enriched, lambda table: table, {key: text})
    ran = run("verify", enriched)
    assert (ran.code, enriched.name in ran.err) == (3, True)
    assert "recursion" not in ran.err
    assert len(ran.err) < 1500


def test_a_run_that_claims_to_have_very_many_files_takes_no_memory(enriched):
    part = json.loads(pq.read_schema(enriched).metadata[RUN_KEY.encode()])
    part["files"] = 10**15
    rewritten(enriched, lambda table: table, {RUN_KEY.encode(): json.dumps(part).encode()})
    ran = run("verify", enriched)
    assert (ran.code, "belongs to a run of 1000000000000000 files" in ran.err) == (2, True)
