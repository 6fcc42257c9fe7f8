"""A sweep of losses compares their gradients: against files that have the gradient of each."""

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from loss_runs import dump, save, summary_of
from runs import run, strict_json

import rlpost

SWEEP = ("--sweep", "loss=ppo,gspo,oreal", "--sweep", "kl_loss_coef=0,0.3")
SETTINGS = [(loss, coef) for loss in ("ppo", "gspo", "oreal") for coef in ("0", "0.3")]


def gradients_of(path, folder, loss, coef, words):
    """The gradient of each policy token that a run with an output writes, with its prompt."""
    out = folder / f"{loss}-{coef}.parquet"
    words = ("--loss", loss, "--kl-loss-coef", coef, "--emit", "loss_gradient", *words)
    assert run("loss", path, out, *words).code == 0
    lists = ["loss_gradient", "response_mask"]
    rows = pl.read_parquet(out).select("prompt_id", "step", *lists)
    return rows.explode(lists, empty_as_null=True).filter(pl.col("response_mask") == 1)


@pytest.mark.parametrize("words", [(), ("--micro-batch", 3, "--ranks", 2)], ids=["step", "layout"])
def test_gradients_of_a_sweep_are_those_that_single_runs_write(tmp_path, words):
    table = dump(80)
    weights = np.random.default_rng(1).random(80).astype(np.float32)
    path = save(table.append_column("sample_weight", pa.array(weights)), tmp_path / "in.parquet")
    swept = [one["gradient"] for one in summary_of(path, *SWEEP, *words)["settings"]]
    tables = [gradients_of(path, tmp_path, *one, words) for one in SETTINGS]
    first = tables[0]["loss_gradient"].to_numpy().astype(float)
    for one, rows in zip(swept, tables, strict=True):
        own = rows["loss_gradient"].to_numpy().astype(float)
        size, squares = np.abs(own).sum(), (own**2).sum()
        assert one["ess"] == pytest.approx(size**2 / (len(own) * squares), rel=1e-5)
        assert one["norm"] == pytest.approx(math.sqrt(squares), rel=1e-5)
        cosine = (own * first).sum() / math.sqrt(squares * (first**2).sum())
        assert one["cosine"] == pytest.approx(cosine, rel=1e-5)
        assert one["against"] == {"loss": "ppo", "kl_loss_coef": 0.0}
        groups = rows.group_by("prompt_id", "step").agg(pl.col("loss_gradient").abs().sum())
        largest = groups.sort("loss_gradient", descending=True).head(3).rows()
        assert [(x["group"], x["step"]) for x in one["groups"]["top"]] == [x[:2] for x in largest]
        for found, (*_, want) in zip(one["groups"]["top"], largest, strict=True):
            assert found["share"] == pytest.approx(want / size, rel=1e-5)
        assert one["groups"]["one_percent"]["groups"] == 1
        assert one["groups"]["one_percent"]["share"] == one["groups"]["top"][0]["share"]


def test_gradients_depend_neither_on_chunks_nor_on_the_order_of_rows(tmp_path):
    table = dump(80)
    path = save(table, tmp_path / "in.parquet")
    shuffled = table.take(np.random.default_rng(3).permutation(80))
    wanted = summary_of(path, *SWEEP)["settings"]
    other = summary_of(save(shuffled, tmp_path / "other.parquet", 7), *SWEEP)["settings"]
    chunked = summary_of(path, *SWEEP, "--chunk-tokens", 60, "--workers", 2)["settings"]
    assert [one["gradient"] for one in other] == [one["gradient"] for one in wanted]
    assert [one["gradient"] for one in chunked] == [one["gradient"] for one in wanted]


def test_against_names_the_setting_that_others_are_compared_with(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    sweep = {"loss": ["ppo", "cispo"], "pg_clip": [0.1, 0.2]}
    settings = rlpost.loss(path, sweep=sweep, against={"pg_clip": 0.2}).settings
    bases = [one["gradient"]["against"] for one in settings]
    assert [base["loss"] for base in bases] == ["ppo", "ppo", "cispo", "cispo"]
    assert {base["pg_clip"] for base in bases} == {0.2}
    assert [one["gradient"]["cosine"] == 1 for one in settings] == [False, True] * 2
    words = ("--sweep", "loss=ppo,cispo", "--sweep", "pg_clip=0.1,0.2", "--against", "pg_clip=0.20")
    assert summary_of(path, *words)["settings"][0]["gradient"] == settings[0]["gradient"]
    assert "cosine: between g and that of pg_clip 0.2, the other" in run("loss", path, *words).out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--against", "loss=ppo"), "--sweep"),
        (("--sweep", "pg_clip=0.1,0.2", "--against", "loss=ppo"), "'loss'"),
        (("--sweep", "pg_clip=0.1,0.2", "--against", "pg_clip=0.3"), "pg_clip=0.3"),
        (("--sweep", "pg_clip=0.1,0.2", "--against", "pg_clip"), "NAME=VALUE"),
    ],
)
def test_against_needs_values_of_the_sweep(tmp_path, words, text):
    ran = run("loss", save(dump(8), tmp_path / "in.parquet"), *words)
    assert ran.code == 2
    assert "--against" in ran.err
    assert text in ran.err


def test_a_sweep_without_prompts_or_gradient_has_no_shares(tmp_path):
    table = dump(20).drop_columns(["prompt_id"])
    zeros = [[0.0] * len(x) for x in table["advantages"].to_pylist()]
    zeros = pa.array(zeros, table["advantages"].type)
    place = table.schema.get_field_index("advantages")
    path = save(table.set_column(place, "advantages", zeros), tmp_path / "in.parquet")
    ran = run("loss", path, "--sweep", "pg_clip=0.1,0.2", "--format", "json")
    for one in strict_json(ran.out)["settings"]:
        facts = one["gradient"]
        assert (facts["ess"], facts["cosine"], facts["groups"]) == (None, None, None)
    assert "top 3" not in run("loss", path, "--sweep", "pg_clip=0.1,0.2").out


def test_the_table_of_a_sweep_names_the_groups_that_dominate(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    shown = run("loss", path, "--sweep", "pg_clip=0.1,0.2").out
    for one in summary_of(path, "--sweep", "pg_clip=0.1,0.2")["settings"]:
        for group in one["gradient"]["groups"]["top"]:
            assert group["group"] in shown
