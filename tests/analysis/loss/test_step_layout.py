"""The weight of each token under a layout: against a trainer's loop, and what is printed of it."""

import numpy as np
import polars as pl
import pytest
import torch
from loss_runs import dump, save, summary_of
from runs import run

from rlpost import functional
from rlpost.kernels.layouts import Split

WAYS = (
    ("token-mean", "micro"),
    ("token-mean-by-sign", "micro"),
    ("seq-mean-token-mean", "rank"),
    ("seq-mean-token-sum-norm", "micro"),
    ("prompt-mean", "micro"),
    ("token-mean", "step"),
    ("seq-mean-token-sum", "update"),
)
LAYOUTS = (
    ("--micro-batch", 3, "--accumulate", 2, "--ranks", 2),
    ("--micro-batch-tokens", 60, "--updates", 2),
)
WRITTEN = ("pg_loss", "loss_weight", "loss_gradient")


def micro_batches(rows, words, lengths):
    """The micro-batches of a step as a trainer makes them: lists of rows by update and rank."""
    options = dict(zip(words[::2], words[1::2], strict=True))
    parts = {}
    for rank, own in enumerate(np.array_split(rows, options.get("--ranks", 1))):
        chunks = np.array_split(own, options.get("--updates", 1))
        for update, chunk in enumerate(chunks):
            batches = []
            for row in chunk:
                size = options.get("--micro-batch")
                last = batches[-1] if batches else None
                if size:
                    full = last is None or len(last) == size
                else:
                    most = options["--micro-batch-tokens"]
                    full = last is None or sum(lengths[x] for x in [*last, row]) > most
                batches.append([row]) if full else last.append(row)
            step = options.get("--accumulate", len(batches))
            for first in range(0, len(batches), step):
                key = update if len(chunks) > 1 else first // step
                parts.setdefault(key, {})[rank] = batches[first : first + step]
    return parts


def loss_of(rows, table, how):
    """The aggregated loss of rows in plain loops."""
    kept = [
        [(x, a) for x, a, m in zip(*row, strict=True) if m]
        for row in (
            (table["pg_loss"][i], table["advantages"][i], table["response_mask"][i]) for i in rows
        )
    ]
    values = [[x for x, _ in row] for row in kept]
    every = [x for row in values for x in row]
    full = [row for row in values if row]
    if not every:
        return 0.0
    divisors = {
        "token-mean": len(every),
        "seq-mean-token-sum": len(full),
        "seq-mean-token-sum-norm": max(len(table["response_mask"][i]) for i in rows),
    }
    if how in divisors:
        return sum(every) / divisors[how]
    if how == "token-mean-by-sign":
        signs = ([x for r in kept for x, a in r if (a > 0) == up] for up in (True, False))
        return sum(sum(own) / len(own) for own in signs if own)
    if how == "seq-mean-token-mean":
        return sum(sum(row) / len(row) for row in full) / len(full)
    prompts = {}
    for i, row in zip(rows, values, strict=True):
        prompts.setdefault(table["prompt_id"][i], []).extend(row)
    prompts = [own for own in prompts.values() if own]
    return sum(sum(own) / len(own) for own in prompts) / len(prompts)


def update_losses(table, words, how, level):
    """The loss whose gradient each update of each step applies."""
    steps = np.array(table["step"])
    lengths = [len(row) for row in table["response_mask"]]
    losses = []
    for step in np.unique(steps):
        rows = np.flatnonzero(steps == step)
        parts = micro_batches(rows, words, lengths)
        if level == "step":
            losses.append(loss_of(rows, table, how) * len(parts))
            continue
        for ranks in parts.values():
            if level == "update":
                every = [row for own in ranks.values() for batch in own for row in batch]
                losses.append(loss_of(every, table, how))
                continue
            of_ranks = [
                np.mean([loss_of(batch, table, how) for batch in own])
                if level == "micro"
                else loss_of([row for batch in own for row in batch], table, how)
                for own in ranks.values()
            ]
            losses.append(np.mean(of_ranks))
    return losses


@pytest.mark.parametrize("words", LAYOUTS, ids=["responses", "tokens"])
@pytest.mark.parametrize(("how", "level"), WAYS)
def test_weights_add_up_to_the_losses_of_a_training_loop(tmp_path, words, how, level):
    path = save(dump(72, longest=30), tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    options = ("--aggregation", how, "--agg-level", level, *words)
    summary = summary_of(path, out, "--emit", "loss_weight", *options)
    table = pl.read_parquet(out).to_dict(as_series=False)
    losses = update_losses(table, words, how, level)
    weighted = sum(
        x * w
        for row in zip(table["pg_loss"], table["loss_weight"], strict=True)
        for x, w in zip(*row, strict=True)
    )
    assert weighted == pytest.approx(sum(losses), rel=1e-5)
    layout = summary["settings"][0]["layout"]
    assert layout["update_count"] >= len(np.unique(table["step"]))
    assert layout["factor"] >= 1
    if level == "update":
        assert layout["factor"] == pytest.approx(1)
        assert layout["moved"] == pytest.approx(0, abs=1e-9)


COUPLED = """
def coupled(log_ratio, advantages, offsets, group):
    codes = group.unique(return_inverse=True)[1].repeat_interleave(offsets.diff())
    sums = log_ratio.new_zeros(len(group)).index_add(0, codes, log_ratio)
    return -advantages * sums[codes]
"""
LOSSES = (
    ("ppo", ()),
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
    summary = summary_of(path, out, "--emit", "loss_gradient,loss_weight", *words)
    rows = pl.read_parquet(out)
    for batch in summary["settings"][0]["batches"]:
        own = rows.filter(pl.col("step") == batch["batch"])
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
        assert total.item() == pytest.approx(batch["total"])


@pytest.mark.parametrize(
    "words",
    [
        ["--micro-batch", "0"],
        ["--micro-batch", "2", "--micro-batch-tokens", "9"],
        ["--accumulate", "2"],
        ["--agg-level", "micro"],
        ["--emit", "loss_weight"],
    ],
)
def test_a_layout_without_effect_or_with_a_wrong_number_exits_2(tmp_path, words):
    ran = run("loss", save(dump(8), tmp_path / "in.parquet"), *words)
    assert ran.code == 2
    assert words[-2] in ran.err


def test_advantages_name_the_command_that_writes_the_columns_of_a_loss(tmp_path):
    path = save(dump(8), tmp_path / "in.parquet")
    ran = run("advantages", path, tmp_path / "out.parquet", "--emit", "loss_weight")
    assert ran.code == 2
    assert "rlpost loss IN OUT --emit loss_weight" in ran.err


def test_a_long_response_is_a_micro_batch_of_its_own():
    (_, rows, micro), *others = Split(micro_tokens=10).parts(np.array([4, 6, 1, 30, 2]))
    assert not others
    assert rows.tolist() == [0, 1, 2, 3, 4]
    assert micro.tolist() == [0, 0, 1, 2, 3]
