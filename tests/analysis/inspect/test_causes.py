"""`rlpost inspect --about mismatch`: causes that were planted in small softmax policies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from engine_and_trainer import rollouts
from inspected_files import RUN

import rlpost
from rlpost.analysis.inspect import token_sample
from rlpost.analysis.inspect.about import mismatch as about
from rlpost.cli.commands.inspect import app
from rlpost.errors import DataError

PLANTED = {
    "temperature": {"heat": 0.7},
    "truncated-sampling": {"top_p": 0.9},
    "stale-weights": {"drift": 0.05, "lagging": True},
    "failed-sync": {"drift": 0.1, "late_from": 4},
    "precision": {"noise": 0.02},
    "shift": {"shift": 1},
    "template": {"first": 1.0},
    "few-tokens": {"few": 0.01},
}
PAIRS = [
    ("temperature", "truncated-sampling"),
    ("temperature", "stale-weights"),
    ("truncated-sampling", "template"),
    ("few-tokens", "precision"),
    ("temperature", "shift"),
    ("stale-weights", "precision"),
]


def causes(table):
    """Return the causes of a table by name."""
    gap = rlpost.inspect(table).mismatch
    return {one.name: one for one in gap.causes}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_cause_is_the_first(name):
    found = causes(rollouts(**PLANTED[name])[0])
    assert next(iter(found)) == name
    assert found[name].share > 0.7


@pytest.mark.parametrize("pair", PAIRS)
def test_both_of_two_planted_causes_are_named(pair):
    found = causes(rollouts(**PLANTED[pair[0]], **PLANTED[pair[1]])[0])
    assert {*pair} <= {*found}
    assert sum(one.share for one in found.values()) <= 1.001


@pytest.mark.parametrize(("seed", "noise"), [(0, 0.0), (1, 5e-4), (2, 1e-3)])
def test_clean_rollouts_have_no_cause(seed, noise):
    assert causes(rollouts(seed=seed, noise=noise)[0]) == {}


def test_estimates_are_those_planted():
    table, kept = rollouts(top_p=0.9)
    found = causes(table)["truncated-sampling"].estimate
    assert found["kept_mass"] == pytest.approx(kept, abs=0.01)
    assert found["lowest_mass"] == pytest.approx(0.9, abs=0.01)
    found = causes(rollouts(heat=1.25)[0])["temperature"].estimate
    assert found["temperature"] == pytest.approx(1.25, abs=0.03)
    assert found["side"] == "engine"
    steps = causes(rollouts(drift=0.1, late_from=4)[0])["failed-sync"].estimate["labels"]
    assert steps == [4, 5, 6, 7]


def test_an_engine_that_keeps_its_first_weights_is_a_failed_sync():
    """martingale's published case, in a dump of a small model that it was repeated with."""
    dump = Path(__file__).parent / "first_weights.parquet"
    gap = rlpost.inspect(dump).mismatch
    assert gap.k1 == pytest.approx(0.41, abs=0.005)
    assert gap.max_abs == pytest.approx(7.47, abs=0.005)
    assert (gap.causes[0].name, gap.causes[0].sure) == ("failed-sync", "high")
    assert gap.causes[0].share > 0.99
    assert gap.causes[0].estimate["labels"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("planted", "change"),
    [
        ({"heat": 0.7}, "trainer"),
        ({"heat": 0.8, "heat_of": "trainer"}, "engine"),  # which returns raw log-probs
        ({"heat": 0.7, "top_p": 0.9}, "either"),
    ],
)
def test_the_side_to_change_is_the_one_that_tokens_were_not_sampled_from(planted, change):
    found = causes(rollouts(**planted)[0])["temperature"]
    assert found.change == change
    ratios = found.estimate["mean_ratio"], found.estimate["mean_inverse_ratio"]
    if change != "either":
        assert min(ratios) == pytest.approx(1, abs=0.02)
        assert ratios.index(min(ratios)) == ["trainer", "engine"].index(change)


def other_groups(table, **columns):
    """Return the table with groups whose responses have different contexts."""
    number = len(table)
    mixed = pa.array(np.arange(number) % (number // 4))
    table = table.set_column(table.schema.get_field_index("prompt_id"), "prompt_id", mixed)
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    return table


def test_contexts_are_those_of_prompts_in_groups_of_other_prompts():
    """Rows of a group need not share a prompt: a difference between them is no evidence then."""
    table = rollouts(heat=0.7, drift=0.02, lagging=True)[0]
    table = table.set_column(
        table.schema.get_field_index("step"), "step", pa.array(np.zeros(len(table), np.int64))
    )
    table = table.drop_columns("policy_version")
    prompts = [f"question {row // 4}" for row in range(len(table))]
    right = causes(table.append_column("prompt", pa.array(prompts)))
    assert "pairs of responses with one prompt" in right["temperature"].evidence
    assumed = causes(other_groups(table))["temperature"]
    assert "assumed" in assumed.evidence
    guarded = causes(other_groups(table, prompt=prompts))
    assert [*guarded] == ["temperature"]
    assert "unknown" in guarded["temperature"].evidence


@pytest.mark.parametrize("turns", [True, False])
def test_later_turns_have_contexts_of_their_own(turns):
    table = rollouts(heat=0.7, responses=512)[0]
    table = table.append_column("rollout_id", pa.array(np.arange(len(table)) // 2))
    if turns:
        table = table.append_column("turn", pa.array(np.arange(len(table)) % 2))
    evidence = causes(table)["temperature"].evidence
    assert ("unknown" not in evidence) == turns


def shares_of(causes_, unexplained):
    """Return the labels and percentages of the page's table."""
    gap = replace(rlpost.inspect(rollouts(heat=0.7, responses=32)[0]).mismatch)
    one = gap.causes[0]
    found = [replace(one, name=name, share=share) for name, share in causes_]
    table = about.causes_table(replace(gap, causes=found, unexplained=unexplained))
    return [(row[0], row[1]) for row in table.rows]


def test_shares_add_up_and_small_causes_are_one_row():
    named = [("temperature", 0.5836), ("stale-weights", 0.3004), ("template", 0.008)]
    rows = shares_of([*named, ("shift", 0.004), ("other", 0.104)], 0.104)
    assert [label for label, _ in rows] == [
        "temperature", "stale-weights", "others", "unexplained"
    ]  # fmt: skip
    assert sum(float(text.split()[0]) for _, text in rows) == pytest.approx(100)
    assert shares_of([("shift", 0.6595), ("template", 0.3405)], 0.0) == [
        ("shift", "66.0 %"), ("template", "34.0 %")
    ]  # fmt: skip
    assert shares_of([("shift", 1.0)], 0.0) == [("shift", "100 %")]
    assert shares_of([("other", 1.0)], 1.0) == [("unexplained", "100 %")]


def test_a_policy_that_is_always_one_version_old_is_the_side_to_change():
    table = rollouts(drift=0.1, late_from=0)[0]
    table = table.filter(pc.equal(table["step"], 0))
    table = table.set_column(
        table.schema.get_field_index("policy_version"),
        "policy_version",
        pa.array(np.full(len(table), -1)),
    )
    found = causes(table)["stale-weights"]
    assert (found.change, found.sure) == ("engine", "low")
    assert "1 version older" in found.evidence


def test_one_machine_without_new_weights_is_named():
    found = causes(rollouts(drift=0.1, bad_host=2)[0])["failed-sync"]
    assert found.estimate["column"] == "host"
    assert found.estimate["labels"] == ["node2"]


def test_the_first_tokens_after_observations_show_a_template():
    found = causes(rollouts(first=1.0, turn=12)[0])["template"]
    assert found.estimate["first_tokens"] == 1
    assert "observation" in found.estimate["where"]


def test_tokens_that_neither_side_logged_as_sampled_show_in_the_entropy():
    """Engine and trainer agree on the log-probs, but another temperature sampled."""
    table, _ = rollouts(heat=1.3)
    raw = table.set_column(
        table.schema.get_field_index("infer_log_probs"), "infer_log_probs", table["old_log_probs"]
    )
    assert [*causes(raw)] == ["temperature"]


def test_a_sample_has_the_same_tokens_in_any_order_of_rows_and_chunks(monkeypatch, tmp_path):
    monkeypatch.setattr(token_sample, "MOST_TOKENS", 4000)
    table, _ = rollouts(heat=0.8)
    pq.write_table(table, tmp_path / "a.parquet")
    order = np.random.default_rng(0).permutation(len(table))
    pq.write_table(table.take(order), tmp_path / "b.parquet", row_group_size=9)
    gaps = [rlpost.inspect(tmp_path / f"{x}.parquet").mismatch for x in "ab"]
    assert gaps[0].sampled <= 4000 < gaps[0].tokens
    assert [one.sampled for one in gaps] == [gaps[0].sampled] * 2
    assert gaps[0].causes == gaps[1].causes
    assert gaps[0].causes[0].estimate["temperature"] == pytest.approx(0.8, abs=0.05)


def test_the_largest_tokens_are_where_they_are_said_to_be():
    table, _ = rollouts(few=0.01, turn=12)
    for one in rlpost.inspect(table).mismatch.largest:
        for role, value in (("infer_log_probs", one.infer), ("old_log_probs", one.old)):
            assert table[role][one.row].as_py()[one.position] == value


def test_corrections_touch_what_a_run_reports():
    table, _ = rollouts(drift=0.1, lagging=True)
    gap = rlpost.inspect(table).mismatch
    by_options = {one.options: one for one in gap.corrections}
    recipe = {"estimator": "grpo", "is_weight": "token", "is_cap": 2.0}
    enriched, _ = rlpost.enrich(table, rlpost.Recipe(**recipe))
    weights = enriched["is_weight"].combine_chunks().flatten().to_numpy()
    touched = by_options["--is-weight token --is-cap 2"]
    assert touched.tokens == pytest.approx((weights == 2).mean(), abs=1e-9)
    recipe = {"estimator": "grpo", "is_weight": "sequence", "is_cap": 2.0}
    enriched, _ = rlpost.enrich(table, rlpost.Recipe(**recipe))
    rows = np.array([own[0] for own in enriched["is_weight"].to_pylist()])
    touched = by_options["--is-weight sequence --is-cap 2"]
    assert touched.responses == pytest.approx((rows == 2).mean(), abs=1e-9)
    assert touched.ess == pytest.approx(rows.sum() ** 2 / (len(rows) * (rows @ rows)), rel=1e-5)


def test_the_page_names_cause_advice_and_correction(tmp_path):
    pq.write_table(rollouts(drift=0.1, lagging=True)[0], tmp_path / "a.parquet")
    done = RUN.invoke(app, [str(tmp_path / "a.parquet"), "--about", "mismatch"])
    assert done.exit_code == 0
    for text in ("stale-weights", "--is-weight", "rlpost advantages", "Tokens that differ most"):
        assert text in done.output
    done = RUN.invoke(app, [str(tmp_path / "a.parquet"), "--format", "json"])
    first = json.loads(done.output)["mismatch"]["causes"][0]
    assert (first["name"], {"share", "estimate", "evidence"} <= first.keys()) == (
        "stale-weights",
        True,
    )


@pytest.mark.parametrize("role", ["old_log_probs", "infer_log_probs"])
def test_without_both_log_probs_the_topic_is_an_error(role, tmp_path):
    pq.write_table(rollouts(responses=8)[0].drop_columns(role), tmp_path / "a.parquet")
    done = RUN.invoke(app, [str(tmp_path / "a.parquet"), "--about", "mismatch"])
    assert isinstance(done.exception, DataError)
    assert role in str(done.exception)
    assert RUN.invoke(app, [str(tmp_path / "a.parquet"), "--verbose"]).exit_code == 0


def test_few_tokens_do_not_change_the_kept_mass():
    table, kept = rollouts(top_p=0.9, few=0.01)
    found = causes(table)
    assert {*found} == {"truncated-sampling", "few-tokens"}
    assert found["truncated-sampling"].estimate["kept_mass"] == pytest.approx(kept, abs=0.01)
