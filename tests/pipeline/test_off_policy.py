"""The off-policy correction in the pipeline: weights and filters against plain loops, and laws."""

import math

import pyarrow as pa
import pytest
import reference_corrections as slow
from corrected_rows import LEVELS, close, row
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import rollouts, to_table
from summaries import numbers, whole

import rlpost
from rlpost import Options, Recipe
from rlpost.errors import DataError, UsageError

FILTERS = (
    ("token", "ratio", 0.71, 1.43),
    ("segment", "diff", -0.113, 0.117),
    ("geometric", "k3", -math.inf, 0.0371),
    ("sequence", "k1", -0.613, 0.717),
    ("max", "k2", -math.inf, 0.0931),
    ("token", "tv", -math.inf, 0.317),
    ("geometric", "error", -math.inf, 1.231),
)
EMIT = ("advantages", "returns", "sample_mask", "final_response_mask")


def written(one):
    level, measure, *bounds = one
    return ":".join([level, measure, *("" if math.isinf(x) else repr(x) for x in bounds)])


def lists(table, name):
    return table[name].to_pylist()


def enriched(rows, **options):
    """The new columns and the summary; cases with nothing left are passed over."""
    emit = (*EMIT, "is_weight") if "is_weight" in options else EMIT
    return unless_nothing_is_left(to_table(rows), Recipe(estimator="raw", emit=emit, **options))


def unless_nothing_is_left(table, recipe):
    try:
        return rlpost.enrich(table, recipe)
    except DataError:
        assume(False)  # noqa: FBT003
        raise


@settings(max_examples=20)
@given(
    rollouts(),
    st.sampled_from(LEVELS),
    st.sampled_from([{}, {"cap": 1.21}, {"cap": 1.3, "floor": 0.83}]),
    st.sampled_from([None, (0.77, 1.29)]),
    st.booleans(),
)
def test_weights_of_the_pipeline_are_those_of_the_loops(rows, level, limits, bounds, normalise):
    cap = (limits.get("floor"), limits["cap"]) if limits else None
    weight = level + ":normalised" * normalise
    table, summary = enriched(rows, is_weight=weight, is_mask=bounds, is_cap=cap)
    plain = {**limits, "bounds": bounds} if bounds else limits
    want = slow.weights(rows, level, normalise=normalise, **plain)
    close(lists(table, "is_weight"), want)
    flat_masks = [m for one in rows for m in one.mask]
    own = [w for w, m in zip((w for xs in want for w in xs), flat_masks, strict=True) if m]
    ess = slow.effective_share(own)
    assert whole(summary, "weight_ess")["value"] == (None if ess is None else pytest.approx(ess))


@settings(max_examples=20)
@given(rollouts(), st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3, unique=True))
def test_filters_of_the_pipeline_are_those_of_the_loops(rows, filters):
    options = {"is_filter": [written(one) for one in filters], "is_weight": "token"}
    table, summary = enriched(rows, **options)
    whole = [one for one in filters if one[0] not in ("token", "segment")]
    kept = [all(low <= x <= high for level, measure, low, high in whole
                for x in slow.divergences(one, measure, level)[:1]) for one in rows]  # fmt: skip
    masks = [slow.accepted(one, filters) for one in rows]
    assert lists(table, "final_response_mask") == masks
    stays = [k for k, one in zip(kept, rows, strict=True) if one.mask]
    got = [k for k, one in zip(lists(table, "sample_mask"), rows, strict=True) if one.mask]
    assert got == stays
    for name in ("advantages", "returns", "is_weight"):
        zeros = [x == 0 for xs in lists(table, name) for x in xs]
        assert all(z for z, m in zip(zeros, (m for ms in masks for m in ms), strict=True) if not m)
    facts = numbers(summary)
    rejected = sum(map(sum, (one.mask for one in rows))) - sum(map(sum, masks))
    assert facts["rejected"]["total"] == rejected
    assert facts["rejected"]["count"] == sum(map(sum, (one.mask for one in rows)))
    names = [name.removeprefix("rejected:") for name in facts if name.startswith("rejected:")]
    assert names == [str(one) for one in Recipe(**options).is_filter]
    for one, name in zip(filters, names, strict=True):
        alone = [slow.accepted(one_row, [one]) for one_row in rows]
        pairs = [sum(r.mask) - sum(own) for r, own in zip(rows, alone, strict=True)]
        assert facts[f"rejected:{name}"]["total"] == sum(pairs)
        assert facts[f"rejected_responses:{name}"]["total"] == sum(n > 0 for n in pairs)


@settings(max_examples=20)
@given(rollouts())
def test_the_summary_says_how_far_the_policies_are_apart(rows):
    _, summary = enriched(rows, is_weight="token")
    own = [
        (o, i) for one in rows for o, i, m in zip(one.old, one.infer, one.mask, strict=True) if m
    ]
    for name in ("k1", "k3"):
        values = [slow.token_value(o, i, name, 40.0) for o, i in own]
        assert whole(summary, f"engine_{name}")["mean"] == (
            pytest.approx(slow.mean(values), abs=1e-9) if own else None
        )
    names = {"token": "engine_chi2", "sequence": "engine_chi2_responses"}
    for name, value in slow.chi_squares(rows).items():
        want = pytest.approx(value, rel=1e-6, abs=1e-9) if own else None
        assert whole(summary, names[name])["mean"] == want
    wrong = sum(math.exp(i) >= 0.5 and abs(o - i) > 2 for o, i in own)
    assert whole(summary, "confident_disagreement")["total"] == wrong
    assert whole(summary, "engine_k1")["count"] == len(own)
    assert whole(summary, "engine_chi2_responses")["count"] == sum(1 in one.mask for one in rows)


@pytest.mark.parametrize(
    ("kind", "observation"), [("zero", [0.0, 0.0]), ("one", [1.0, 1.0]), ("ratio", [2.0, 1.0])]
)
def test_observations_weigh_what_the_numerics_say(kind, observation):
    rows = [row([math.log(x) for x in (0.5, 0.8)], [math.log(x) for x in (0.4, 0.4)], [1, 0])]
    for level, want in zip(("token", "segment"), observation, strict=True):
        options = {"is_weight": level, "numerics": {"is_observations": kind}}
        table, _ = enriched(rows, **options)
        assert lists(table, "is_weight")[0] == pytest.approx([1.25, want], rel=1e-3)


@settings(max_examples=20)
@given(rollouts(), st.sampled_from(["negative", "diverging"]))
def test_filters_may_spare_tokens_by_their_advantage(rows, where):
    filters = [f"geometric:k3::0.0371:{where}", f"token:ratio:0.71:1.43:{where}"]
    table, _ = enriched(rows, is_filter=filters)
    plain, _ = rlpost.enrich(to_table(rows), Recipe(estimator="raw"))
    pairs = [("geometric", "k3", -math.inf, 0.0371), ("token", "ratio", 0.71, 1.43)]
    for one, credit, got in zip(
        rows, lists(plain, "advantages"), lists(table, "final_response_mask"), strict=True
    ):
        inside = slow.accepted(one, pairs)
        for t, own in enumerate(one.mask):
            apart = one.old[t] - one.infer[t]
            spared = credit[t] >= 0 if where == "negative" else credit[t] * apart <= 0
            assert got[t] == (own and (inside[t] or spared))
    assert all(lists(table, "sample_mask"))


def test_a_filter_that_drops_everything_is_an_error():
    rows = [row([-1.0], [-3.0])]
    with pytest.raises(DataError, match=r"no response is left of 1: max:k2::0.1 keeps 0"):
        rlpost.enrich(to_table(rows), Recipe(is_filter=("max:k2::0.1",)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"is_cap": 2}, "--is-cap without --is-weight"),
        ({"is_cap": 2, "is_mask": (1, 2)}, "--is-cap and --is-mask without --is-weight"),
        ({"is_weight": "token", "is_cap": (2, 1)}, "FLOOR under CAP"),
        ({"is_weight": "token", "is_mask": (2, 1)}, "LOW under HIGH"),
        ({"is_weight": "tokens"}, "is_weight"),
        ({"is_filter": ["token:ratio:1:2:positive"]}, "none of any, negative, diverging"),
        ({"is_filter": ["token:ratio:1"]}, "LEVEL:MEASURE:LOW:HIGH"),
        ({"is_filter": ["tokens:ratio:1:2"]}, "none of token"),
        ({"is_filter": ["token:k4:1:2"]}, "none of ratio"),
        ({"is_filter": ["token:ratio:2:1"]}, "LOW must be under HIGH"),
        ({"is_filter": ["token:ratio::"]}, "LOW or HIGH is needed"),
        ({"is_filter": ["token:ratio:a:"]}, "'a' is no number"),
        ({"is_policy": "current"}, "--is-policy current needs"),
    ],
)
def test_options_that_do_not_fit_are_named(options, text):
    with pytest.raises(UsageError, match=text):
        Recipe.of(options)


def test_what_is_missing_is_named():
    table = to_table([row([-1.0], [-1.0])], without=["infer_log_probs"])
    with pytest.raises(DataError, match="infer_log_probs"):
        rlpost.enrich(table, Recipe(is_weight="token"))
    with pytest.raises(UsageError, match="--emit is_weight needs --is-weight"):
        rlpost.enrich(table, Recipe(emit=("is_weight",)))


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        ("gae", {"whiten_advantages": True, "gamma": 0.9}),
        ("reinforce_pp", {"gamma": 0.9}),
        ("reinforce_pp_baseline", {}),
        ("grpo", {"whiten_rewards": True}),
        ("opo", {}),
        ("optimal_token_baseline", {"options": {"position": "policy_token"}}),
    ],
)
@given(
    rows=rollouts(),
    chunk=st.sampled_from([8, 10_000]),
    chosen=st.sampled_from([("token:k2::0.02",), ("geometric:k1:-0.05:0.2", "token:k3::0.1")]),
)
@settings(max_examples=10)
def test_tokens_that_are_rejected_first_count_as_observations(
    estimator, options, rows, chunk, chosen
):
    """The same numbers as for an input whose mask is without them."""
    emit = ("advantages", "returns", "final_response_mask")
    first = {**options, "numerics": {**options.get("numerics", {}), "correction": "first"}}
    recipe = Recipe(estimator=estimator, is_filter=chosen, emit=emit, **first)
    table = to_table(rows)
    try:
        got, _ = rlpost.enrich(table, recipe, Options(chunk_tokens=chunk))
    except DataError:
        assume(False)  # noqa: FBT003
    left = got["final_response_mask"]
    place = table.schema.get_field_index("response_mask")
    without = table.set_column(place, "response_mask", left)
    plain = Recipe(estimator=estimator, emit=emit, **options)
    want, _ = rlpost.enrich(without, plain)
    for name in ("advantages", "returns"):
        close(lists(got, name), lists(want, name), rtol=1e-5, atol=1e-5)


def test_rejection_by_advantage_cannot_come_first():
    recipe = Recipe(is_filter=["token:k2::0.5:negative"], numerics={"correction": "first"})
    with pytest.raises(UsageError, match=r"--is-filter token:k2::0\.5:negative: needs advantages"):
        rlpost.enrich(to_table([row([-1.0], [-1.0])]), recipe)


def test_a_response_with_a_bad_number_weighs_0_and_leaves_every_mean():
    rows = [row([-1.0, -1.0], [-1.5, -1.25]), row([-1.0], [-1.5])]
    table = to_table(rows)
    bad = pa.array([[-1.5, math.nan], [-1.5]], pa.list_(pa.float32()))
    table = table.set_column(table.column_names.index("infer_log_probs"), "infer_log_probs", bad)
    recipe = Recipe(is_weight="token:normalised", nonfinite="mask", is_filter=("max:k2::9",))
    out, summary = rlpost.enrich(table, recipe)
    assert lists(out, "is_weight") == [[0.0, 0.0], [1.0]]
    assert whole(summary, "rejected")["count"] == 1


@pytest.mark.parametrize("missing", [None, math.nan])
@pytest.mark.parametrize("options", [
    {"is_weight": "token"}, {"is_weight": "sequence"}, {"is_filter": ("token:ratio:0.5:2",)},
    {"is_weight": "token", "is_policy": "current"},
])  # fmt: skip
def test_a_token_without_an_engine_log_prob_has_ratio_1(options, missing):
    """Its response is as one whose engine has the trainer's log-prob there."""
    old = [[-0.5, -0.01, -0.2], [-0.3, -0.4], [-0.9]]
    rows = {
        "prompt_id": ["a", "a", "a"], "reward": [1.0, 0.0, 0.5], "old_log_probs": old,
        "log_probs": old, "infer_log_probs": [[-0.52, missing, -0.21], [-0.31, -0.41], [-0.8]],
    }  # fmt: skip
    numerics = rlpost.Numerics(is_missing="one")
    recipe = Recipe(estimator="grpo", numerics=numerics, **options)
    lacking, complete = (
        pa.table(rows),
        pa.table(rows | {"infer_log_probs": [[-0.52, -0.01, -0.21], [-0.31, -0.41], [-0.8]]}),
    )
    out = rlpost.enrich(lacking, recipe)[0].drop_columns(["infer_log_probs"])
    assert out.equals(rlpost.enrich(complete, recipe)[0].drop_columns(["infer_log_probs"]))
    with pytest.raises(DataError, match="gives such a token weight 1"):
        rlpost.enrich(lacking, Recipe(estimator="grpo", **options))
    infinite = pa.table(
        rows | {"infer_log_probs": [[-0.52, -math.inf, -0.21], [-0.31, -0.41], [-0.8]]}
    )
    with pytest.raises(DataError, match="has -inf at token 1"):
        rlpost.enrich(infinite, recipe)
