"""A law: `inspect` and the summary of a run count the same responses of any agentic input."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summaries import same_numbers, whole
from typer.testing import CliRunner

import rlpost
from rlpost import Recipe
from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.responses.index import build_index
from rlpost.cli.app import app_of
from rlpost.errors import DataError

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts

WEIGHTS = {"a": 1.0, "b": 0.5}
IDS = {"rollout": "rollout_id"}
REWARDS = st.sampled_from([0.0, 0.25, 1.0, 1.0, None, float("nan")])


class Rollout(NamedTuple):
    """A rollout of some rows: the trunk has a turn a row, a fork repeats its first turn."""

    place: tuple[int, int, str]
    """Step, prompt, domain."""
    rewards: list[tuple[float | None, float]]
    """Of each row; and of its second component."""
    failures: list[str | None]
    attempt: int
    masked: bool
    forks: bool
    truncated: bool
    """At its last turn."""


@st.composite
def rollouts(draw: Any) -> Rollout:
    turns = draw(st.integers(1, 3))
    place = st.tuples(st.integers(0, 1), st.integers(0, 2), st.sampled_from(["math", "code"]))
    own = st.tuples(REWARDS, st.sampled_from([0.0, 1.0]))
    return Rollout(
        draw(place),
        draw(st.lists(own, min_size=turns, max_size=turns)),
        draw(st.lists(st.sampled_from([None, None, "docker"]), min_size=turns, max_size=turns)),
        draw(st.integers(0, 1)),
        draw(st.sampled_from([False, False, True])),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def table_of(runs: list[Rollout], *, order: int) -> pa.Table:
    """Return a row for each turn of each rollout, in one of some orders."""
    rows = []
    for number, run in enumerate(runs):
        step, prompt, domain = run.place
        for turn, ((reward, second), failure) in enumerate(
            zip(run.rewards, run.failures, strict=True)
        ):
            row = {
                "step": step,
                "prompt_id": f"p{prompt}",
                "data_source": domain,
                "rollout_id": f"r{number}",
                "turn": turn,
                "branch": "main",
                "reward": reward,
                "a": reward,
                "b": second,
                "failure": failure,
                "run_attempt": run.attempt,
                "sample_mask": not run.masked,
                "truncated": run.truncated and turn == len(run.rewards) - 1,
                "response_mask": [1] * (turn + 1),
                "old_log_probs": [-0.5 - number] * (turn + 1),
                "ref_log_probs": [-0.25 * turn] * (turn + 1),
                "infer_log_probs": [-0.75 - number / 2] * (turn + 1),
            }
            rows += [row, {**row, "branch": "side"}] if run.forks and not turn else [row]
    schema = pa.schema({"reward": pa.float64(), "a": pa.float64(), "failure": pa.string()})
    table = pa.Table.from_pylist(rows[order:] + rows[:order])
    return pa.table(
        {
            name: table[name].cast(schema.field(name).type) if name in schema.names else table[name]
            for name in table.column_names
        }
    )


CHOICES = st.fixed_dictionaries(
    {
        "unit": st.sampled_from(["row", "rollout"]),
        "rollout_reward": st.sampled_from(["last", "sum", "mean"]),
        "failures": st.sampled_from(["drop", "mask", "keep", "zero"]),
        "attempts": st.sampled_from(["all", "newest"]),
        "pass_threshold": st.sampled_from([0.5, 1.0]),
    }
)


@given(st.lists(rollouts(), min_size=2, max_size=9), CHOICES, st.booleans(), st.integers(0, 3))
def test_inspect_and_the_summary_count_the_same_responses(runs, choices, by_components, order):
    if choices["unit"] == "row":
        choices = {**choices, "rollout_reward": "equal"}
    parts = WEIGHTS if by_components else {}
    table = table_of(runs, order=order)
    if by_components:
        table = table.drop_columns(["reward"])
    recipe = Recipe(
        estimator="raw",
        nonfinite="mask",
        columns=IDS,
        emit=["advantages"],
        is_weight="token",
        truncation_penalty=0.0,
        reward_components=tuple(parts) or None,
        component_weights=tuple(parts.values()) or None,
        **choices,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.parquet"
        pq.write_table(table, path)
        facts = inspect(path, columns_map=IDS, reward_components=parts, **choices)
    if (summary := summary_of(table, recipe)) is None:
        none_trains = choices["failures"] == "mask"  # failed ones count, but do not train
        assert none_trains or [facts.whole(x)["count"] for x in ("reward", "group_size")] == [0, 0]
        if facts.whole("counted")["total"] == 0:
            assert (facts.mismatch, facts.entropy) == (None, None)
            counts = [facts.whole(x)["count"] for x in ("kl", "policy_tokens", "truncated")]
            assert counts == [0, 0, 0]
        return
    head = ("responses", "rollouts", "groups", "tokens")
    ours = {**facts.as_json(), "tokens": facts.tokens}
    assert {name: ours[name] for name in head} == {name: summary[name] for name in head}
    assert facts.failures.reasons == summary["failures"]["reasons"]
    assert facts.failures.treatment == summary["failures"]["treatment"]
    compared = same_numbers(facts, summary, ignored(facts, summary))
    assert {"reward", "passed", "equal_rewards", "all_pass", "group_size"} <= compared


def ignored(facts: Facts, summary: dict[str, Any]) -> set[str]:
    """Measures of other populations, which the words `of` of each name."""
    names = {*ADVANTAGES}
    if whole(summary, "left_out:nonfinite")["total"]:  # responses without a reward have tokens
        names |= {"policy_tokens", "kl", "truncated", *POLICIES}
    if facts.failures.treatment == "mask" and facts.whole("failed")["total"]:
        names |= {"truncated", *POLICIES}  # failed responses do not train
    return names


ADVANTAGES = {"advantage", "advantage_zero", "advantage_positive", "advantage_negative"}
POLICIES = {
    *("engine_k1", "engine_k3", "engine_chi2", "confident_disagreement", "identical_log_probs"),
    *("ref_gap", "ref_gap_size"),
}


def summary_of(table: pa.Table, recipe: Recipe) -> dict[str, Any] | None:
    """Return the summary of a run; None if no response is left."""
    try:
        return rlpost.enrich(table, recipe)[1]
    except DataError as error:
        if "no response is left" not in str(error):
            raise
        return None


ROWS = {
    "prompt_id": ["a", "a", "a", "b", "b", "b"],
    "reward": [1.0, 1.0, 0.0, 1.0, 0.0, 0.0],
    "failure": [None, None, "docker", None, None, "docker"],
    "run_attempt": [1, 1, 1, 1, 1, 0],
    "sample_mask": [True, True, True, True, False, True],
    "response_mask": [[1]] * 6,
}
RUN = CliRunner()


def screen(folder: Path, *args: str) -> str:
    path = folder / "in.parquet"
    pq.write_table(pa.table(ROWS), path)
    return RUN.invoke(app_of("inspect"), [str(path), *args]).output


def test_the_screen_says_what_is_left_out(tmp_path):
    shown = screen(tmp_path, "--attempts", "all")
    assert "2 groups of 1 to 2" in shown
    assert "1 response with `sample_mask` 0 left out here, as of `rlpost advantages`" in shown
    assert "40.0 % of 5 responses failed: docker 2 (left out here" in shown
    shown = screen(tmp_path, "--failures", "keep")
    assert "1 row of older attempts (`run_attempt`) left out" in shown
    assert "(--failures keep: they count as any other)" in shown
    assert "2 groups of 1 to 3" in shown


def test_rows_that_a_run_left_out_are_said_once(tmp_path):
    """Its mask has those of its input, of failures and of attempts: the same rows count again."""
    pq.write_table(pa.table(ROWS), tmp_path / "in.parquet")
    recipe = Recipe(attempts="newest", replace=True)
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "out.parquet", recipe)
    before, after = (
        inspect(tmp_path / f"{name}.parquet", attempts="newest") for name in ("in", "out")
    )
    for name in ("reward", "counted", "policy_tokens"):
        assert after.whole(name) == before.whole(name)
    assert (after.left_out, before.left_out) == (1, 1)
    tables = [build_index([tmp_path / f"{x}.parquet"], {}, attempts="newest").table
              for x in ("in", "out")]  # fmt: skip
    assert np.array_equal(*(table.counted for table in tables))
    # With a mask of its own, the two cannot be separated: what it dropped counts.
    recipe = Recipe(attempts="newest", replace=True, drop_equal_rewards=True)
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "drop.parquet", recipe)
    dropped = inspect(tmp_path / "drop.parquet", attempts="newest")
    assert dropped.left_out == dropped.whole("counted")["total"] - sum(
        pq.read_table(tmp_path / "drop.parquet")["sample_mask"].to_pylist()
    )


CALCULATOR = Path(__file__).parents[3] / "sample_data" / "calculator.parquet"


@pytest.mark.parametrize(
    "options",
    [
        {"rollout_reward": "last"},
        {"rollout_reward": "sum", "pass_threshold": 0.5},
        {"unit": "row", "failures": "zero"},
        {"rollout_reward": "mean", "failures": "keep", "attempts": "all"},
    ],
)
def test_the_recipe_of_a_file_says_what_counts(options, tmp_path):
    """It does for what is not chosen; and for nothing if files have several."""
    table = pq.read_table(CALCULATOR)
    failed = pa.array([None if row % 7 else "docker" for row in range(len(table))], pa.string())
    table = table.append_column("failure", failed)
    table = table.append_column("run_attempt", pa.array(np.arange(len(table)) // 500))
    pq.write_table(table, tmp_path / "in.parquet")
    run = rlpost.advantages(
        tmp_path / "in.parquet", tmp_path / "out.parquet", Recipe(nonfinite="mask", **options)
    )
    facts, chosen = (
        inspect(tmp_path / "out.parquet", **given_options) for given_options in ({}, options)
    )
    assert facts.stored_counting == options
    assert (chosen.stored_counting, chosen.counting) == ({}, options)
    assert facts.facts == chosen.facts
    assert facts.as_json()["groups_with_signal"] == run["groups_with_signal"]
    other = inspect(tmp_path / "out.parquet", unit="row", failures="drop", attempts="newest")
    assert set(other.stored_counting) <= {"pass_threshold"}
    index = build_index([tmp_path / "out.parquet"], {})
    assert index.stored_counting == options
    assert int(index.table.counted.sum()) == facts.whole("counted")["total"]
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "raw.parquet", Recipe(unit="row"))
    both = inspect([tmp_path / f"{name}.parquet" for name in ("out", "raw")], rollout_reward="mean")
    assert both.stored_counting == {}


def counted_rows(**columns: Any) -> pa.Table:
    """Eight rows of two prompts."""
    masks = [[1] * 40] * 4 + [[1] * 3] * 4
    rows = {"prompt_id": ["p", "q"] * 4, "reward": [0.0, 1.0, 1.0, 0.0] * 2}
    return pa.table({**rows, "response_mask": masks, **columns})


@pytest.mark.parametrize(
    "columns", [{"failure": ["timeout"] * 8}, {"sample_mask": [0] * 8}], ids=["failed", "masked"]
)
def test_an_input_of_which_nothing_counts_is_inspected_and_reported(columns):
    facts = rlpost.inspect(counted_rows(**columns))
    assert facts.responses == 8
    assert facts.whole("policy_tokens")["max"] is None
    assert rlpost.report(counted_rows(**columns)).responses == 8


def test_failed_responses_have_no_part_in_statistics_of_policies(tmp_path):
    """Failed ones have a gap of 1 nat; the last step has no others."""
    rng = np.random.default_rng(0)
    failed = np.arange(40) >= 30
    old = -rng.exponential(1.0, (40, 64)) - 1.0
    infer = old + np.where(failed[:, None], 1.0, rng.normal(0.0, 0.02, (40, 64)))
    table = pa.table(
        {
            "step": np.repeat([0, 1, 2, 3], 10),
            "prompt_id": [f"p{row // 5}" for row in range(40)],
            "reward": np.arange(40) % 2.0,
            "failure": np.where(failed, "docker", ""),
            "old_log_probs": [*old],
            "infer_log_probs": [*infer],
            "ref_log_probs": [*(old - 0.5 - failed[:, None])],
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    pq.write_table(table.slice(0, 30), tmp_path / "counted.parquet")
    facts, counted = (inspect(tmp_path / f"{name}.parquet") for name in ("in", "counted"))
    assert facts.mismatch == replace(counted.mismatch, largest=facts.mismatch.largest)
    assert [token.row for token in facts.mismatch.largest] == [
        token.row for token in counted.mismatch.largest
    ]
    assert facts.whole("engine_k3")["mean"] == pytest.approx(2e-4, rel=0.1)
    assert "engine_mismatch" not in {finding.check for finding in facts.findings}
    assert facts.whole("kl")["mean"] == pytest.approx(0.5)
    assert facts.entropy == counted.entropy
    for name in ("kl", "engine_k3", "engine_ess", "entropy", "policy_tokens"):
        assert facts.whole(name) == counted.whole(name), name
    assert [facts.by("step", name)[3] for name in ("kl", "engine_k3")] == [None, None]
    assert facts.token_columns["old_log_probs"].tokens == 40 * 64
