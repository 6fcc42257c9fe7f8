"""Every estimator, correction and preset on the shadow: the CPU's bits, one wait a chunk, no byte
more than the columns have."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pytest

import rlpost
from tests.device.inputs import rollouts
from tests.device.recipes import WEIGHTS, all_recipes, estimators

RECIPES = all_recipes()
CASES = [(name, True) for name in RECIPES]
CASES += [(name, False) for name in (*estimators(), *(f"weight {level}" for level in WEIGHTS))]
NUMBERS = 28
"""Numbers of 8 bytes per response that a pass may send or fetch beside its columns."""


class More(NamedTuple):
    """What an estimator needs beside that, and why."""

    waits: int = 0
    """Of the pass, not of each chunk."""
    sent: float = 0.0
    """Bytes per token."""
    fetched: float = 0.0
    """Bytes per token."""


MORE = {
    # One baseline for each group and position: every token's part in it is fetched in float64 to be
    # added up over the input, and the baselines are sent to the card once.
    "optimal_token_baseline": More(waits=1, sent=2.0, fetched=16.0),
}
SPLIT = rlpost.Options(device="cpu", chunk_tokens=6000, workers=1)


def token_columns(table) -> int:
    return sum(pa.types.is_list(column.type) for column in table.columns)


@pytest.mark.parametrize(
    ("name", "observations"),
    CASES,
    ids=[name + (", observations" if observations else "") for name, observations in CASES],
)
def test_a_recipe_gives_the_cpus_bits_with_one_wait_a_chunk(measure, name, observations):
    recipe, table = RECIPES[name], rollouts(observations=observations)
    expected, summary = rlpost.enrich(table, recipe, SPLIT)
    result, ours, run = measure.on_shadow(table, recipe, chunk_tokens=6000, workers=1)
    assert result.equals(expected)
    assert measure.same_results(ours, summary)
    more = MORE.get(recipe.estimator, More())
    written = token_columns(result) - token_columns(table)
    assert all(len(chunks) > 1 for chunks in run.passes)
    for number, chunks in enumerate(run.passes):
        tokens, rows = (sum(getattr(each, what) for each in chunks) for what in ("tokens", "rows"))
        columns = [role for role in chunks[0].roles if role != "mask"]
        sent, fetched, waits = (
            sum(getattr(each.counts, what) for each in chunks)
            for what in ("to_device_bytes", "to_host_bytes", "waits")
        )
        numbers = 8 * NUMBERS * rows
        last = number == len(run.passes) - 1
        assert waits <= len(chunks) + more.waits, run.counts.waited_for
        mask = "mask" in chunks[0].roles
        assert sent <= tokens * (4 * len(columns) + mask + more.sent) + numbers
        assert fetched <= tokens * (4 * written if last else more.fetched) + numbers
    assert not run.counts.unordered  # else two runs on a GPU differ
    outside = run.counts.waits - sum(each.counts.waits for each in run.chunks)
    assert outside <= 2  # the check of the device at the start
