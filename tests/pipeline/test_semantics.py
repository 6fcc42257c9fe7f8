"""Outputs of older semantics are named as such: no command fails on them, and none mixes them.

`semantics_1.zip` has what rlpost 0.1.0 wrote, before there was a number: enriched files, a state
file, the output folder of a stopped run and the folder of a plan for shards.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_cli import run, strict_json

import rlpost
from rlpost.errors import DataError
from rlpost.pipeline.output.metadata import SEMANTICS_KEY, FileMetadata
from rlpost.recipe import semantics
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import ROLES
from rlpost.recipe.semantics import HISTORY, SEMANTICS, Change

CONCERNED = {
    "process": "process rewards are added",
    "zero_variance": "--drop-zero-variance keeps",
    "rollout": "rows of a rollout",
    "max_len": "--max-len-mask drops",
}
NUMBERS = f"semantics 1 (this version: {SEMANTICS}); changed since: "


def one_line(text):
    """The text without its line breaks, which depend on the length of paths."""
    return " ".join(text.split())


@pytest.fixture
def old(tmp_path):
    """What rlpost wrote with semantics 1."""
    with zipfile.ZipFile(Path(__file__).with_name("semantics_1.zip")) as file:
        file.extractall(tmp_path / "old")
    return tmp_path / "old"


def stored(path):
    return pq.read_metadata(path).metadata.get(SEMANTICS_KEY.encode())


def with_first_advantage(path, value):
    """The file with another first advantage, by pyarrow."""
    table = pq.read_table(path)
    lists = table["advantages"].to_pylist()
    lists[0][0] = value
    column = pa.array(lists, table.schema.field("advantages").type)
    place = table.schema.get_field_index("advantages")
    pq.write_table(table.set_column(place, table.schema.field(place), column), path)


# The number and its history


def test_every_number_since_the_first_has_its_changes():
    assert sorted(HISTORY) == list(range(2, SEMANTICS + 1))
    for change in semantics.changes_since(1):
        concerns = {name for together in change.concerns for name in together.split("&")}
        details = {name for name in concerns if name.startswith("numerics.")}
        assert concerns - details <= {*Recipe.model_fields, *ROLES}
        for detail in details:
            name, _, value = detail.removeprefix("numerics.").partition("=")
            assert value in get_args(Numerics.model_fields[name].annotation)
        for name in change.before:
            group, _, detail = name.rpartition(".")
            assert detail in (Numerics if group else Recipe).model_fields


def test_a_change_may_concern_a_value_of_numerics():
    cut = Recipe(numerics={"observations": "cut"})
    change = Change("x", ("numerics.observations=cut",))
    assert change.applies(cut, ())
    assert not change.applies(Recipe(), ())


def test_values_of_older_semantics_fill_in_what_an_older_recipe_lacks(monkeypatch):
    change = Change("x", ("gamma",), {"pass_threshold": 0.5, "numerics.norm_ddof": 0})
    monkeypatch.setattr(semantics, "HISTORY", {SEMANTICS: (change,)})
    filled = semantics.with_older_defaults({"gamma": 0.9, "numerics": {"norm_eps": 0.1}}, 1)
    assert filled == {
        "gamma": 0.9, "pass_threshold": 0.5, "numerics": {"norm_eps": 0.1, "norm_ddof": 0},
    }  # fmt: skip
    assert semantics.with_older_defaults({"pass_threshold": 0.7}, 1)["pass_threshold"] == 0.7
    assert semantics.with_older_defaults({"gamma": 0.9}, SEMANTICS) == {"gamma": 0.9}
    assert semantics.with_older_defaults({"gamma": 0}, 1) == {"gamma": 0}, "it concerns it not"


@pytest.mark.parametrize("text", [b"0", b"-1", b"two", b"1.5"])
def test_a_number_that_is_none_is_damage(old, text):
    metadata = {**pq.read_metadata(old / "plain.parquet").metadata, SEMANTICS_KEY.encode(): text}
    with pytest.raises(DataError, match="its metadata is damaged"):
        FileMetadata.read("x.parquet", metadata)


def test_outputs_have_the_number(old, tmp_path):
    recipe = Recipe(norm_mean="running", norm_std="running")
    options = rlpost.Options(state=tmp_path / "state.json")
    rlpost.advantages(old / "input.parquet", tmp_path / "out.parquet", recipe, options)
    assert stored(tmp_path / "out.parquet") == str(SEMANTICS).encode()
    assert json.loads((tmp_path / "state.json").read_text())["semantics"] == SEMANTICS
    ran = run("verify", tmp_path / "out.parquet")
    assert (ran.code, "semantics" in ran.out) == (0, False)
    assert strict_json(run("schema").out)["x-semantics"] == SEMANTICS


# verify


@pytest.mark.parametrize("name", ["plain", *CONCERNED])
def test_verify_prints_the_number_and_what_changed_for_the_recipe(old, name):
    ran = run("verify", old / f"{name}.parquet")
    assert ran.code == 0, ran.out + ran.err
    assert NUMBERS + CONCERNED.get(name, "nothing that concerns the recipe") in one_line(ran.out)
    for other in CONCERNED.keys() - {name}:
        assert CONCERNED[other] not in one_line(ran.out)
    (file,) = strict_json(run("verify", old / f"{name}.parquet", "--format", "json").out)["files"]
    assert file["semantics"] == 1
    if name == "rollout":  # its rows have different rewards, for which a rule is needed now
        assert "its columns were not recomputed" in one_line(ran.out)
        assert "--rollout-reward" in ran.out
        return
    other = {one["column"] for one in file["columns"] if one["verdict"] != "identical"}
    assert other == ({"sample_mask"} if name == "max_len" else set())
    assert len(file["columns"]) >= 3


def test_a_number_that_differs_fails_unless_a_change_explains_it(old):
    for name in ("plain", "max_len"):
        with_first_advantage(old / f"{name}.parquet", 5.0)
    ran = run("verify", old / "plain.parquet")
    assert (ran.code, "DIFFERS in 1 row" in ran.out) == (1, True)
    ran = run("verify", old / "max_len.parquet")
    assert ran.code == 0
    assert "other values under semantics 1: advantages" in one_line(ran.out)
    result = strict_json(run("verify", old / "max_len.parquet", "--format", "json").out)
    verdicts = {one["column"]: one["verdict"] for one in result["files"][0]["columns"]}
    assert verdicts["advantages"] == "other semantics"


def test_verify_prints_that_a_newer_rlpost_wrote_a_file(old):
    path = old / "plain.parquet"
    table = pq.read_table(path)
    newer = {**table.schema.metadata, SEMANTICS_KEY: str(SEMANTICS + 1)}
    pq.write_table(table.replace_schema_metadata(newer), path)
    ran = run("verify", path)
    assert ran.code == 0
    assert f"semantics {SEMANTICS + 1} (this version: {SEMANTICS}); upgrade rlpost" in one_line(
        ran.out
    )


# loss and compare


def test_loss_prints_the_semantics_of_the_advantages_that_it_reads(old, tmp_path):
    out = tmp_path / "loss.parquet"
    summary = strict_json(run("loss", old / "max_len.parquet", out, "--format", "json").out)
    assert summary["warnings"][0].startswith(f"max_len.parquet: the advantages have {NUMBERS}")
    assert stored(out) is None, "its advantages are still those of semantics 1"
    summary = strict_json(
        run("loss", old / "input.parquet", out, "--overwrite", "--format", "json").out
    )
    assert not any("semantics" in text for text in summary["warnings"])
    assert stored(out) == str(SEMANTICS).encode()


def test_compare_prints_the_semantics_of_each_side(old, tmp_path):
    new = tmp_path / "new.parquet"
    assert run("advantages", old / "input.parquet", new, "-q").code == 0
    words = ("compare", old / "process.parquet", new)
    warning = f"process.parquet: the advantages have {NUMBERS}{CONCERNED['process']}"
    found = strict_json(run(*words, "--format", "json").out)
    assert [text.startswith(warning) for text in found["warnings"]] == [True]
    for how in ("table", "markdown"):
        assert f"! {warning}" in one_line(run(*words, "--format", how).out)
    again = strict_json(run("compare", new, new, "--format", "json").out)
    assert again["warnings"] == []


# --resume, shards, --state


def test_a_stopped_run_of_older_semantics_starts_over(old, tmp_path):
    assert run("advantages", old / "in", tmp_path / "whole", "-q").code == 0
    out, told = old / "stopped", tmp_path / "told.json"
    words = ("advantages", old / "in", out, "-q", "--resume", "--summary-json", told)
    assert run(*words).code == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()
    }
    warning = strict_json(told.read_text())["warnings"][0]
    assert warning.startswith(f"--resume: 1 complete file of the stopped run had {NUMBERS}")
    assert "--max-len-mask" not in warning, "it is not in the recipe"
    assert warning.endswith("all files were computed anew")


def test_shards_of_an_older_plan_are_not_written(old, tmp_path):
    folder = old / "plan"
    plan = folder / "plan.json"
    shutil.copy(old / "in" / "0.parquet", tmp_path / "plain.parquet")
    plan.write_text(plan.read_text().replace("FOLDER", str(tmp_path)))
    words = ("--state-dir", folder, "--num-shards", "1", "--shard-index", "0")
    ran = run("advantages", *words)
    assert ran.code == 2
    assert f"a plan of {NUMBERS}" in ran.err
    assert "run `rlpost plan --overwrite` again" in ran.err
    staged = tmp_path / f".rlpost-run-{json.loads(plan.read_text())['run']}"
    staged.mkdir()
    (staged / "shards.parquet").write_bytes(b"complete, of semantics 1")
    paths = (tmp_path / "plain.parquet", tmp_path / "shards.parquet")
    assert run("plan", *paths, "--state-dir", folder, "--overwrite").code == 0
    assert not staged.exists()
    assert run("advantages", *words).code == 0
    assert stored(tmp_path / "shards.parquet") == str(SEMANTICS).encode()


RUNNING = ("-q", "--norm-mean", "running", "--norm-std", "running")


@pytest.mark.parametrize("name", ["input", "in"])
def test_running_statistics_of_two_definitions_of_the_reward_are_not_mixed(old, tmp_path, name):
    source = old / "input.parquet" if name == "input" else old / "in" / "0.parquet"
    state, told = old / "state.json", tmp_path / "told.json"
    before = json.loads(state.read_text())
    words = ("advantages", source, tmp_path / "out.parquet", *RUNNING, "--summary-json", told)
    assert run(*words, "--state", state).code == 0
    count = json.loads(state.read_text())["running"]["all"]["count"]
    warning = strict_json(told.read_text())["warnings"][0]
    assert warning.startswith(f"--state {state}: has {NUMBERS}")
    assert json.loads((old / "state.json.semantics-1").read_text()) == before
    if name == "input":
        assert count == pq.read_metadata(source).num_rows, "they start anew"
        assert CONCERNED["process"] in warning
        assert f"the old ones are kept in {state}.semantics-1" in warning
    else:
        assert count == pq.read_metadata(source).num_rows + before["running"]["all"]["count"]
        assert warning.endswith("nothing that concerns the recipe")
    assert run(*words, "--state", state, "--overwrite").code == 0
    assert not any("semantics" in text for text in strict_json(told.read_text())["warnings"])


@pytest.mark.parametrize(
    ("options", "roles", "concerned"),
    [
        ({"kl_coef": 0.1, "numerics": {"kl_credit": "response"}}, ["reward", "step_score"], True),
        ({"kl_coef": 0.1, "numerics": {"kl_credit": "response"}}, ["reward"], False),
        ({"numerics": {"kl_credit": "response"}}, ["reward", "step_score"], False),
        ({"kl_coef": 0.1}, ["reward", "step_score"], False),
    ],
)
def test_a_change_may_concern_fields_and_roles_only_together(options, roles, concerned):
    changes = semantics.applying(1, Recipe(estimator="gigpo", **options), roles)
    assert any("kl_credit=response" in change.text for change in changes) == concerned
