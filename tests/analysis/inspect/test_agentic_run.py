"""What `inspect` names in a generated agentic run whose truth is known."""

import polars as pl
import pytest
from agentic_run import agentic_run
from summaries import warnings_of

import rlpost
from rlpost.analysis.inspect.facts import inspect

ROLLOUTS = {"columns_map": {"rollout": "rollout_id"}}


@pytest.fixture(scope="module")
def generated():
    return agentic_run(1)


@pytest.fixture(scope="module")
def path(generated, tmp_path_factory):
    return generated.write(tmp_path_factory.mktemp("run"))


def found(path, **options):
    return {one.check: one for one in inspect([path], **ROLLOUTS, **options).findings}


def test_copies_and_dropped_rollouts_are_named(generated, path):
    """The group sizes are those of the newest attempt; copies of replaced rows are no matter."""
    findings, truth = found(path), pl.from_arrow(generated.truth)
    superseded, duplicate = truth["superseded"], truth["duplicate"]
    # A copy of a row without tokens has no fingerprint of its own.
    copies = (duplicate & ~superseded & _with_tokens(generated)).sum()
    assert findings["written_twice"].text.startswith(f"{copies:,} of ")
    rows = pl.from_arrow(generated.table.select(["step", "prompt_id", "rollout_id"]))
    sizes = rows.filter(~superseded).group_by("step", "prompt_id").agg(
        size=pl.col("rollout_id").n_unique()
    )  # fmt: skip
    fewer = (sizes["size"] < 8).sum()
    assert f"groups, {fewer} have fewer than" in findings["unequal_groups"].text
    assert fewer > 0
    assert "rows_are_turns" not in findings


def _with_tokens(generated):
    return pl.Series([len(ids) > 0 for ids in generated.table["response_token_ids"].to_pylist()])


def test_failures_are_counted_by_rollout(generated, path):
    whole, counts = inspect([path], **ROLLOUTS, attempts="all"), generated.counts()
    facts, failed = whole.failures, whole.whole("failed")
    assert (whole.unit, failed["total"], failed["count"]) == (
        "rollout", counts["failed rollouts"], counts["rollouts"]
    )  # fmt: skip
    rows = pl.from_arrow(generated.table)
    reasons = rows["failure"].drop_nulls()
    assert facts.reasons == dict(reasons.value_counts().iter_rows())
    rollouts = rows.group_by("step", "rollout_id").agg(pl.col("failure").is_not_null().any())
    shares = rollouts.group_by("step").agg(pl.mean("failure"))
    by_step = dict(zip(whole.labels("step"), whole.by("step", "failed"), strict=True))
    assert by_step == pytest.approx(dict(shares.iter_rows()))


def test_without_the_column_crashes_look_like_failures(path):
    options = {"columns_map": {**ROLLOUTS["columns_map"], "failure": "none"}}
    findings = {one.check: one for one in inspect([path], **options).findings}
    rows = pl.read_parquet(path)
    crashes = (rows["failure"] == "browser crash").sum()
    assert findings["many_failures"].text.startswith(f"{crashes:,} of ")


def test_rows_that_a_run_left_out_are_no_fault_of_its_output(generated, tmp_path):
    recipe = rlpost.Recipe(estimator="grpo", columns={"rollout": "rollout_id"})
    got, summary = rlpost.enrich(generated.table, recipe)
    pl.from_arrow(got).write_parquet(tmp_path / "out.parquet")
    empty = ~_with_tokens(generated) & pl.from_arrow(got)["sample_mask"]
    assert not empty.any()  # crashes, which are left out, have no token
    assert not any("without policy tokens" in text for text in warnings_of(summary))
