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


CORRECTIONS = ("none", "verl:decoupled_seq_is_rs", "verl:bypass_pg_is")
LAYOUT = ("--micro-batch", 3, "--ranks", 2)


@pytest.mark.parametrize(
    "words",
    [
        ("--preset", "verl", "--estimator", "grpo", *LAYOUT),  # filters before the estimator
        ("--whiten-advantages", "--aggregation", "prompt-mean"),
        ("--estimator", "rloo", "--loss", "clip_cov", "--cov-low", 0, "--cov-share", 0.1),
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
    swept = summary_of(path, *words, *sweep, "--against", "correction=none")["settings"]
    gradients = []
    for one in swept:
        name, coef = one["swept"].values()
        own = () if name == "none" else ("--correction", name)
        own = (*words, *own, "--kl-loss-coef", coef)
        (single,) = summary_of(path, *own)["settings"]
        for key in {*single} - {"gradient", "swept", "positions", "steps", "domains"}:
            assert one[key] == single[key], (name, key)
        out = tmp_path / f"{len(gradients)}.parquet"
        assert run("loss", path, out, "--emit", "loss_gradient", *own).code == 0
        of_tokens = pl.read_parquet(out)["loss_gradient"].explode(empty_as_null=False)
        gradients.append(of_tokens.to_numpy().astype(float))
    assert len({one["tokens"] for one in swept}) > 1
    for one, own, base in zip(swept, gradients, gradients[:2] * 3, strict=True):
        cosine = own @ base / math.sqrt((own @ own) * (base @ base))
        assert one["gradient"]["cosine"] == pytest.approx(cosine, rel=1e-4)
        assert one["gradient"]["against"]["correction"] == "none"


def test_a_sweep_of_corrections_from_python_is_that_of_the_command(tmp_path):
    path = save(dump(with_advantages=False), tmp_path / "in.parquet")
    recipe = rlpost.Recipe(is_weight="token")
    sweep = {"correction": [None, "verl:decoupled_geo_rs"], "is_cap": [1.5, 2.0]}
    found = rlpost.loss(path, recipe=recipe, sweep=sweep).settings
    words = ("--sweep", "correction=none,verl:decoupled_geo_rs", "--sweep", "is_cap=1.5,2")
    for one, other in zip(found, summary_of(path, "--is-weight", "token", *words)["settings"],
                          strict=True):  # fmt: skip
        same = {*one} - {"swept", "gradient"}
        assert {name: one[name] for name in same} == {name: other[name] for name in same}
        assert one["gradient"]["ess"] == other["gradient"]["ess"]


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
