"""What data names is never imported, opened or requested, except if the user names it, too."""

from __future__ import annotations

import json
import shlex

import pyarrow.parquet as pq
import pytest
from runs import rollout, run, save
from traces import Package


@pytest.fixture
def theirs(tmp_path):
    return Package(tmp_path / "site", "theirs")


def with_recipe(source, target, requested=None, **fields):
    """Write an enriched file again with other fields in the recipe of its metadata."""
    table = pq.read_table(source)
    recipe = json.loads(table.schema.metadata[b"rlpost.recipe"]) | fields
    metadata = {**table.schema.metadata, b"rlpost.recipe": json.dumps(recipe).encode()}
    if requested is not None:
        metadata[b"rlpost.preset"] = json.dumps(requested).encode()
    pq.write_table(table.replace_schema_metadata(metadata), target)
    return target


def readers(enriched, out):
    """Return every command that reads rollouts, on an enriched file."""
    return [
        ("inspect", enriched),
        ("inspect", enriched, "--row", "1"),
        ("compare", enriched, enriched), ("replay", enriched),
        ("compare", enriched, "--estimator", "grpo", "--estimator", "dr_grpo"),
        ("report", enriched, out / "r.html"),
        ("advantages", enriched, out / "a.parquet", "--replace"),
        ("advantages", enriched, "--plan"),
        ("advantages", enriched, out / "s.parquet", "--skip-existing", "--replace"),
        ("loss", enriched, "--map", "log_probs=ref_log_probs"),
        ("export", enriched, out / "e.jsonl", "--to", "jsonl"),
    ]  # fmt: skip


def flags_in(text):
    """Return the flags that an error says to add, as words of a command line."""
    return shlex.split(text.partition("add ")[2].partition(", if you trust it")[0])


@pytest.mark.nightly
def test_an_estimator_of_a_package_runs_only_if_the_user_names_it(theirs, tmp_path):
    source, enriched = save(rollout(), tmp_path / "in.parquet"), tmp_path / "enriched.parquet"
    how = ("--estimator", "theirs")
    made = theirs.run(
        ("advantages", source, enriched, *how, "-q"),
        ("list", "estimators", "theirs"),
    )
    assert [one[0] for one in made] == [0, 0], made
    assert "r - mean" in made[1][1]
    assert theirs.imported()
    out = tmp_path / "out"
    out.mkdir()
    needed = [("verify", enriched)]
    requested = {"preset": "verl", "requested_estimator": "theirs"}
    fake = with_recipe(enriched, tmp_path / "fake.parquet", requested, estimator="grpo")
    others = [
        ("replay", fake), ("list", "estimators"), ("list", "estimators", "--format", "json"),
    ]  # fmt: skip
    every = [*dict.fromkeys([*readers(enriched, out), *needed, *others])]
    ran = dict(zip(every, theirs.run(*every), strict=True))
    assert not theirs.imported()
    codes = {words: code for words, (code, *_) in ran.items() if code}
    assert codes == dict.fromkeys(needed, 2)
    for words in needed:
        assert flags_in(ran[words][2]) == ["--estimator", "theirs"]
    listed = json.loads(ran["list", "estimators", "--format", "json"][1])[-1]
    assert (listed["estimator"], listed["source"]) == ("theirs", "theirs:estimate")

    (named,) = theirs.run((*needed[0], *how))
    assert named[0] == 0, named
    assert theirs.imported()


def test_a_name_that_no_metadata_needs_is_an_error(tmp_path):
    source, enriched = save(rollout(), tmp_path / "in.parquet"), tmp_path / "enriched.parquet"
    assert run("advantages", source, enriched, "-q").code == 0
    ran = run("verify", enriched, "--estimator", "grpo")
    assert ran.code == 2
    assert "--estimator grpo: has no effect" in ran.err
