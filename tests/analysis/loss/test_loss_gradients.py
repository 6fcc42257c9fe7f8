"""Gradients of losses: against autograd of a step's loss, and those that a sweep compares."""

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from loss_runs import by, dump, of_all, of_measures, save, summary_of, with_lists
from runs import run, strict_json

from rlpost import functional

COUPLED = """
def coupled(log_ratio, advantages, offsets, group):
    codes = group.unique(return_inverse=True)[1].repeat_interleave(offsets.diff())
    sums = log_ratio.new_zeros(len(group)).index_add(0, codes, log_ratio)
    return -advantages * sums[codes]
"""
LOSSES = (
    ("ppo", ()),
    ("ppo", ("--aggregation", "prompt-mean")),
    ("ppo", ("--aggregation", "seq-mean-token-sum-norm")),
    ("pg", ("--kl-loss-coef", "0.1")),
    ("gspo", ("--kl-loss-coef", "0.3")),
    ("clip_cov", ()),
    ("geo_mean", ()),
    ("oreal", ("--kl-loss-coef", "0.2")),
    ("coupled", ("--aggregation", "seq-mean-token-mean")),
)


@pytest.mark.parametrize(("loss", "words"), LOSSES)
def test_the_gradient_is_that_of_the_loss_of_a_step(tmp_path, loss, words):
    path = save(dump(40), tmp_path / "in.parquet")
    if loss == "coupled":
        (tmp_path / "coupled.py").write_text(COUPLED)
        loss = f"{tmp_path / 'coupled.py'}:coupled"
    out = tmp_path / "out.parquet"
    words = ("--loss", loss, *words)
    summary = summary_of(path, out, "--gradient", *words)
    rows = pl.read_parquet(out)
    for step, loss_of_step in by(summary, "total_loss").items():
        own = rows.filter(pl.col("step") == step)
        offsets = torch.tensor([0, *np.cumsum(own["response_mask"].list.len().to_list())])
        names = ("log_probs", "old_log_probs", "ref_log_probs", "advantages", "response_mask")
        new, old, ref, advantages, mask = (
            torch.tensor(own[name].explode(empty_as_null=False).to_numpy().astype(float))
            for name in names
        )
        new.requires_grad_()
        options = {"kl_loss_coef": float(words[-1])} if "--kl-loss-coef" in words else {}
        if "--aggregation" in words:
            options = {"aggregation": words[-1], "units": own["prompt_id"].to_list()}
        total = functional.policy_loss(
            new, old, advantages, offsets, mask.bool(), loss=loss, ref_log_probs=ref, **options
        ).loss
        total.backward()
        found = own["loss_gradient"].explode(empty_as_null=False).to_numpy()
        np.testing.assert_allclose(found, new.grad.numpy(), rtol=1e-5, atol=1e-8)
        assert total.item() == pytest.approx(loss_of_step)


def test_a_column_of_a_loss_needs_an_output_of_the_command_that_writes_it(tmp_path):
    path = save(dump(8), tmp_path / "in.parquet")
    ran = run("loss", path, "--gradient")
    assert (ran.code, "--gradient needs OUT" in ran.err) == (2, True)


SWEEP = ("--sweep", "loss=ppo,gspo,oreal", "--sweep", "kl_loss_coef=0,0.3")
SETTINGS = [(loss, coef) for loss in ("ppo", "gspo", "oreal") for coef in ("0", "0.3")]


def gradients_of(path, folder, loss, coef):
    """The gradient of each policy token that a run with an output writes."""
    out = folder / f"{loss}-{coef}.parquet"
    words = ("--loss", loss, "--kl-loss-coef", coef, "--gradient")
    assert run("loss", path, out, *words).code == 0
    lists = ["loss_gradient", "response_mask"]
    rows = pl.read_parquet(out).select(lists)
    return rows.explode(lists, empty_as_null=True).filter(pl.col("response_mask") == 1)


def test_gradients_of_a_sweep_are_those_that_single_runs_write(tmp_path):
    table = dump(80)
    weights = np.random.default_rng(1).random(80).astype(np.float32)
    path = save(table.append_column("sample_weight", pa.array(weights)), tmp_path / "in.parquet")
    swept = summary_of(path, *SWEEP)["settings"]
    tables = [gradients_of(path, tmp_path, *one) for one in SETTINGS]
    first = tables[0]["loss_gradient"].to_numpy().astype(float)
    for one, rows in zip(swept, tables, strict=True):
        own = rows["loss_gradient"].to_numpy().astype(float)
        size, squares = np.abs(own).sum(), (own**2).sum()
        cosine = (own * first).sum() / math.sqrt(squares * (first**2).sum())
        ess = size**2 / (len(own) * squares)
        for name, want in (("ess", ess), ("norm", math.sqrt(squares)), ("cosine", cosine)):
            assert of_all(one, f"gradient_{name}", "value") == pytest.approx(want, rel=1e-5)


def test_gradients_depend_neither_on_chunks_nor_on_the_order_of_rows(tmp_path):
    table = dump(80)
    path = save(table, tmp_path / "in.parquet")
    shuffled = table.take(np.random.default_rng(3).permutation(80))
    wanted, other, chunked = (
        [of_measures(setting, "gradient_") for setting in summary_of(*words)["settings"]]
        for words in (
            (path, *SWEEP),
            (save(shuffled, tmp_path / "other.parquet", 7), *SWEEP),
            (path, *SWEEP, "--chunk-tokens", 60, "--workers", 2),
        )
    )
    assert wanted == other == chunked


def test_a_sweep_without_gradient_has_no_shares(tmp_path):
    path = save(with_lists(dump(20), "advantages", lambda _: 0.0), tmp_path / "in.parquet")
    ran = run("loss", path, "--sweep", "pg_clip=0.1,0.2", "--format", "json")
    for one in strict_json(ran.out)["settings"]:
        names = ("norm", "ess", "cosine")
        assert [of_all(one, f"gradient_{x}", "value") for x in names] == [0, None, None]
    assert (
        "cosine: between g and that of pg_clip 0.1."
        in run("loss", path, "--sweep", "pg_clip=0.1,0.2").out
    )
