"""Every estimator, correction and preset on the shadow: the CPU's bits, one wait a chunk, no byte
more than the columns have."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pytest
import torch

import rlpost
from rlpost.kernels import corrections, kl, scans, segments
from rlpost.pipeline.output import columns as output
from tests.device.inputs import rollouts
from tests.device.recipes import WEIGHTS, all_recipes, estimators

RECIPES = all_recipes()
PLAIN = [name for name in estimators() if name.endswith(" plain")]
CASES = [(name, True) for name in RECIPES]
CASES += [(name, False) for name in (*PLAIN, *(f"weight {level}" for level in WEIGHTS))]
SHORT = (
    "gae kl", "gae whiten", "turn_gae kl", "vtrace kl", "agentic_reinforce kl",
    "optimal_token_baseline kl", "gigpo plain", "weight segment, masked, normalised",
    "filter token ratio", "filter token, diverging",
    "order entropy", "filter token age", "filter token, correction first",
    "observations states", "kl_credit token", "clip_stages response", "cut policy segments",
    "adaptive kl", "whiten rewards",
)  # fmt: skip
"""Recipes of every stage, which README's command runs; the others are run at night."""
NUMBERS = 51
"""Numbers of 8 bytes per response that a pass may send or fetch beside its columns."""


TALLY = 8 << 12
"""Bytes of a chunk's histogram of advantages."""


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
    # The code of each token is fetched, and the host finds the order statistic of each batch, whose
    # bins and cuts are sent once.
    "order entropy": More(waits=1, fetched=8.0),
    # A version of a response is sent for each of its tokens, in float64.
    **dict.fromkeys(("filter token age", "filter max age", "weight linear"), More(sent=4.0)),
}
SPLIT = rlpost.Options(device="torch:cpu", chunk_tokens=6000, workers=1)


def token_columns(table) -> int:
    return sum(pa.types.is_list(column.type) for column in table.columns)


@pytest.mark.parametrize(
    ("name", "observations"),
    [
        pytest.param(*case, marks=() if case[1] and case[0] in SHORT else pytest.mark.nightly)
        for case in CASES
    ],
    ids=[name + (", observations" if observations else "") for name, observations in CASES],
)
def test_a_recipe_gives_the_cpus_bits_with_one_wait_a_chunk(measure, name, observations):
    check(measure, name, observations=observations)


def check(measure, name, *, observations):
    recipe, table = RECIPES[name], rollouts(observations=observations)
    expected, summary = rlpost.enrich(table, recipe, SPLIT)
    result, ours, run = measure.on_shadow(table, recipe, chunk_tokens=6000, workers=1)
    assert result.equals(expected), "bits"
    assert measure.same_results(ours, summary), "bits"
    more = MORE.get(name, MORE.get(recipe.estimator, More()))
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
        assert waits <= len(chunks) + more.waits, f"waits: {run.counts.waited_for}"
        mask = "mask" in chunks[0].roles
        assert sent <= tokens * (4 * len(columns) + mask + more.sent) + numbers, "sent"
        tallied = TALLY * len(chunks) if last else 0
        columns = tokens * (4 * written if last else more.fetched)
        assert fetched <= columns + numbers + tallied, "fetched"
    assert not run.counts.unordered, "two runs on a GPU differ"
    outside = run.counts.waits - sum(each.counts.waits for each in run.chunks)
    assert outside <= 2  # the check of the device at the start


def kl_with_item(log_probs, *rest, **options):
    assert log_probs.sum().item() < 0
    return kl.token_kl(log_probs, *rest, **options)


def weights_with_branch(logs, **options):
    assert logs.numel() == 0 or (logs < 10).all()
    return corrections.importance_weights(logs, **options)


def scan_with_boolean_index(values, *rest):
    assert values[values > 0].dim() == 1
    return scans.reverse_scan(values, *rest)


def scan_with_other_bits(values, *rest):
    result = scans.reverse_scan(values, *rest)
    return result if values.device.type == "cpu" else result * (1 + 1e-15)


def add_at_after_cumsum(values, *rest):
    assert values.cumsum(0).dim() == 1
    return segments.add_at(values, *rest)


def more_columns(*arguments):
    columns = output.written_columns(*arguments)
    return {**columns, "more": columns["advantages"].double()}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("place", "planted", "name", "found"),
    [
        ("pipeline.stages.tokens.token_kl", kl_with_item, "gae kl", "waits: .*_local_scalar_dense"),
        (
            "pipeline.stages.off_policy.importance_weights",
            weights_with_branch,
            "weight token",
            "waits: ",
        ),
        ("estimators.returns.reverse_scan", scan_with_boolean_index, "gae kl", "waits: .*'index'"),
        ("estimators.returns.reverse_scan", scan_with_other_bits, "gae kl", "bits"),
        ("pipeline.stages.tokens.add_at", add_at_after_cumsum, "gae kl", "two runs"),
        ("pipeline.torch_device._sent_as", lambda *_: torch.float64, "gae kl", "sent"),
        ("pipeline.engine.written_columns", more_columns, "gae kl", "fetched"),
    ],
)
def test_what_a_card_would_wait_for_or_change_is_found(
    measure, monkeypatch, place, planted, name, found
):
    monkeypatch.setattr(f"rlpost.{place}", planted)
    with pytest.raises(AssertionError, match=found):
        check(measure, name, observations=True)
