"""Stages of rewards: scopes of the normalisation, single and equal rewards, running moments."""

import json

import pyarrow as pa
import pytest
import reference as ref
from stage_runs import ROWS, agrees, close, credit, row
from strategies import to_table

import rlpost


@pytest.mark.parametrize("mean", ["batch", "group", "running", "none"])
@pytest.mark.parametrize("std", ["batch", "group", "running", "none"])
def test_scopes_of_reward_normalisation(mean, std):
    """Where the deviation is 0 the reward is 0, whatever was to be taken from it."""
    agrees(ROWS, estimator="raw", norm_mean=mean, norm_std=std)


@pytest.mark.parametrize(
    ("single", "scopes", "want"),
    [
        ("zero", ("group", "group"), 0),
        ("zero", ("group", "none"), 0),
        ("zero", ("batch", "none"), 2),
        ("zero_always", ("batch", "none"), 0),
        ("raw", ("group", "group"), 5),
        ("normalise", ("group", "group"), 0),
        ("normalise", ("none", "group"), 5e6),
    ],
)
def test_a_group_of_one(single, scopes, want):
    rows = [row(1.0, group="a"), row(3.0, group="a"), row(5.0, group="b")]
    mean, std = scopes
    got = credit(rows, {"single": single}, norm_mean=mean, norm_std=std, estimator="raw")
    assert got[2] == [want]


def test_a_group_of_equal_rewards():
    rows = [row(3.0, group="a"), row(3.0, group="a"), row(1.0, group="b"), row(2.0, group="b")]
    scopes = {"norm_mean": "batch", "norm_std": "group", "estimator": "raw"}
    assert credit(rows, {"constant": "zero"}, **scopes)[:2] == [[0], [0]]
    close(credit(rows, {"constant": "divide"}, **scopes)[0], [0.75e6])


def test_running_moments_go_on_where_the_last_call_ended(tmp_path):
    options = rlpost.Options(state=tmp_path / "state.json")
    recipe = rlpost.Recipe(estimator="raw", norm_mean="running", norm_std="running")
    moments: dict[str, ref.RunningMoments] = {}
    for rows in (ROWS[:4], ROWS[4:], ROWS):
        table, _ = rlpost.enrich(to_table(rows), recipe, options)
        want = ref.normalised_rewards(
            rows, [r.reward for r in rows], mean_of="running", std_of="running", moments=moments
        )
        close(table.column("response_level_rewards").to_pylist(), want)
    state = json.loads((tmp_path / "state.json").read_text())["running"]
    assert {name: part["count"] for name, part in state.items()} == {"a": 12, "b": 4}
    assert pa.types.is_float32(table.schema.field("response_level_rewards").type)
