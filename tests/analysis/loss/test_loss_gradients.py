"""Gradients of losses: against autograd of a step's loss, and those that a sweep compares."""

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from loss_runs import by, dump, of_all, of_measures, save, summary_of, with_lists
from runs import run, strict_json

import rlpost
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
    summary = summary_of(path, out, "--emit", "loss_gradient", *words)
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
    ran = run("loss", path, "--emit", "loss_gradient")
    assert ran.code == 2
    assert "--emit loss_gradient needs OUT" in ran.err
    ran = run("advantages", path, tmp_path / "out.parquet", "--emit", "loss_gradient")
    assert ran.code == 2
    assert "rlpost loss IN OUT --emit loss_gradient" in ran.err


SWEEP = ("--sweep", "loss=ppo,gspo,oreal", "--sweep", "kl_loss_coef=0,0.3")
SETTINGS = [(loss, coef) for loss in ("ppo", "gspo", "oreal") for coef in ("0", "0.3")]


def gradients_of(path, folder, loss, coef):
    """The gradient of each policy token that a run with an output writes."""
    out = folder / f"{loss}-{coef}.parquet"
    words = ("--loss", loss, "--kl-loss-coef", coef, "--emit", "loss_gradient")
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


CORRECTIONS = ("none", "verl:decoupled_seq_is_rs", "verl:bypass_pg_is")


@pytest.mark.parametrize(
    "words",
    [
        ("--preset", "verl", "--estimator", "grpo"),  # filters before the estimator
        ("--whiten-advantages", "--aggregation", "prompt-mean"),
        (
            "--estimator",
            "rloo",
            "--loss",
            "clip_cov",
            "--loss-option",
            "cov=0:5",
            "--loss-option",
            "share=0.1",
        ),
    ],
    ids=["verl", "whitened", "selected"],
)
def test_settings_of_a_sweep_of_corrections_are_single_runs(tmp_path, words):
    table = dump(80, with_advantages=False)
    table = table.set_column(
        table.schema.get_field_index("infer_log_probs"), "infer_log_probs",
        pa.array([[x - 0.05 * (len(row) % 3) for x in row] for row in
                  table["old_log_probs"].to_pylist()], table["old_log_probs"].type),
    )  # fmt: skip
    path = save(table, tmp_path / "in.parquet")
    sweep = ("--sweep", f"correction={','.join(CORRECTIONS)}", "--sweep", "kl_loss_coef=0,0.2")
    swept = summary_of(path, *words, *sweep)["settings"]
    gradients = []
    for one in swept:
        name, coef = one["swept"].values()
        own = () if name == "none" else ("--correction", name)
        own = (*words, *own, "--kl-loss-coef", coef)
        single = summary_of(path, *own)
        for key in {*one} - {"swept", "facts"}:
            assert one[key] == single[key], (name, key)
        for key in {*one["facts"]} & {*single["facts"]}:
            assert of_all(one, key, "count") == of_all(single, key, "count")
            assert one["facts"][key]["all"] == single["facts"][key]["all"], (name, key)
        out = tmp_path / f"{len(gradients)}.parquet"
        assert run("loss", path, out, "--emit", "loss_gradient", *own).code == 0
        of_tokens = pl.read_parquet(out)["loss_gradient"].explode(empty_as_null=False)
        gradients.append(of_tokens.to_numpy().astype(float))
    assert len({of_all(one, "clipped", "count") for one in swept}) > 1
    for one, own, base in zip(swept, gradients, gradients[:1] * 6, strict=True):
        cosine = own @ base / math.sqrt((own @ own) * (base @ base))
        assert of_all(one, "gradient_cosine", "value") == pytest.approx(cosine, rel=1e-4)


def test_a_sweep_of_corrections_from_python_is_that_of_the_command(tmp_path):
    path = save(dump(with_advantages=False), tmp_path / "in.parquet")
    recipe = rlpost.Recipe(is_weight="token")
    sweep = {"correction": [None, "verl:decoupled_geo_rs"], "is_cap": [1.5, 2.0]}
    found = rlpost.loss(path, recipe=recipe, sweep=sweep).settings
    words = ("--sweep", "correction=none,verl:decoupled_geo_rs", "--sweep", "is_cap=1.5,2")
    for one, other in zip(found, summary_of(path, "--is-weight", "token", *words)["settings"],
                          strict=True):  # fmt: skip
        assert {**one, "swept": {}} == {**other, "swept": {}}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--sweep", "correction=none,verl:decoupled_geo_rs"), "--map advantages=none"),
        (("--sweep", "correction=none,verl:other"), "verl:other"),
        (("--sweep", "is_cap=1,2", "--map", "advantages=none"), "--is-weight"),
    ],
)
def test_a_sweep_of_corrections_that_has_no_effect_is_an_error(tmp_path, words, text):
    ran = run("loss", save(dump(8), tmp_path / "in.parquet"), *words)
    assert ran.code == 2
    assert text in ran.err
