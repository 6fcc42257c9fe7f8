"""Totals of losses: clipped shares, ratios, quantiles and details equal plain computations."""

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from loss_runs import dump, policy_tokens, ppo, save, summary_of

from rlpost.losses.config import LossConfig
from rlpost.pipeline.loss_metrics import LossSetting, report_batch
from rlpost.pipeline.totals import Totals
from rlpost.recipe.loss import LossOptions


def test_clip_counts_and_shares_equal_a_plain_computation(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    got = summary_of(path)["settings"][0]
    want = ppo(policy_tokens(path))
    for side, sign, gains in (
        ("low", "negative", want.filter(pl.col("advantages") < 0)),
        ("high", "positive", want.filter(pl.col("advantages") > 0)),
    ):
        clipped = int(want[side].sum())
        assert clipped > 5
        found = got["clip"][side]
        assert found["tokens"] == clipped
        assert found["fraction"] == pytest.approx(clipped / len(want))
        assert found[sign] == {
            "tokens": clipped,
            "fraction": pytest.approx(clipped / len(gains)),
        }
        other = "positive" if sign == "negative" else "negative"
        assert found[other] == {"tokens": 0, "fraction": 0.0}
    assert got["clip"]["any"]["tokens"] == int((want["low"] | want["high"]).sum())
    assert got["clip"]["dual"]["tokens"] == 0
    still = got["no_gradient"]
    assert still["tokens"] == int(want["flat"].sum())
    assert still["zero_advantage"] == int((want["advantages"] == 0).sum())
    assert still["clipped"] == still["tokens"] - still["zero_advantage"]
    assert still["other"] == 0
    by_row = want.group_by("row").agg(pl.col("flat").all())
    assert still["responses"] == int(by_row["flat"].sum()) > 0
    assert still["response_fraction"] == pytest.approx(by_row["flat"].mean())
    assert got["token_loss"] == pytest.approx(want["loss"].mean(), abs=1e-12)


def test_dual_clip_counts_equal_a_plain_computation(tmp_path):
    path = save(dump(drift=1.0), tmp_path / "in.parquet")
    got = summary_of(path, "--dual-clip", 1.5)["settings"][0]["clip"]["dual"]
    want = ppo(policy_tokens(path)).filter((pl.col("advantages") < 0) & (pl.col("r") > 1.5))
    assert got["tokens"] == got["negative"]["tokens"] == len(want) > 5


def test_ratio_and_divergence_equal_a_plain_computation(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    got, tokens = summary_of(path), ppo(policy_tokens(path))
    ratio, drift = tokens["r"], tokens["log_probs"] - tokens["old_log_probs"]
    assert got["ratio"]["mean"] == pytest.approx(ratio.mean())
    assert got["ratio"]["min"] == pytest.approx(ratio.min())
    assert got["ratio"]["max"] == pytest.approx(ratio.max())
    assert got["kl"] == {
        "k1": pytest.approx(-drift.mean()),
        "k3": pytest.approx((ratio - 1 - drift).mean()),
    }
    apart = tokens["old_log_probs"] - tokens["infer_log_probs"]
    assert got["engine_kl"] == {
        "k1": pytest.approx(-apart.mean()),
        "k3": pytest.approx((apart.exp() - 1 - apart).mean()),
    }
    ess = ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())
    assert got["ess"] == pytest.approx(ess)
    assert got["tokens"]["policy"] == len(tokens)
    assert got["responses"] == 60
    assert got["left_out"] == 60 - tokens["row"].n_unique()
    assert got["advantage"]["mean"] == pytest.approx(tokens["advantages"].mean())
    assert got["advantage"]["std"] == pytest.approx(tokens["advantages"].std())


def test_losses_of_response_ratios_report_that_ratio(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    assert summary_of(path)["settings"][0]["loss_ratio"] is None
    got = summary_of(path, "--loss", "gspo")["settings"][0]
    tokens = policy_tokens(path).with_columns(d=pl.col("log_probs") - pl.col("old_log_probs"))
    ratio = tokens.select(pl.col("d").mean().over("row").exp()).to_series()
    want = {"mean": ratio.mean(), "min": ratio.min(), "max": ratio.max()}
    assert got["loss_ratio"] == pytest.approx(want)
    assert got["clip"]["high"]["tokens"] == len(
        tokens.filter((ratio > got["bounds"]["high"]) & (pl.col("advantages") > 0))
    )


def test_quantiles_are_within_their_stated_error(tmp_path):
    path = save(dump(400), tmp_path / "in.parquet")
    found = summary_of(path)["ratio"]["quantiles"]
    drift = np.sort(
        (policy_tokens(path)["log_probs"] - policy_tokens(path)["old_log_probs"]).to_numpy()
    )
    for share, ratio in found.items():
        exact = drift[math.ceil(float(share) * len(drift)) - 1]
        assert abs(math.log(ratio) - exact) <= abs(exact) / 64 + 2.0**-20
    assert list(found.values()) == sorted(found.values())


@pytest.mark.parametrize("key", ["position", "step", "domain"])
def test_details_equal_a_plain_computation_of_their_tokens(tmp_path, key):
    path = save(dump(), tmp_path / "in.parquet")
    parts = summary_of(path)["settings"][0][f"{key}s"]
    tokens = ppo(policy_tokens(path))
    assert len(parts) > 1
    assert sum(part["tokens"] for part in parts) == len(tokens)
    for part in parts:
        if key == "position":
            own = tokens.filter(pl.col("place").is_between(part["from"], part["to"]))
        else:
            own = tokens.filter(pl.col(key) == part[key])
        drift = own["log_probs"] - own["old_log_probs"]
        assert part["tokens"] == len(own)
        assert part["clip"]["low"]["tokens"] == int(own["low"].sum())
        assert part["clip"]["high"]["fraction"] == pytest.approx(own["high"].mean())
        assert part["no_gradient"]["tokens"] == int(own["flat"].sum())
        assert part["token_loss"] == pytest.approx(own["loss"].mean(), abs=1e-12)
        assert part["kl"]["k3"] == pytest.approx((own["r"] - 1 - drift).mean())
        assert part["ratio"]["max"] == pytest.approx(own["r"].max())


def aggregated(tokens, how):
    """The loss of a batch's policy tokens, weights of 1."""
    rows = tokens.group_by("row").agg(pl.col("loss").sum(), pl.col("loss").len().alias("n"))
    if how == "token-mean":
        return tokens["loss"].mean()
    if how == "seq-mean-token-sum":
        return rows["loss"].mean()
    if how == "seq-mean-token-mean":
        return (rows["loss"] / rows["n"]).mean()
    if how in ("prompt-mean", "rollout-mean"):
        keys = ["prompt_id", *(["rollout_id"] if how == "rollout-mean" else [])]
        return tokens.group_by(keys).agg(pl.col("loss").mean())["loss"].mean()
    if how == "token-mean-by-sign":
        positive = tokens["advantages"] > 0
        return sum(tokens.filter(sign)["loss"].mean() for sign in (positive, ~positive))
    return rows["loss"].sum() / 50


@pytest.mark.parametrize(
    "how",
    [
        "token-mean",
        "token-mean-by-sign",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
        "prompt-mean",
        "rollout-mean",
    ],
)
def test_each_aggregation_equals_a_plain_computation(tmp_path, how):
    ids = pa.array([f"r{i % 4 // 2}" for i in range(60)])  # two rows each, within a prompt
    path = save(dump().append_column("rollout_id", ids), tmp_path / "in.parquet")
    got = summary_of(path, "--aggregation", how, "--agg-length", 50, "--kl-loss-coef", 0.1)
    one, tokens = got["settings"][0], ppo(policy_tokens(path))
    drift = (tokens["ref_log_probs"] - tokens["log_probs"]).rename("drift")
    k3 = (drift.exp() - 1 - drift).clip(-10, 10)
    assert [batch["batch"] for batch in one["batches"]] == [0, 1, 2]
    for batch in one["batches"]:
        own = tokens["step"] == batch["batch"]
        policy = aggregated(tokens.filter(own), how)
        kl = aggregated(tokens.with_columns(loss=k3).filter(own), how)
        assert batch["policy"] == pytest.approx(policy)
        assert batch["kl"] == pytest.approx(kl)
        assert batch["total"] == pytest.approx(policy + 0.1 * kl)
    totals = [batch["total"] for batch in one["batches"]]
    assert one["loss"]["total"] == pytest.approx(sum(totals) / 3)


@pytest.mark.parametrize(
    "how", ["token-mean", "token-mean-by-sign", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
)
@pytest.mark.parametrize("rows", [0, 2])
def test_the_loss_of_a_batch_without_policy_tokens_is_0(how, rows):
    totals = Totals({"rows": rows, "valid": 0, "tokens": 0, "0.policy": 0}, {}, {"length": 0.0})
    setting = LossSetting(0, LossConfig(LossOptions(aggregation=how)))
    want = {"batch": "a", "policy": 0.0, "kl": None, "total": 0.0}
    assert report_batch("a", totals, setting) == want
