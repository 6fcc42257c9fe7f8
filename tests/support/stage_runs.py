"""Runs of the pipeline on a few rows, compared with the references."""

from dataclasses import replace

import numpy as np
import pytest
from reference import Response
from reference_pipeline import pipeline
from strategies import to_table

import rlpost
from rlpost.errors import DataError

EMIT = (
    "advantages",
    "returns",
    "response_level_rewards",
    "raw_advantages",
    "token_level_rewards",
    "final_response_mask",
    "sample_mask",
)


def close(got, want):
    got, want = np.array(got, dtype=float), np.array(want, dtype=float)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def close_lists(got, want):
    assert [len(xs) for xs in got] == [len(xs) for xs in want]
    close([x for xs in got for x in xs], [x for xs in want for x in xs])


def run(rows, **options):
    """The written columns as Python lists, and the summary."""
    emit = (*EMIT, *(["kl"] if rows[0].ref and rows[0].old else []))
    if options.get("difficulty_weight") or options.get("length_weight"):
        emit += ("sample_weight",)
    table, summary = rlpost.enrich(to_table(rows), rlpost.Recipe(**options, emit=emit))
    return {name: table.column(name).to_pylist() for name in emit}, summary


def agrees(rows, **options):
    """Check every written column against the composition of the references."""
    want = pipeline(rows, options)
    if not any(r.kept for r in want.rows):
        with pytest.raises(DataError, match="no response is left"):
            run(rows, **options)
        return want
    got, _ = run(rows, **options)
    assert got["sample_mask"] == [r.kept for r in want.rows]
    close_lists(got["final_response_mask"], [r.final_mask for r in want.rows])
    close(got["response_level_rewards"], want.rewards)
    close_lists(got["token_level_rewards"], want.token_rewards)
    close_lists(got["returns"], want.returns)
    close_lists(got["raw_advantages"], want.raw_advantages)
    close_lists(got["advantages"], want.advantages)
    if "kl" in got:
        close_lists(got["kl"], want.kl)
    if "sample_weight" in got:
        close(got["sample_weight"], want.weights)
    return want


def row(reward=0.0, mask=(1,), group="p", **fields):
    return Response(group=group, reward=reward, mask=list(mask), **fields)


ROWS = [
    row(1.0, [1, 1], domain="a", finish_reason="stop", difficulty=0.0),
    row(0.0, [1, 0, 1, 1], domain="a", finish_reason="length", difficulty=0.25),
    row(1.0, [0, 1, 1, 1, 0], batch=1, domain="a", finish_reason="stop", difficulty=2.0),
    row(0.5, [1], batch=1, domain="a", finish_reason="stop", difficulty=-1.0),
    row(3.0, [1], "q", domain="b", finish_reason="stop", difficulty=0.5),
    row(2.0, [1, 1], "r", domain="a", finish_reason="stop", difficulty=0.5),
    row(2.0, [1, 1, 1], "r", domain="a", finish_reason="length", difficulty=0.5),
    row(0.0, [0, 0], "r", batch=1, domain="b", finish_reason="stop", difficulty=0.5),
]
TOKENS = [
    replace(
        r,
        old=[-0.5 - t for t in range(len(r.mask))],
        ref=[-1.5 + 0.25 * i for i in range(len(r.mask))],
        values=[0.25 * t for t in range(len(r.mask))],
        token_rewards=[0.5] * len(r.mask),
    )
    for r in ROWS
]


def credit(rows, numerics, **options):
    return run(rows, numerics=numerics, **options)[0]["advantages"]
