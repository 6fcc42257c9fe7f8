"""The pipeline through `enrich` against the references: as a whole, and stage by stage."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import reference as ref
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import Response
from reference_pipeline import pipeline
from strategies import recipes, rollouts, to_table

import rlpost
from rlpost.errors import DataError, UsageError

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


@st.composite
def some_roles(draw):
    """Rollouts with and without process rewards and reference log-probs."""
    rows = draw(rollouts())
    lacks = draw(st.sampled_from([[], ["token_rewards"], ["token_rewards"], ["ref"]]))
    return [replace(r, **dict.fromkeys(lacks)) for r in rows]


@settings(max_examples=120)
@given(some_roles(), recipes())
def test_the_pipeline_is_the_composition_of_its_stages(rows, options):
    if rows[0].ref is None:
        options = {k: v for k, v in options.items() if k not in ("kl_coef", "kl_target")}
    if options.get("estimator") == "max_rl":  # divides by a mean, which after normalisation is 0
        options = {k: v for k, v in options.items() if k not in ("norm_mean", "norm_std")}
    if options.get("numerics", {}).get("batch") == "all":
        # Of rows that are the same turn in several batches, either may be the later one.
        turns = Counter((r.group, r.traj_id, r.turn) for r in rows)
        assume(max(turns.values()) == 1)
    agrees(rows, **options)


# Each stage alone


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


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_pp"])
@pytest.mark.parametrize(
    "options",
    [
        {"max_len_mask": True, "max_response_length": 3},
        {"max_len_mask": True, "max_response_length": 2},
        {"difficulty_mask": True},
        {"difficulty_mask": True, "difficulty_low": 0.5, "difficulty_high": 2.5},
        {"error_max_len_clip": 3},
        {"drop_zero_variance": True},
        {"drop_single": True},
        {"drop_zero_variance": True, "drop_single": True},
        {"drop_truncated": True},
        {"drop_truncated": True, "max_len_mask": True, "max_response_length": 1},
    ],
    ids="+".join,
)
def test_sample_masks(options, estimator, before):
    want = agrees(ROWS, **options, estimator=estimator, mask_before_norm=before)
    assert 0 < sum(r.kept for r in want.rows) < len(ROWS)


@pytest.mark.parametrize("mean", ["batch", "group", "running", "none"])
@pytest.mark.parametrize("std", ["batch", "group", "running", "none"])
def test_scopes_of_reward_normalisation(mean, std):
    """Where the deviation is 0 the reward is 0, whatever was to be taken from it."""
    agrees(ROWS, estimator="raw", norm_mean=mean, norm_std=std)


@pytest.mark.parametrize("batch", ["step", "step_domain", "all"])
@pytest.mark.parametrize("options", [{}, {"estimator": "reinforce_pp"}, {"length_weight": True}])
def test_what_a_batch_is(batch, options):
    agrees(ROWS, **options, numerics={"batch": batch})


@pytest.mark.parametrize(
    "options",
    [
        {"overlong_penalty": (4, 2, 0.5)},
        {"reward_clip": 0.6},
        {"kl_coef": 0.5},
        {"kl_coef": 0.5, "kl_estimator": "abs"},
        {"kl_coef": 0.5, "kl_estimator": "mse"},
        {"kl_coef": 0.5, "kl_estimator": "low_var_kl"},
        {"kl_coef": 0.5, "numerics": {"log_ratio_clamp": 0.5}},
        {"kl_coef": 0.5, "kl_target": 0.1, "kl_horizon": 5.0},
        {"kl_coef": 0.5, "reward_clip": 0.3},
        {"whiten_rewards": True},
        {"whiten_advantages": True},
        {"whiten_advantages": True, "numerics": {"whiten_eps": 0.5}},
        {"advantage_clip": 0.25},
        {"difficulty_weight": True},
        {"length_weight": True},
        {"difficulty_weight": True, "length_weight": True},
        {"numerics": {"norm_eps": 0.5}},
    ],
    ids=str,
)
@pytest.mark.parametrize("estimator", ["raw", "dr_grpo", "grpo", "gae"])
def test_every_other_option_alone(options, estimator):
    agrees(TOKENS, **options, estimator=estimator)


def test_k4_weighs_by_the_ratio_of_the_policy_in_training():
    rows = [replace(r, current=[x + 0.5 for x in r.old]) for r in TOKENS]
    want = agrees(rows, estimator="raw", kl_coef=0.5, kl_estimator="k4")
    assert want.kl[0][0] == pytest.approx(np.exp(0.5))


def test_k4_of_a_teacher_reads_the_ratio_without_a_reference_policy():
    table = pa.table(
        {
            "reward": [1.0, 0.0],
            "response_mask": [[1, 1], [1]],
            "log_probs": [[-1.0, -2.0], [-0.5]],
            "old_log_probs": [[-1.5, -2.0], [-1.0]],
            "teacher": [[-2.0, -1.0], [-1.0]],
        }
    )
    ratios = [[np.exp(0.5), 1.0], [np.exp(0.5)]]
    recipe = rlpost.Recipe(estimator="opd", teachers={"teacher": 1.0}, kl_estimator="k4")
    for policy in ("old", "current"):
        numerics = rlpost.Numerics(kl_policy=policy)
        written, _ = rlpost.enrich(table, recipe.model_copy(update={"numerics": numerics}))
        student = table["old_log_probs" if policy == "old" else "log_probs"].to_pylist()
        both = zip(student, table["teacher"].to_pylist(), ratios, strict=True)
        want = [[-r * (s - t) for s, t, r in zip(*row, strict=True)] for row in both]
        close_lists(written["advantages"].to_pylist(), want)


def test_whitening_needs_two_tokens():
    rows = [row(3.0, [1]), row(2.0, [1], batch=1), row(4.0, [1], batch=1)]
    got, _ = run(rows, estimator="raw", whiten_advantages=True)
    close_lists(got["advantages"], [[3.0], [-(0.5**0.5)], [0.5**0.5]])


# Where frameworks differ


def credit(rows, numerics, **options):
    return run(rows, numerics=numerics, **options)[0]["advantages"]


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


def test_the_reward_on_the_last_token_is_lost_where_that_is_an_observation():
    rows = [row(1.0, [1, 0, 1]), row(2.0, [1, 1, 0])]
    last = {"terminal_reward": "last_token"}
    assert credit(rows, last, estimator="reinforce") == [[1, 0, 1], [0, 0, 0]]
    assert credit(rows, {}, estimator="reinforce") == [[1, 0, 1], [2, 2, 0]]


def test_observations_may_be_states_with_a_step_of_their_own():
    rows = [row(8.0, [1, 0, 0, 1], values=[0.0] * 4)]
    skipped, states = {}, {"observations": "states"}
    for estimator in ("reinforce", "gae"):
        halves = {"estimator": estimator, "gamma": 0.5, "lam": 1.0}
        assert credit(rows, skipped, **halves) == [[4, 0, 0, 8]]
        assert credit(rows, states, **halves) == [[1, 0, 0, 8]]


def test_the_clamp_of_k3():
    rows = [row(0.0, [1, 1], old=[-9.0, -1.0], ref=[0.0, -1.0])]
    options = {"estimator": "raw", "kl_coef": 1.0, "kl_estimator": "k3"}
    assert credit(rows, {"kl_clamp": 3.0}, **options) == [[-3, -3]]
    assert credit(rows, {}, **options) == [[-10, -10]]


# Options that exclude each other


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"max_len_mask": True}, "--max-response-length"),
        ({"difficulty_low": 0.9, "difficulty_high": 0.9}, "--difficulty-high"),
        ({"kl_target": 1.0}, "--kl-coef"),
        ({"overlong_penalty": (4, 5, 1.0)}, "BUFFER"),
        ({"emit_only": True, "replace": True}, "--emit-only"),
        ({"emit": ("advantage",)}, "did you mean advantages"),
        ({"reward_clip": 0.0}, "reward_clip"),
        ({"gamma": 1.5}, "gamma"),
        ({"kl_estimator": "k5"}, "kl_estimator"),
        ({"advantage_clp": 1.0}, "did you mean advantage_clip"),
    ],
    ids=str,
)
def test_contradictions_are_named(options, names):
    with pytest.raises(UsageError, match=names):
        rlpost.Recipe.of(options)


def test_a_recipe_needs_its_columns():
    table = to_table(ROWS)
    for options, role in (
        ({"kl_coef": 0.1}, "old_log_probs"),
        ({"estimator": "gae"}, "values"),
    ):
        with pytest.raises(DataError, match=f"no column for {role}"):
            rlpost.enrich(table, rlpost.Recipe(**options))
    with pytest.raises(DataError, match="no column for group"):
        rlpost.enrich(table.drop_columns(["prompt_id"]))
    with pytest.raises(DataError, match="no column for difficulty"):
        rlpost.enrich(table.drop_columns(["difficulty"]), rlpost.Recipe(difficulty_weight=True))


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
