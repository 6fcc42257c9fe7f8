"""Totals of losses: clipped shares, ratios, quantiles and details equal plain computations."""

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from loss_runs import by, dump, of_all, policy_tokens, ppo, save, summary_of, texts


def test_clip_counts_and_shares_equal_a_plain_computation(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    got, want = summary_of(path), ppo(policy_tokens(path))
    rows = {sign: want.filter(pl.col("advantages") * sign > 0) for sign in (1, -1)}
    for side, sign in (("low", -1), ("high", 1)):
        clipped = int(want[side].sum())
        assert clipped > 5
        for end, total, count in (
            ("", clipped, len(want)),
            ("_positive", clipped * (sign > 0), len(rows[1])),
            ("_negative", clipped * (sign < 0), len(rows[-1])),
        ):
            mean = pytest.approx(total / count)
            entry = {"count": count, "total": total, "mean": mean}
            assert got["facts"][f"clipped_{side}{end}"]["all"] == entry
    assert of_all(got, "clipped", "total") == int((want["low"] | want["high"]).sum())
    assert of_all(got, "clipped_dual", "total") == of_all(got, "no_gradient_other", "total") == 0
    still, zero = int(want["flat"].sum()), int((want["advantages"] == 0).sum())
    assert of_all(got, "no_gradient", "total") == still
    assert of_all(got, "no_gradient_zero_advantage", "total") == zero
    assert of_all(got, "no_gradient_clipped", "total") == still - zero
    assert of_all(got, "no_gradient_clipped") == (still - zero) / len(want)
    by_row = want.group_by("row").agg(pl.col("flat").all())
    assert of_all(got, "no_gradient_responses", "total") == int(by_row["flat"].sum()) > 0
    assert of_all(got, "no_gradient_responses") == pytest.approx(by_row["flat"].mean())
    assert of_all(got, "token_loss") == pytest.approx(want["loss"].mean(), abs=1e-12)


def test_ratio_and_divergence_equal_a_plain_computation(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    got, tokens = summary_of(path), ppo(policy_tokens(path))
    ratio, drift = tokens["r"], tokens["log_probs"] - tokens["old_log_probs"]
    apart = tokens["old_log_probs"] - tokens["infer_log_probs"]
    for name, numbers in (
        ("ratio", ratio),
        ("log_ratio", drift),
        ("policy_k3", ratio - 1 - drift),
        ("engine_k1", -apart),
        ("engine_k3", apart.exp() - 1 - apart),
        ("advantage", tokens["advantages"]),
    ):
        entry = got["facts"][name]["all"]
        want = {"count": len(numbers), "mean": numbers.mean(), "std": numbers.std()}
        want |= {"min": numbers.min(), "max": numbers.max()}
        assert {*entry} >= {"count", "mean"}
        entry = {x: y for x, y in entry.items() if x in want}
        assert entry == pytest.approx({x: want[x] for x in entry}, abs=1e-12)
    assert {"min", "max"} <= got["facts"]["ratio"]["all"].keys()
    assert "std" in got["facts"]["advantage"]["all"]
    ess = ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())
    assert of_all(got, "ratio_ess", "value") == pytest.approx(ess)
    assert got["tokens"]["policy"] == len(tokens)
    assert got["responses"] == 60
    assert of_all(got, "without_tokens", "total") == 60 - tokens["row"].n_unique()


def test_losses_of_response_ratios_report_that_ratio(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    assert "loss_ratio" not in summary_of(path)["facts"]
    got = summary_of(path, "--loss", "gspo")
    tokens = policy_tokens(path).with_columns(d=pl.col("log_probs") - pl.col("old_log_probs"))
    ratio = tokens.select(pl.col("d").mean().over("row").exp()).to_series()
    want = {"mean": ratio.mean(), "min": ratio.min(), "max": ratio.max()}
    assert got["facts"]["loss_ratio"]["all"] == pytest.approx({"count": len(tokens), **want})
    assert of_all(got, "clipped_high", "total") == len(
        tokens.filter((ratio > got["bounds"]["high"]) & (pl.col("advantages") > 0))
    )


def test_quantiles_are_within_their_stated_error(tmp_path):
    path = save(dump(400), tmp_path / "in.parquet")
    found = of_all(summary_of(path), "ratio", "quantiles")
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
    facts, tokens = summary_of(path)["facts"], ppo(policy_tokens(path))
    labels = facts["ratio"][key]["label"]
    assert len(labels) > 1
    assert sum(facts["ratio"][key]["count"]) == len(tokens)
    for place, label in enumerate(labels):
        if key == "position":
            own = tokens.filter(pl.col("place").is_between(*map(int, label.split(" to "))))
        else:
            own = tokens.filter(pl.col(key) == label)
        drift = own["log_probs"] - own["old_log_probs"]
        for name, statistic, want in (
            ("ratio", "count", len(own)),
            ("clipped_low", "total", int(own["low"].sum())),
            ("clipped_high", "mean", pytest.approx(own["high"].mean())),
            ("no_gradient", "total", int(own["flat"].sum())),
            ("token_loss", "mean", pytest.approx(own["loss"].mean(), abs=1e-12)),
            ("policy_k3", "mean", pytest.approx((own["r"] - 1 - drift).mean())),
            ("ratio", "max", pytest.approx(own["r"].max())),
            ("advantage", "mean", pytest.approx(own["advantages"].mean())),
        ):
            assert facts[name][key][statistic][place] == want, name


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
    tokens = ppo(policy_tokens(path))
    drift = (tokens["ref_log_probs"] - tokens["log_probs"]).rename("drift")
    k3 = (drift.exp() - 1 - drift).clip(-10, 10)
    losses = {name: by(got, f"{name}_loss") for name in ("policy", "kl", "total")}
    assert [*losses["policy"]] == [0, 1, 2]
    for step in range(3):
        own = tokens["step"] == step
        policy = aggregated(tokens.filter(own), how)
        kl = aggregated(tokens.with_columns(loss=k3).filter(own), how)
        assert losses["policy"][step] == pytest.approx(policy)
        assert losses["kl"][step] == pytest.approx(kl)
        assert losses["total"][step] == pytest.approx(policy + 0.1 * kl)
    totals = np.array([*losses["total"].values()])
    want = {"count": 3, "mean": totals.mean()}
    assert got["facts"]["total_loss"]["all"] == pytest.approx(want)


MEANS = ("token-mean", "token-mean-by-sign", "token-sum", "seq-mean-token-sum-norm")


@pytest.mark.parametrize("how", [*MEANS, "seq-mean-token-mean"])
def test_a_batch_without_policy_tokens_has_no_loss_and_is_in_no_mean(tmp_path, how):
    table = dump()
    masks, steps = table["response_mask"].to_pylist(), table["step"].to_pylist()
    masks = [[0 if step == 1 else x for x in row] for row, step in zip(masks, steps, strict=True)]
    place = table.schema.get_field_index("response_mask")
    column = pa.array(masks, pa.list_(pa.uint8()))
    path = save(table.set_column(place, "response_mask", column), tmp_path / "in.parquet")
    words = ("--aggregation", how, "--agg-length", 50, "--agg-rows", "all")
    got = summary_of(path, *words, "--kl-loss-coef", 0.1)
    for name in ("policy_loss", "kl_loss", "total_loss"):
        losses = by(got, name)
        assert got["facts"][name]["step"]["count"] == [1, 0, 1]
        assert losses.pop(1) is None
        assert of_all(got, name, "count") == 2
        assert of_all(got, name) == pytest.approx(sum(losses.values()) / 2)
    text = "1 batch without a token in the loss: no loss, and not in the mean of batches"
    assert text in texts(got)
    assert text not in texts(summary_of(save(table, tmp_path / "whole.parquet"), *words))
