"""Bundles have the numbers of the same rows of the input, and nothing private."""

import json
import os
import platform
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from format_writers import made, slime_train
from format_writers_text import rollouts as made_texts
from format_writers_text import verl
from runs import run

import rlpost
from rlpost.analysis.replay.bundle.reader import is_bundle, open_bundle
from rlpost.errors import DataError, UsageError

DATA = Path(__file__).parents[3] / "sample_data"
ARITHMETIC, CALCULATOR = DATA / "arithmetic.parquet", DATA / "calculator.parquet"
NUMBERS = ("advantages", "returns", "response_level_rewards", "sample_mask", "sample_weight")


@pytest.fixture(scope="module")
def enriched(tmp_path_factory):
    """The sample data with secret texts, and with the advantages that verl would compute."""
    table = pq.read_table(ARITHMETIC)
    for at, name in enumerate(table.schema.names):
        if pa.types.is_string(table.schema.field(name).type):
            texts = [f"secret {name} {text}" for text in table[name].to_pylist()]
            table = table.set_column(at, name, pa.array(texts))
    path = tmp_path_factory.mktemp("enriched") / "secret project.parquet"
    pq.write_table(table, path.with_name("in.parquet"))
    words = ("--preset", "verl", "--estimator", "grpo", "--norm-std", "none")
    assert run("advantages", path.with_name("in.parquet"), path, *words, "-q").code == 0
    return path


def rows_of(facts):
    """The row numbers of a bundle, from their text."""
    parts = [part.partition("-") for part in facts["rows"]["numbers"].split(",")]
    return [row for a, _, b in parts for row in range(int(a), int(b or a) + 1)]


def contents(path):
    """The rows, the facts and the recipe of a bundle."""
    with open_bundle(path) as case:
        return pq.read_table(case.path), case.facts, case.recipe


RECIPES = {
    "grpo": (ARITHMETIC, "group", {}),
    "rloo": (ARITHMETIC, "group", {"estimator": "rloo", "kl_coef": 0.1}),
    "filters": (ARITHMETIC, "group", {"drop_zero_variance": True, "drop_truncated": True}),
    "components": (
        ARITHMETIC,
        "batch",
        {"estimator": "gdpo", "reward_components": ("reward_correct", "reward_format")},
    ),
    "domains": (
        ARITHMETIC,
        "batch",
        {"estimator": "hierarchical_grpo", "episode_domains": ("sums", "products")},
    ),
    "weights": (ARITHMETIC, "batch", {"length_weight": True, "difficulty_weight": True}),
    "whitening": (ARITHMETIC, "batch", {"estimator": "gae", "whiten_advantages": True}),
    "running": (ARITHMETIC, "run", {"norm_mean": "running", "norm_std": "running"}),
    "turns": (CALCULATOR, "group", {"estimator": "gigpo"}),
    "rollouts": (
        CALCULATOR,
        "group",
        {"rollout_reward": "mean"},
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_numbers_of_a_bundle_are_those_of_its_rows_in_the_input(name, tmp_path):
    """Whole groups, whole steps or all rows, by what the recipe couples."""
    path, scope, options = RECIPES[name]
    recipe, whole = rlpost.Recipe(**options), pq.read_table(path)
    steps, keys = whole["step"].to_pylist(), whole["prompt_id"].to_pylist()
    chosen = len(keys) - 3
    rlpost.bundle(path, tmp_path / "case.zip", recipe, rows=[chosen])
    table, facts, stored = contents(tmp_path / "case.zip")
    rows = rows_of(facts)
    coupled = {
        "group": lambda row: (steps[row], keys[row]) == (steps[chosen], keys[chosen]),
        "batch": lambda row: steps[row] == steps[chosen],
        "run": lambda row: row < len(keys),
    }
    assert rows == [*filter(coupled[scope], range(len(keys)))]
    expected, _ = rlpost.enrich(whole, recipe)
    found, _ = rlpost.enrich(table, stored)
    names = [name for name in NUMBERS if name in expected.schema.names]
    assert len(names) >= 3
    for one in names:
        assert found[one].to_pylist() == expected[one].take(pa.array(rows)).to_pylist()


def test_groups_alone_of_a_coupled_step_are_warned_of(tmp_path):
    recipe = rlpost.Recipe(estimator="gae", whiten_advantages=True)
    options = {"groups": 2, "groups_only": True, "columns_map": {"kl": "values"}}
    found = rlpost.bundle(ARITHMETIC, tmp_path / "a.zip", recipe, **options)
    assert (found.rows["groups"], found.rows["responses"]) == (2, 16)
    assert found.recorded == {"kl": "values"}
    (warning,) = found.warnings
    assert warning.startswith("--groups-only: whitening of advantages couples these responses")


def test_a_bundle_has_no_texts_no_ids_and_no_names_of_the_machine(enriched, tmp_path):
    """Every text of the input is searched for in every byte of the bundle."""
    out = tmp_path / "case.zip"
    found = rlpost.bundle(enriched, out, rows="100-110,300")
    whole = pq.read_table(enriched)
    table, facts, _ = contents(out)
    original = whole.take(pa.array(rows_of(facts)))
    with zipfile.ZipFile(out) as file:
        every = b"".join(file.read(name) for name in file.namelist())
    pq.write_table(table, tmp_path / "plain.parquet", compression="none")
    every += (tmp_path / "plain.parquet").read_bytes()
    names = (str(enriched.parent), platform.node(), str(Path.home()), str(Path.cwd()))
    assert not [name for name in ("secret", *names) if name.encode() in every]
    assert found.left_out == facts["left_out"]
    assert {*found.left_out} == {"prompt", "response", "prompt_tokens", "response_tokens"}
    assert {*table.schema.names} | {*found.left_out} == {*whole.schema.names}
    texts = ("prompt_id", "domain", "finish_reason")
    numbers = [name for name in table.schema.names if name not in texts]
    assert table.select(numbers).equals(original.select(numbers).replace_schema_metadata(None))
    old, new = original["prompt_id"].to_pylist(), table["prompt_id"].to_pylist()
    groups = facts["rows"]["groups"]
    assert len({*zip(old, new, strict=True)}) == len({*old}) == len({*new}) == groups == 3
    assert {*table["finish_reason"].to_pylist()} == {"other"}


def test_with_texts_everything_stays(enriched, tmp_path):
    found = rlpost.bundle(enriched, tmp_path / "a.zip", groups=1, with_texts=True)
    table, facts, _ = contents(tmp_path / "a.zip")
    assert (found.left_out, found.with_texts) == ({}, True)
    whole = pq.read_table(enriched)
    assert table.equals(whole.take(pa.array(rows_of(facts))))
    assert table.schema.metadata[b"vocabulary"] == whole.schema.metadata[b"vocabulary"]


IDS = {
    "my_tokens": ([[7, 9], [8, 9, 1]], False),
    "float_tokens": ([[7.0, 9.0], [8.0, 9.0, 1.0]], False),
    "top": ([[[7]], [[8]]], False),
    "user_id": ([17, 18], False),
    "day": (pa.array([1, 2], pa.date32()), False),
    "entropy": ([[0.5, 2.0], [1.0, 2.5, 0.25]], True),
    "marks": ([[1, 0], [0, 0, 1]], True),
    "difficulty": ([0.5, 2.0], True),
    "returns": ([[2.0, 3.0], [4.0, 4.0, 4.0]], True),
    "seconds": ([3, 4], True),
}


@pytest.mark.parametrize("name", IDS)
def test_numbers_that_may_be_ids_or_tokens_are_left_out(name, tmp_path):
    values, kept = IDS[name]
    table = pa.table({"prompt_id": [5, 5], "reward": [0.0, 1.0], name: values})
    found = rlpost.bundle(table, tmp_path / "a.zip", groups=1)
    stored, *_ = contents(tmp_path / "a.zip")
    assert (name in stored.schema.names, name in found.left_out) == (kept, not kept)
    assert stored["prompt_id"].to_pylist() == ["g0", "g0"]


def test_a_role_that_depends_on_a_text_column_keeps_its_column(tmp_path):
    """ROLL's `id` is a group only beside its columns of texts."""
    table = pa.table(
        {
            "id": ["a", "a", "b", "b"],
            "case_type": ["x"] * 4,
            "score": [0.0, 1.0, 2.0, 4.0],
            "status": [None, "stop", "length", "lost in space"],
            "finish_reason": ["stop", None, "length", "lost in space"],
            "step": ["one", "two", "one", "two"],
            "response_mask": [[1]] * 4,
        }
    )
    rlpost.bundle(table, tmp_path / "a.zip", rlpost.Recipe(), rows="0-3")
    stored, facts, recipe = contents(tmp_path / "a.zip")
    assert stored["id"].to_pylist() == ["g0", "g0", "g1", "g1"]
    assert stored["step"].to_pylist() == ["b0", "b1", "b0", "b1"]
    assert stored["finish_reason"].to_pylist() == ["stop", None, "length", "other"]
    assert recipe.columns["group"] == facts["columns_map"]["group"] == "id"
    expected, _ = rlpost.enrich(table)
    assert rlpost.enrich(stored, recipe)[0]["advantages"] == expected["advantages"]


def test_rows_are_those_of_several_files_and_row_groups(tmp_path):
    whole = pq.read_table(ARITHMETIC)
    for step in (1, 0):
        folder = tmp_path / "in" / f"epoch={step}"
        folder.mkdir(parents=True)
        part = whole.slice(256 * step, 256)
        pq.write_table(part, folder / "rows.parquet", row_group_size=10)
    found = rlpost.bundle(tmp_path / "in", tmp_path / "a.zip", rows="3,250-257", with_texts=True)
    table, facts, _ = contents(tmp_path / "a.zip")
    assert table["epoch"].to_pylist() == [row // 256 for row in rows_of(facts)]
    assert table.drop_columns("epoch").equals(
        whole.take(pa.array(rows_of(facts))).replace_schema_metadata(table.schema.metadata)
    )
    assert {3, *range(250, 258)} <= {*rows_of(facts)}
    assert found.rows["responses"] < 64


@pytest.mark.parametrize("kind", ["slime", "verl"])
def test_dumps_of_frameworks_are_bundled(kind, tmp_path):
    if kind == "slime":
        path = slime_train(tmp_path, made())
        count, columns = 12, {"advantages", "returns"}
    else:
        path = verl(tmp_path / "1.jsonl", made_texts(), token_advantages=[[0.5]] * 24)
        count, columns = 24, set()
    words = ("--rows", f"0-{count - 1}", "--format", "json")
    found = run("bundle", path, "-o", tmp_path / "a.zip", *words)
    assert found.code == 0, found.err
    summary = json.loads(found.out)
    table, facts, recipe = contents(tmp_path / "a.zip")
    assert (table.num_rows, facts["format"], recipe) == (count, summary["format"], None)
    assert summary["format"].startswith(kind)
    assert table.schema.metadata[b"rlpost.format"].decode() == summary["format"]
    assert {*facts["recorded"]} >= columns
    if kind == "slime":  # with a column of lengths beside the tokens
        assert len(rlpost.replay(tmp_path / "a.zip", rlpost.preset("slime"))["stages"]) == 3
    assert summary["inputs"] == [str(path)]


def test_the_recipe_is_that_of_the_options_or_of_the_file(enriched, tmp_path):
    rlpost.bundle(enriched, tmp_path / "file.zip", groups=1)
    own = rlpost.preset("verl", estimator="grpo", norm_std="none")
    _, facts, recipe = contents(tmp_path / "file.zip")
    assert recipe == own
    assert (facts["preset"], facts["recipe_of_file"]) == ("verl", True)
    words = ("-o", tmp_path / "b.zip", "--preset", "trl", "--map", "kl=values", "--groups", "1")
    assert run("bundle", enriched, *words).code == 0
    with open_bundle(tmp_path / "b.zip") as case:
        assert case.recipe == rlpost.preset("trl")
        assert case.loss == rlpost.loss_preset("trl")
        assert case.columns_map == {"kl": "values"}
        zipped = zipfile.ZipFile(tmp_path / "b.zip")
        (tmp_path / "recipe.toml").write_bytes(zipped.read("recipe.toml"))
        words = (case.path, tmp_path / "o.parquet", "--config", tmp_path / "recipe.toml")
        assert run("advantages", *words, "--replace", "-q").code == 0
    assert run("bundle", ARITHMETIC, "-o", tmp_path / "c.zip").code == 0
    assert contents(tmp_path / "c.zip")[2] is None


def test_replay_reads_a_bundle(enriched, tmp_path):
    """It compares with the bundle's recipe, or another; what the writer warned of is printed."""
    out = tmp_path / "case.zip"
    rlpost.bundle(enriched, out, rows="3,300")
    ran = run("replay", out, "--format", "json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert (result["input"], result["warnings"]) == (str(out), [])
    assert result["recipe"]["named"] == "the recipe of the bundle"
    words = ("--preset", "verl", "--estimator", "grpo", "--norm-std", "none")
    ran = run("replay", out, *words)
    assert (ran.code, " ".join(words) in " ".join(ran.out.split())) == (0, True)
    ran = run("replay", out, "--save-config", tmp_path / "found.toml")
    assert (ran.code, "the bundle has a recipe" in ran.err) == (2, True)
    assert "is the only input" in run("replay", out, enriched).err
    recipe = rlpost.Recipe(estimator="gae", whiten_advantages=True)
    recorded, _ = rlpost.enrich(pq.read_table(ARITHMETIC), recipe)
    rlpost.bundle(recorded, out, recipe, rows=[7], overwrite=True)
    assert rlpost.replay(out)["reproduced"]
    rlpost.bundle(enriched, out, rows=[7], overwrite=True)
    with zipfile.ZipFile(out) as file:
        facts = json.loads(file.read("case.json"))
    noted = json.dumps({**facts, "warnings": ["of groups", 3], "semantics": 99})
    warnings = rlpost.replay(with_members(out, case=noted))["warnings"]
    assert warnings[0] == "of groups"
    assert warnings[1].startswith("the bundle has semantics 99 ")


def test_recorded_columns_of_other_names_are_found_in_a_bundle(tmp_path):
    table, _ = rlpost.enrich(pq.read_table(ARITHMETIC), rlpost.Recipe())
    names = {"advantages": "adv", "reward": "points"}
    table = table.rename_columns([names.get(name, name) for name in table.schema.names])
    table = table.drop_columns(["returns", "response_level_rewards"])
    words = ("--map", "advantages=adv", "--map", "reward=points", "--estimator", "grpo")
    pq.write_table(table, tmp_path / "in.parquet")
    assert run("bundle", tmp_path / "in.parquet", "-o", tmp_path / "a.zip", *words).code == 0
    found = rlpost.replay(tmp_path / "a.zip")
    assert found["reproduced"]
    assert [(one["stage"], one["column"]) for one in found["stages"]] == [("advantages", "adv")]


def test_bytes_depend_on_the_input_alone(enriched, tmp_path):
    for name in ("a", "b"):
        rlpost.bundle(enriched, tmp_path / f"{name}.zip", rows="7,300")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--rows", "600"], "arithmetic.parquet has 512 rows, 0 to 511"),
        (["--rows", "3,x"], "--rows 'x': numbers of rows from 0, and ranges of them, are needed"),
        (["--rows", "5-3"], "--rows 5-3: the range ends before it begins"),
        (["--rows", "5", "--groups", "1"], "--rows and --groups: both choose the rows"),
        (["--groups", "0"], "--groups 0: at least 1 is needed"),
        (["--prompt-id", "sum0"], "--prompt-id sum0: no row has this prompt_id"),
        (["--map", "klx=values"], "did you mean kl"),
        (["-o", "case.parquet"], "case.parquet: the name of a bundle ends in .zip"),
        (["--estimator", "a.py:f"], "is code in a file, and a bundle has no code"),
        (["--tokenizer", "gpt2"], "counts the tokens of texts, which the bundle leaves out"),
    ],
)
def test_wrong_options_are_errors_that_write_nothing(words, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run("bundle", ARITHMETIC, *([] if "-o" in words else ["-o", "case.zip"]), *words)
    assert ran.code == 2
    assert text in ran.err
    assert [*tmp_path.iterdir()] == []


def test_an_output_is_replaced_only_if_asked(tmp_path):
    out = tmp_path / "case.zip"
    out.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists already; --overwrite replaces it"):
        rlpost.bundle(ARITHMETIC, out)
    rlpost.bundle(ARITHMETIC, out, overwrite=True)
    assert is_bundle(out)
    ran = run("inspect", out)
    assert ran.code == 3
    assert "rlpost replay reads it" in ran.err


@pytest.mark.parametrize("call", ["fsync", "replace", "mkdir", "open"])
def test_a_bundle_that_is_interrupted_leaves_nothing(call, tmp_path, monkeypatch):
    folder = tmp_path / "new"

    def interrupted(*_, **__):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        rlpost.bundle(ARITHMETIC, folder / "case.zip")
    assert [*tmp_path.iterdir()] == []


def with_members(path, **members):
    """A zip file of a bundle's members, with some of them replaced, or None left out."""
    names = {"rollouts": "rollouts.parquet", "case": "case.json", "recipe": "recipe.toml"}
    with zipfile.ZipFile(path) as old:
        every = {name: old.read(name) for name in old.namelist()}
    every |= {names.get(key, key): data for key, data in members.items()}
    new = path.with_name("other.zip")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in every.items():
            if data is not None:
                file.writestr(name, data)
    return new


def facts_with(**fields):
    return json.dumps({"rlpost_bundle": 1, "semantics": 1, "columns_map": {}, **fields})


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"case": None}, "has 0 files case.json, so rlpost bundle did not write it"),
        ({"rollouts": None}, "has 0 files rollouts.parquet"),
        ({"rollouts": b"0" * 30_000_000}, "rollouts.parquet has 30,000,000 bytes, compressed to"),
        ({"recipe": b"#" * 2_000_000}, "recipe.toml has 2,000,000 bytes"),
        ({"case": b"[" * 100_000}, "its case.json is damaged"),
        ({"case": b"[]"}, "its case.json is damaged"),
        ({"case": facts_with(columns_map={"kl": 1})}, "columns_map has values that are no names"),
        ({"case": facts_with(rlpost_bundle=2)}, "a bundle of version 2; rlpost .* reads version 1"),
        ({"recipe": b"estimator = 3"}, "recipe.toml: "),
        ({"recipe": b"preset = ["}, "recipe.toml: not valid TOML"),
        ({"recipe": b"preset = 'verll'"}, "recipe.toml: "),
        ({"recipe": b"loss = 3"}, "recipe.toml: "),
    ],
)
def test_damaged_and_foreign_bundles_are_errors_of_data(members, text, enriched, tmp_path):
    rlpost.bundle(enriched, tmp_path / "case.zip", groups=1)
    with pytest.raises(DataError, match=f"other.zip: {text}|other.zip: .*{text}"):
        contents(with_members(tmp_path / "case.zip", **members))


def test_only_known_members_are_read_into_the_folder(enriched, tmp_path):
    rlpost.bundle(enriched, tmp_path / "case.zip", groups=1)
    path = with_members(tmp_path / "case.zip", **{"../evil": b"x", "/evil": b"x", "a/b": b"x"})
    with open_bundle(path) as case:
        assert {one.name for one in case.path.parent.iterdir() if one.name[0] != "."} == {
            *("rollouts.parquet", "case.json", "recipe.toml")
        }
    assert not case.path.exists()
    error = r"other.zip: rollouts.parquet: no column for values \("
    no_values = rlpost.Recipe(estimator="gae", columns={"values": "none"}, replace=True)
    with pytest.raises(DataError, match=error), open_bundle(path) as case:
        rlpost.advantages(case.path, tmp_path / "o.parquet", no_values)


def test_every_flipped_byte_is_an_error_or_no_change(enriched, tmp_path):
    rlpost.bundle(enriched, tmp_path / "case.zip", groups=1)
    table, facts, recipe = contents(tmp_path / "case.zip")
    data = (tmp_path / "case.zip").read_bytes()
    for at in np.random.default_rng(0).integers(0, len(data), 60).tolist():
        other = tmp_path / "b.zip"
        other.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with suppress(DataError):
            found = contents(other)
            assert (found[0].equals(table), found[1:]) == (True, (facts, recipe))
    for size in (0, 3, 30, len(data) // 2, len(data) - 1):
        (tmp_path / "b.zip").write_bytes(data[:size])
        with pytest.raises(DataError, match=r"b.zip: not a zip file, or damaged"):
            contents(tmp_path / "b.zip")
