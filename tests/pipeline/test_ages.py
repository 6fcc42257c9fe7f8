"""The age of tokens, in policy versions: filters, weights and interpolated log-probs."""

import math

import numpy as np
import pyarrow as pa
import pytest
from summaries import whole

import rlpost
from rlpost import LossOptions, Recipe
from rlpost.errors import DataError

ROWS = 12


def table(seed, *, per_row=False):
    """Responses of steps 5 and 6 that policies of versions 2 to 5 sampled, with observations."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, ROWS)
    masks = [(rng.random(n) < 0.8).astype(int) for n in lengths]
    masks[0][0] = 1
    versions = [rng.integers(2, 6, n) for n in lengths]
    for mask, own in zip(masks, versions, strict=True):
        own[mask == 0] = -1  # AReaL's, of tokens that no policy sampled
    columns = {"response_mask": masks, "policy_version": versions}
    for name in ("old_log_probs", "log_probs", "infer_log_probs"):
        columns[name] = [-2 * rng.random(n) for n in lengths]
    lists = {name: pa.array([list(x) for x in own]) for name, own in columns.items()}
    if per_row:
        lists["policy_version"] = pa.array(rng.integers(2, 6, ROWS))
    step = np.arange(ROWS) // 6 + 5
    return pa.table(
        {"prompt_id": np.arange(ROWS) // 3, "reward": rng.random(ROWS), "step": step, **lists}
    )


def ages(data):
    """Step minus version of each token."""
    rows = zip(data["step"].to_pylist(), data["policy_version"].to_pylist(), strict=True)
    return [[step - x for x in own] for step, own in rows]


def with_row_versions_in_lists(data):
    rows = zip(data["policy_version"].to_pylist(), data["response_mask"].to_pylist(), strict=True)
    lists = pa.array([[version] * len(mask) for version, mask in rows])
    at = data.column_names.index("policy_version")
    return data.set_column(at, "policy_version", lists)


def accepted(data, level, high):
    """The policy tokens that a filter of ages keeps, in plain loops."""
    out = []
    for own, mask in zip(ages(data), data["response_mask"].to_pylist(), strict=True):
        inside = [x for x, m in zip(own, mask, strict=True) if m] or [0]
        whole = {"geometric": sum(inside) / len(inside), "max": max(inside)}.get(level)
        out.append(
            [
                int(m and (x if whole is None else whole) <= high)
                for x, m in zip(own, mask, strict=True)
            ]
        )
    return out


@pytest.mark.parametrize(("level", "high"), [("token", 2), ("geometric", 2.5), ("max", 3)])
@pytest.mark.parametrize("per_row", [False, True])
def test_filters_reject_old_tokens_and_responses(level, high, per_row):
    data = table(1, per_row=per_row)
    listed = with_row_versions_in_lists(data) if per_row else data
    recipe = Recipe(is_filter=(f"{level}:age::{high}",), emit=("final_response_mask",))
    found, summary = rlpost.enrich(data, recipe)
    want = accepted(listed, level, high)
    assert found["final_response_mask"].to_pylist() == want
    assert "engine_k1" not in summary["facts"]  # it reads no log-probs
    policy = sum(map(sum, data["response_mask"].to_pylist()))
    assert whole(summary, "rejected")["total"] == policy - sum(map(sum, want)) > 0


def test_a_decay_weighs_responses_by_their_mean_age():
    data = table(2)
    found, _ = rlpost.enrich(data, Recipe(age_decay=0.7))
    powers = []
    for own, mask in zip(ages(data), data["response_mask"].to_pylist(), strict=True):
        inside = [x for x, m in zip(own, mask, strict=True) if m]
        powers.append(0.7 ** (sum(inside) / len(inside) if inside else 0))
    for rows in (slice(0, 6), slice(6, 12)):
        scale = 6 / sum(powers[rows])
        want = [scale * x for x in powers[rows]]
        assert found["sample_weight"].to_pylist()[rows] == pytest.approx(want, rel=1e-6)


def interpolated(data, how):
    """Log-probs of the policy before the current one, as areal 1.0.4 has them:
    areal/trainer/ppo/actor.py:604, in float64."""
    out = []
    names = ("infer_log_probs", "log_probs")
    rows = zip(ages(data), *(data[name].to_pylist() for name in names), strict=True)
    for own, infer, new in rows:
        out.append([])
        for age, x, y in zip(own, infer, new, strict=True):
            share = min(max((age - 1) / age, 0.0), 1.0) if age > 0 else 0.0
            linear = math.log((1 - share) * math.exp(x) + share * math.exp(y) + 1e-10)
            out[-1].append(x + share * (y - x) if how == "loglinear" else linear)
    return out


@pytest.mark.parametrize("how", ["loglinear", "linear"])
def test_weights_filters_and_losses_use_the_interpolated_policy(how):
    data = table(4)
    at = data.column_names.index("old_log_probs")
    without = data.remove_column(at)
    twin = without.append_column("old_log_probs", pa.array(interpolated(data, how)))
    options = {"is_weight": "sequence:normalised", "is_filter": ("geometric:k3::0.2",)}
    emit = ("is_weight", "final_response_mask", "advantages")
    found, ours = rlpost.enrich(without, Recipe(**options, emit=emit, is_policy=how))
    want, theirs = rlpost.enrich(twin, Recipe(**options, emit=emit))
    for name in emit:
        pairs = zip(found[name].to_pylist(), want[name].to_pylist(), strict=True)
        for mine, other in pairs:
            assert mine == pytest.approx(other, rel=1e-6)
    for name in ("engine_k1", "engine_k3"):
        assert whole(ours, name) == pytest.approx(whole(theirs, name))
        assert whole(ours, name)["count"] > 0
    loss = rlpost.loss(without, None, None, LossOptions(behaviour=how, pg_clip=0.1))
    other = rlpost.loss(twin, None, None, LossOptions(pg_clip=0.1))
    for name, key in (("policy_loss", "mean"), ("total_loss", "mean"), ("ratio", "max")):
        numbers = [x["facts"][name]["all"][key] for x in (loss, other)]
        assert numbers[0] == pytest.approx(numbers[1])


def test_a_loss_of_stored_advantages_and_a_sweep_interpolate_too():
    data = table(5)
    enriched, _ = rlpost.enrich(data)
    stored = rlpost.loss(enriched, None, None, LossOptions(behaviour="loglinear"))
    own = rlpost.loss(data, None, None, LossOptions(behaviour="loglinear"))
    assert stored["facts"]["policy_loss"] == own["facts"]["policy_loss"]
    swept = rlpost.loss(data, sweep={"behaviour": ["old", "infer", "loglinear"]})
    losses = [x["facts"]["policy_loss"]["all"]["mean"] for x in swept["settings"]]
    assert losses[2] == own["facts"]["policy_loss"]["all"]["mean"]
    assert len({*losses}) == 3


BAD = [
    ({"columns": {"batch": "early"}}, "policy version .* is newer"),
    ({"columns": {"batch": "prompt"}}, "steps are no integers"),
    ({"columns": {"batch": "none"}}, "no column for batch"),
    ({"columns": {"policy_version": "none"}}, "no column for policy_version"),
]


@pytest.mark.parametrize(("options", "text"), BAD)
@pytest.mark.parametrize("by", [{"age_decay": 0.5}, {"is_filter": ("token:age::4",)}])
def test_ages_that_cannot_be_are_errors(by, options, text):
    names = pa.array([f"p{i // 3}" for i in range(ROWS)])
    data = table(6).append_column("prompt", names).append_column("early", pa.array([1] * ROWS))
    with pytest.raises(DataError, match=text):
        rlpost.enrich(data, Recipe(**by, **options))


def test_a_negative_version_of_a_policy_token_is_an_error():
    data = pa.table({"prompt_id": [1, 1], "reward": [0.0, 1.0], "step": [3, 3],
                     "response_mask": [[1], [1]], "policy_version": [[2], [-1]]})  # fmt: skip
    with pytest.raises(DataError, match=r"^row 1 of the input: policy version -1 is below 0"):
        rlpost.enrich(data, Recipe(age_decay=0.5))
