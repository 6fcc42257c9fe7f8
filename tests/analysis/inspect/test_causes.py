"""`rlpost inspect --about mismatch`: causes that were planted in small softmax policies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from engine_and_trainer import rollouts
from inspected_files import RUN
from runs import loads

import rlpost
from rlpost.analysis.inspect import token_sample
from rlpost.analysis.inspect.about import tokens as about
from rlpost.cli.app import app_of

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


LABELS = {
    "steps": ({"drift": 0.1, "late_from": 4}, "failed-sync", {"labels": [4, 5, 6, 7]}),
    "a machine": (
        {"drift": 0.1, "bad_host": 2}, "failed-sync", {"column": "host", "labels": ["node2"]}
    ),
    "turns": (
        {"first": 1.0, "turn": 12}, "template", {"where": "first tokens after observations"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LABELS)
def test_a_cause_is_where_it_was_planted(case):
    planted, name, where = LABELS[case]
    estimate = causes(rollouts(**planted)[0])[name].estimate
    assert {part: estimate[part] for part in where} == where


def test_estimates_are_those_planted():
    table, kept = rollouts(top_p=0.9)
    found = causes(table)["truncated-sampling"].estimate
    assert found["kept_mass"] == pytest.approx(kept, abs=0.01)
    assert found["lowest_mass"] == pytest.approx(0.9, abs=0.01)
    for heat, names in ((1.25, []), (0.7, []), (1.25, ["entropy"]), (0.7, ["entropy"])):
        found = causes(rollouts(heat=heat)[0].drop_columns(names))["temperature"].estimate
        assert found["temperature"] == pytest.approx(heat, abs=3 * found["error"])
        assert found["error"] < 0.005
        assert found["side"] == "engine"


def test_an_engine_that_keeps_its_first_weights_is_a_failed_sync():
    """martingale's published case, in a dump of a small model that it was repeated with."""
    dump = Path(__file__).parent / "first_weights.parquet"
    facts = rlpost.inspect(dump)
    gap = facts.mismatch
    assert facts.whole("engine_k1")["mean"] == pytest.approx(0.41, abs=0.005)
    assert facts.whole("engine_gap")["max"] == pytest.approx(7.47, abs=0.005)
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


def cut_to_bfloat16(table):
    """Return rollouts whose engine log-probs lose bits: all of them are higher then."""
    values = table["infer_log_probs"].combine_chunks()
    bits = values.flatten().to_numpy().view(np.uint32) & 0xFFFF0000
    cut = pa.ListArray.from_arrays(values.offsets, pa.array(bits.view(np.float32)))
    at = table.schema.get_field_index("infer_log_probs")
    return table.set_column(at, "infer_log_probs", cut)


@pytest.mark.parametrize("outliers", [0, 3])
@pytest.mark.parametrize("without", [[], ["entropy"]])
def test_log_probs_that_are_cut_to_bfloat16_are_precision_alone(outliers, without):
    """Their d is that of tokens which top-p keeps, and grows with surprisal as by a temperature."""
    table = cut_to_bfloat16(rollouts()[0]).drop_columns(without)
    old = table["old_log_probs"].to_pylist()
    for row in range(outliers):
        old[row][9] -= 0.5
    at = table.schema.get_field_index("old_log_probs")
    named = causes(table.set_column(at, "old_log_probs", pa.array(old, pa.list_(pa.float32()))))
    assert {*named} == {"precision"}
    assert named["precision"].change == "engine"
    assert named["precision"].estimate["engine"] == "bfloat16"


@pytest.mark.parametrize("top_p", [0.9, 0.95, 0.98, 0.99])
def test_truncated_sampling_that_rounding_could_nearly_make_is_named(top_p):
    table, kept = rollouts(top_p=top_p)
    named = causes(table)
    assert {*named} == {"truncated-sampling"}
    assert named["truncated-sampling"].estimate["kept_mass"] == pytest.approx(kept, abs=0.005)


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
    assert "1 to 1 versions older" in found.evidence


def test_the_last_tokens_of_responses_are_a_place():
    table, _ = rollouts(noise=0.003)
    old = [row[: 20 + at % 29] for at, row in enumerate(table["old_log_probs"].to_pylist())]
    infer = [row[: 20 + at % 29] for at, row in enumerate(table["infer_log_probs"].to_pylist())]
    infer = [[*row[:-1], row[-1] - 1] for row in infer]
    table = pa.table({"reward": table["reward"], "old_log_probs": old, "infer_log_probs": infer})
    cause = rlpost.inspect(table).mismatch.causes[0]
    assert (cause.name, cause.sure) == ("last-token", "high")
    assert cause.estimate["where"] == "last tokens of responses"


def test_a_fill_value_is_named_before_any_cause():
    table, _ = rollouts(noise=0.01)
    infer = [
        [0.0] * 40 + row[40:] if at % 4 == 0 else row
        for at, row in enumerate(table["infer_log_probs"].to_pylist())
    ]
    at = table.schema.get_field_index("infer_log_probs")
    facts = rlpost.inspect(table.set_column(at, "infer_log_probs", pa.array(infer)))
    fill, precision = facts.mismatch.causes
    assert (fill.name, fill.change, fill.estimate) == ("fill-value", "engine", {"value": 0.0})
    assert "exactly 0 in" in fill.evidence
    assert (precision.name, precision.share < 0.01) == ("precision", True)
    texts = [one.text for one in facts.findings if one.check == "engine_mismatch"]
    assert "likeliest cause: fill-value" in texts[0]
    constant = pa.array([[-0.5] * len(row) for row in table["old_log_probs"].to_pylist()])
    near = pc.subtract(
        constant.flatten(),
        np.abs(np.random.default_rng(0).normal(0, 0.01, len(constant.flatten()))),
    )
    near = pa.ListArray.from_arrays(constant.offsets, near)
    of_one_value = pa.table({"old_log_probs": constant, "infer_log_probs": near})
    assert [*causes(of_one_value)] == ["fill-value"]
    # Truncation leaves a single token, whose log-prob is 0, in many contexts.
    assert "fill-value" not in causes(rollouts(heat=0.7, top_p=0.9)[0])


def test_a_fill_value_of_a_step_is_no_failed_sync_and_the_rest_of_truncation_no_outliers():
    """Filled tokens of which the other side is certain are filled, too."""
    table, _ = rollouts(noise=1e-5, sure=3.0)
    steps, random = table["step"].to_pylist(), np.random.default_rng(0)
    filled = [
        [0.0 if step == 3 or random.random() < 0.03 else x for x in row]
        for step, row in zip(steps, table["old_log_probs"].to_pylist(), strict=True)
    ]
    at = table.schema.get_field_index("old_log_probs")
    assert [*causes(table.set_column(at, "old_log_probs", pa.array(filled)))] == ["fill-value"]
    assert [*causes(rollouts(top_p=0.97)[0])] == ["truncated-sampling"]


def test_a_cause_of_high_likelihood_is_a_finding_and_noise_is_none():
    for planted, finds in ((PLANTED["truncated-sampling"], True), ({"heat": 0.95}, True),
                           ({"noise": 0.025}, False)):  # fmt: skip
        facts = rlpost.inspect(rollouts(**planted)[0])
        assert facts.whole("engine_k3")["mean"] < 0.01
        assert any(x.check == "engine_mismatch" for x in facts.findings) == finds
        assert (about.mismatch(facts).verdict.severity == "warning") == finds


def test_a_shift_of_one_step_is_a_shift():
    table, _ = rollouts(noise=0.002)
    rows = zip(table["step"].to_pylist(), table["old_log_probs"].to_pylist(), strict=True)
    moved = [[row[-1], *row[:-1]] if step == 4 else row for step, row in rows]
    at = table.schema.get_field_index("old_log_probs")
    facts = rlpost.inspect(table.set_column(at, "old_log_probs", pa.array(moved)))
    shift, *others = facts.mismatch.causes
    assert (shift.name, shift.sure, shift.share > 0.99) == ("shift", "high", True)
    assert "of the token after in step 4: " in shift.evidence
    assert {x.name for x in others} <= {"precision"}


def test_a_gap_without_a_measurable_effect_has_a_cause_and_no_advice(tmp_path):
    for noise, advised in ((0.01, False), (0.03, True)):
        pq.write_table(rollouts(noise=noise)[0], tmp_path / "a.parquet")
        (cause,) = rlpost.inspect(tmp_path / "a.parquet").mismatch.causes
        assert (cause.name, bool(cause.advice)) == ("precision", advised)
        done = RUN.invoke(app_of("inspect"), [str(tmp_path / "a.parquet"), "--about", "mismatch"])
        assert ("too small to have a measurable effect" in done.output) != advised
        assert ("to do:" in done.output) == advised


def unlogged(noise, **sampling):
    """Return rollouts in which both sides log what did not sample: raw log-probs, but for noise."""
    table, _ = rollouts(responses=1024, **sampling)
    random = np.random.default_rng(0)
    infer = [
        [min(x + noise * random.normal() * min(1, -x), 0) for x in row]
        for row in table["old_log_probs"].to_pylist()
    ]
    at = table.schema.get_field_index("infer_log_probs")
    return table.set_column(at, "infer_log_probs", pa.array(infer, pa.list_(pa.float32())))


@pytest.mark.parametrize("noise", [0.0, 0.003])
@pytest.mark.parametrize(
    ("sampling", "names"),
    [
        ({"heat": 1.3}, ["temperature"]),
        ({"heat": 0.7}, ["temperature", "truncated-sampling"]),  # too few tokens to tell
        ({"top_p": 0.8, "sure": 3.0}, ["truncated-sampling"]),
        ({"heat": 0.7, "sure": 3.0}, ["temperature"]),
        ({}, []),
    ],
)
def test_tokens_that_neither_side_logged_as_sampled_show_in_the_entropy(noise, sampling, names):
    found = [*causes(unlogged(noise, **sampling)).values()]
    assert [one.name for one in found if not one.share] == names
    assert [one.name for one in found if one.share] == (["precision"] if noise else [])
    assert all(one.sure == ("low" if len(names) > 1 else "high") for one in found if not one.share)


def test_no_fewer_rare_tokens_than_expected_are_no_truncated_sampling():
    table, _ = rollouts(heat=0.9, seed=10)
    at = table.schema.get_field_index("infer_log_probs")
    table = table.set_column(at, "infer_log_probs", table["old_log_probs"])
    (cause,) = rlpost.inspect(table).mismatch.causes
    assert (cause.name, cause.share, cause.sure) == ("temperature", 0, "low")
    assert "5 others were sampled: 5 would be" in cause.evidence


def test_a_sample_has_the_same_tokens_in_any_order_of_rows_and_chunks(monkeypatch, tmp_path):
    monkeypatch.setattr(token_sample, "MOST_TOKENS", 4000)
    table, _ = rollouts(heat=0.8)
    pq.write_table(table, tmp_path / "a.parquet")
    order = np.random.default_rng(0).permutation(len(table))
    pq.write_table(table.take(order), tmp_path / "b.parquet", row_group_size=9)
    facts = [rlpost.inspect(tmp_path / f"{x}.parquet") for x in "ab"]
    gaps = [x.mismatch for x in facts]
    assert gaps[0].sampled <= 4000 < facts[0].whole("engine_gap")["count"]
    assert [one.sampled for one in gaps] == [gaps[0].sampled] * 2
    assert gaps[0].causes == gaps[1].causes
    assert gaps[0].causes[0].estimate["temperature"] == pytest.approx(0.8, abs=0.05)


def test_the_largest_tokens_are_where_they_are_said_to_be():
    table, _ = rollouts(few=0.01, turn=12)
    for one in rlpost.inspect(table).mismatch.largest:
        for role, value in (("infer_log_probs", one.infer), ("old_log_probs", one.old)):
            assert table[role][one.row].as_py()[one.position] == value


def test_the_page_names_cause_advice_and_tokens(tmp_path):
    pq.write_table(rollouts(drift=0.1, lagging=True)[0], tmp_path / "a.parquet")
    done = RUN.invoke(app_of("inspect"), [str(tmp_path / "a.parquet"), "--about", "mismatch"])
    assert done.exit_code == 0
    titles = ("Causes", "Engine ‖ trainer", "Tokens that differ most", "! likeliest cause")
    assert sorted(titles, key=done.output.index) == list(titles)
    assert "to do: bound the policy's age" in done.output
    done = RUN.invoke(app_of("inspect"), [str(tmp_path / "a.parquet"), "--format", "json"])
    first = loads(done.output)["mismatch"]["causes"][0]
    assert (first["name"], {"share", "estimate", "evidence"} <= first.keys()) == (
        "stale-weights",
        True,
    )


def test_few_tokens_do_not_change_the_kept_mass():
    table, kept = rollouts(top_p=0.9, few=0.01)
    found = causes(table)
    assert {*found} == {"truncated-sampling", "few-tokens"}
    assert found["truncated-sampling"].estimate["kept_mass"] == pytest.approx(kept, abs=0.01)
