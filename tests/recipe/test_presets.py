"""Presets: what they are, how they are asked for, shown and compared; golden tests hold them."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from runs import rollout, run, save

from rlpost.errors import UsageError
from rlpost.estimators import completed
from rlpost.losses import LOSSES
from rlpost.recipe.estimators import NAMES
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.presets import (
    PRESETS,
    differences,
    loss_preset,
    loss_values_of,
    loss_variants,
    preset,
    source_of,
    variants,
)
from rlpost.recipe.recipe import Recipe, load_toml, without_loss

every_preset = pytest.mark.parametrize("name", PRESETS)


def recipe_line(ran):
    """Return the screen from the line on that has the recipe in words."""
    return " ".join(ran.err.split()).partition(" recipe ")[2]


@every_preset
def test_a_preset_is_printed_as_an_equivalent_file(name, tmp_path):
    path = tmp_path / "shown.toml"
    for estimator in ("grpo", *variants(name)):
        words = ("--preset", name, "--estimator", estimator, "--format", "toml")
        path.write_text(run("config", *words).out)
        assert Recipe.from_toml(path) == preset(name, estimator=estimator)
    path.write_text(run("list", "presets", name).out)
    shown = json.loads(run("list", "presets", name, "--format", "json").out)
    for values in (load_toml(path), shown):
        assert Recipe.of(without_loss(values)) == preset(name)
        assert LossOptions.of(values["loss"]) == loss_preset(name) != LossOptions()
    assert all(loss_preset(name, loss=loss).loss in LOSSES for loss in loss_variants(name))


def test_a_loss_is_selected_by_the_frameworks_name():
    assert loss_preset("trl", loss="grpo").loss == "ppo"
    assert loss_preset("trl", loss="grpo", agg_rows="valid").agg_rows == "valid"
    assert loss_preset("default") == LossOptions()
    assert loss_values_of("default", {"pg_clip": 0.1}) == {"loss": "ppo", "pg_clip": 0.1}
    with pytest.raises(UsageError, match="preset verl: pg_clip is -1"):
        loss_preset("verl", pg_clip=-1)


def test_advantages_ignores_the_loss_table_of_a_recipe_file(asked, tmp_path):
    config = tmp_path / "recipe.toml"
    config.write_text('preset = "trl"\n[loss]\nloss = "gspo"\n')
    assert asked("--config", str(config))[2] == preset("trl")


@pytest.mark.parametrize("words", [("--preset", "verl"), ("--config", "r.toml")])
def test_preset_and_requested_estimator_are_on_screen_in_json_and_in_the_file(
    words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text('preset = "verl"\n')
    save(rollout(), Path("in.parquet"))
    ran = run("advantages", "in.parquet", "out.parquet", *words, "--summary-json", "-")
    assert "preset verl, grpo" in recipe_line(ran)
    told = {"preset": "verl", "requested_estimator": "grpo"}
    assert told.items() <= json.loads(ran.out).items()
    noted = pq.read_schema("out.parquet").metadata
    assert json.loads(noted[b"rlpost.preset"]) == told
    assert json.loads(noted[b"rlpost.recipe"])["estimator"] == "grpo"
    assert run("verify", "out.parquet").code == 0
    plain = recipe_line(run("advantages", "in.parquet", "plain.parquet"))
    assert "grpo" in plain
    assert "preset" not in plain
    assert b"rlpost.preset" not in pq.read_schema("plain.parquet").metadata


def test_the_list_has_a_line_for_each_preset():
    rows = json.loads(run("list", "presets", "--format", "json").out)
    assert [row["preset"] for row in rows] == list(PRESETS)
    for row, source in zip(rows, map(source_of, PRESETS), strict=True):
        assert row["repository"] == source.repository
        assert (row["commit"], row["date"], row["release"]) == (
            source.commit, source.date, source.release,
        )  # fmt: skip
        assert len(source.commit) >= 8 or (source.release and source.date)


def test_differences_of_two_frameworks_have_a_description():
    found = {one.field: one for one in differences(preset("verl"), preset("trl"))}
    assert found["norm_eps"][1:3] == (1e-6, 1e-4)
    assert found["norm_eps"].meaning.startswith("ε added to the standard deviation")
    assert differences(preset("verl"), preset("verl")) == []
    lines = run("config", "diff", "verl", "trl").out.splitlines()
    assert ["field", "verl", "trl"] in [line.split() for line in lines]
    line = next(line for line in lines if line.startswith("norm_eps"))
    assert line.split() == ["norm_eps", "1e-06", "0.0001"]
    short = run("config", "diff", "verl", "trl", "--estimator", "grpo").out
    fields = [line.split()[0] for line in short.splitlines() if line[:1].islower()]
    assert "norm_eps" in fields
    assert {"is_clamp", "loss.dual_clip"}.isdisjoint(fields)  # grpo reads none


def test_differences_include_the_policy_loss():
    words = ("config", "diff", "nemo-rl", "default", "--loss", "gspo", "--format", "json")
    found = {row["field"]: row for row in json.loads(run(*words).out)}
    clip = found["loss.pg_clip"]
    assert (clip["nemo-rl"], clip["default"]) == (0.2, "0.0003:0.0004")
    assert clip["meaning"]
    words = ("config", "diff", "verl", "default", "--loss", "gspo", "--format", "json")
    (cap,) = [row for row in json.loads(run(*words).out) if row["field"] == "loss.ratio_cap"]
    assert (cap["verl"], cap["default"]) == (10.0, "never")
    assert "log s" in cap["meaning"]
    usual = json.loads(run("config", "diff", "prime-rl", "verl", "--format", "json").out)
    (loss,) = [row for row in usual if row["field"] == "loss.loss"]
    assert (loss["prime-rl"], loss["verl"]) == ("ipo", "ppo")


def test_options_of_a_preset_are_those_of_the_estimators_that_have_them():
    assert preset("roll", estimator="gigpo").options == {"episodes": "row", "states": "batch"}
    assert preset("roll").options == {}
    for name in PRESETS:
        for estimator in (*NAMES, *variants(name)):
            recipe = preset(name, estimator=estimator)
            assert completed(recipe).options.items() >= recipe.options.items()
    rows = json.loads(
        run("config", "diff", "roll", "default", "--estimator", "gigpo", "--format", "json").out
    )
    (states,) = [row for row in rows if row["field"] == "options.states"]
    assert (states["roll"], states["default"]) == ("batch", "group")
    assert "equal states" in states["meaning"]


def test_a_difference_of_a_value_of_several_parts_has_it_as_one_writes_it():
    found = {one.field: one for one in differences(preset("nemo-rl"), preset("openrlhf"))}
    assert (found["reward_clip"].left, found["reward_clip"].right) == (None, 10.0)
    filters = (preset("verl", is_filter=("max:k3::0.3",)), preset("verl"))
    assert [(one.left, one.right) for one in differences(*filters)] == [(("max:k3::0.3",), ())]


@pytest.mark.parametrize("name", PRESETS)
def test_no_estimator_of_a_preset_has_another_name_on_screen(name):
    """What a user types is what config, differences, errors and the summary print."""
    for estimator in variants(name):
        recipe = preset(name, estimator=estimator)
        assert estimator in (recipe.estimator, recipe.estimator_name)
        assert recipe.estimator != "raw"
        if estimator in NAMES:
            words = ("config", "diff", name, "default", "--estimator", estimator)
            rows = json.loads(run(*words, "--format", "json").out)
            assert "estimator_name" not in {row["field"] for row in rows}
    words = ("config", "show", "--preset", name, "--estimator", "grpo", "--all")
    words += ("--format", "json")
    values = {row["field"]: row["value"] for row in json.loads(run(*words).out)}
    assert "grpo" in (values["estimator"], values["estimator_name"])
