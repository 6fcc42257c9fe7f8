"""Files of other semantics are named as such, and their numbers are not mixed with present ones."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import rollout, run, save, strict_json

import rlpost
from rlpost.errors import DataError
from rlpost.pipeline.output.metadata import SEMANTICS_KEY, FileMetadata
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.semantics import SEMANTICS

OTHER = SEMANTICS + 1
NUMBERS = f"semantics {OTHER} (this version: {SEMANTICS})"
RUNNING = Recipe(norm_mean="running", norm_std="running")


def one_line(text):
    """The text without its line breaks, which depend on the length of paths."""
    return " ".join(text.split())


def stored(path):
    return pq.read_metadata(path).metadata.get(SEMANTICS_KEY.encode())


def of_other_semantics(path):
    """The file, as if a version with other semantics had written it."""
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, SEMANTICS_KEY.encode(): str(OTHER).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def with_first_advantage(path, value):
    """The file with another first advantage, by pyarrow."""
    table = pq.read_table(path)
    lists = table["advantages"].to_pylist()
    lists[0][0] = value
    column = pa.array(lists, table.schema.field("advantages").type)
    place = table.schema.get_field_index("advantages")
    pq.write_table(table.set_column(place, table.schema.field(place), column), path)


def with_other_number(path):
    """The JSON file, as if a version with other semantics had written it."""
    path.write_text(json.dumps({**json.loads(path.read_text()), "semantics": OTHER}))


@pytest.fixture
def source(tmp_path):
    return save(rollout(), tmp_path / "in.parquet")


@pytest.fixture
def enriched(source, tmp_path):
    assert run("advantages", source, tmp_path / "out.parquet", "-q").code == 0
    return tmp_path / "out.parquet"


@pytest.mark.parametrize("text", [b"0", b"-1", b"two", b"1.5", None])
def test_a_number_that_is_none_is_damage(enriched, text):
    metadata = dict(pq.read_metadata(enriched).metadata)
    del metadata[SEMANTICS_KEY.encode()]
    metadata |= {} if text is None else {SEMANTICS_KEY.encode(): text}
    with pytest.raises(DataError, match="its metadata is damaged"):
        FileMetadata.read("x.parquet", metadata)


def test_outputs_have_the_number(source, tmp_path):
    options = rlpost.Options(state=tmp_path / "state.json")
    rlpost.advantages(source, tmp_path / "out.parquet", RUNNING, options)
    assert stored(tmp_path / "out.parquet") == str(SEMANTICS).encode()
    assert json.loads((tmp_path / "state.json").read_text())["semantics"] == SEMANTICS
    ran = run("verify", tmp_path / "out.parquet")
    assert (ran.code, "semantics" in ran.out) == (0, False)
    assert strict_json(run("config", "schema").out)["x-semantics"] == SEMANTICS


def test_verify_recomputes_a_file_of_other_semantics_and_names_the_number(enriched):
    of_other_semantics(enriched)
    ran = run("verify", enriched)
    assert ran.code == 0, ran.out + ran.err
    assert f"! it has {NUMBERS}" in one_line(ran.out)
    (file,) = strict_json(run("verify", enriched, "--format", "json").out)["files"]
    assert (file["semantics"], len(file["columns"])) == (OTHER, 3)
    assert {one["verdict"] for one in file["columns"]} == {"identical"}


def test_a_column_of_other_semantics_may_differ(enriched):
    with_first_advantage(enriched, 5.0)
    ran = run("verify", enriched)
    assert (ran.code, "DIFFERS in 1 row" in ran.out) == (1, True)
    of_other_semantics(enriched)
    ran = run("verify", enriched)
    assert ran.code == 0
    assert f"other values under semantics {OTHER}: advantages" in one_line(ran.out)
    result = strict_json(run("verify", enriched, "--format", "json").out)
    verdicts = {one["column"]: one["verdict"] for one in result["files"][0]["columns"]}
    assert verdicts["advantages"] == "other semantics"


def test_loss_prints_the_semantics_of_the_advantages_that_it_reads(source, enriched, tmp_path):
    of_other_semantics(enriched)
    out = tmp_path / "loss.parquet"
    words = ("--map", "log_probs=ref_log_probs", "--format", "json")
    summary = strict_json(run("loss", enriched, out, *words).out)
    assert summary["findings"][0]["text"] == f"out.parquet: the advantages have {NUMBERS}"
    assert stored(out) == str(OTHER).encode(), "its advantages are still of other semantics"
    summary = strict_json(run("loss", source, out, "--overwrite", *words).out)
    assert not any("semantics" in finding["text"] for finding in summary["findings"])
    assert stored(out) == str(SEMANTICS).encode()


def test_running_statistics_of_two_definitions_of_the_reward_are_not_mixed(source, tmp_path):
    state, out = tmp_path / "state.json", tmp_path / "out.parquet"
    norms = ("-q", "--norm-mean", "running", "--norm-std", "running", "--state", state)
    assert run("advantages", source, tmp_path / "before.parquet", *norms).code == 0
    with_other_number(state)
    before = state.read_bytes()
    ran = run("advantages", source, out, *norms)
    assert ran.code == 3
    assert f"--state {state}: has {NUMBERS}" in one_line(ran.err)
    assert (state.read_bytes(), out.exists()) == (before, False)
