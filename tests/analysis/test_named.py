"""What data names is never imported, opened or requested, except if the user names it, too."""

from __future__ import annotations

import json
import shlex
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import rollout, run, save
from tokenizers import Tokenizer, models, pre_tokenizers
from traces import Hub, Opens, Package

import rlpost

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="inotify")


@pytest.fixture
def theirs(tmp_path):
    return Package(tmp_path / "site", "theirs")


@pytest.fixture
def hub():
    server = Hub()
    yield server
    server.close()


@pytest.fixture
def tokenizer(tmp_path):
    """A tokenizer of words, in a folder of its own."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))  # noqa: S106
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "words").mkdir()
    words.save(str(tmp_path / "words" / "tokenizer.json"))
    return tmp_path / "words"


def texts(path):
    """Write responses without tokens."""
    rows = [f"word {'x ' * (i % 3)}end" for i in range(12)]
    table = pa.table({"prompt_id": [i // 4 for i in range(12)], "completion": rows})
    return save(table.append_column("reward", pa.array([i % 5 / 4 for i in range(12)])), path)


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
        ("report", enriched, "-o", out / "r.html"),
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


@pytest.mark.nightly
@LINUX
def test_a_tokenizer_is_opened_only_if_the_user_names_it(theirs, tokenizer, hub, tmp_path):
    source, enriched = texts(tmp_path / "in.parquet"), tmp_path / "enriched.parquet"
    watch = Opens(tokenizer / "tokenizer.json")
    how = ("--estimator", "opo", "--tokenizer", tokenizer)
    (made,) = theirs.run(("advantages", source, enriched, *how, "-q"))
    assert made[0] == 0, made[2]
    assert watch.opened()
    remote = with_recipe(enriched, tmp_path / "hub.parquet", tokenizer="evil/model")
    out = tmp_path / "out"
    out.mkdir()
    names = {remote: "evil/model", enriched: tokenizer}
    needed = [("verify", path) for path in names]
    every = [*readers(enriched, out), *needed]
    ran = dict(zip(every, theirs.run(*every, **hub.environment), strict=True))
    assert hub.requests == []
    assert not watch.opened()
    for words in needed:
        code, _, error = ran[words]
        assert (code, flags_in(error)) == (2, ["--tokenizer", str(names[words[1]])])

    named = theirs.run(
        ("verify", remote, "--tokenizer", tokenizer),
        ("verify", remote, "--tokenizer", "evil/model"),
        **hub.environment,
    )
    assert [one[0] for one in named] == [0, 4], named
    assert watch.opened()
    assert any("hf_secret" in one for one in hub.requests)  # the user named it


def test_a_name_that_no_metadata_needs_is_an_error(tmp_path):
    source, enriched = save(rollout(), tmp_path / "in.parquet"), tmp_path / "enriched.parquet"
    assert run("advantages", source, enriched, "-q").code == 0
    for flag, value in (("--estimator", "grpo"), ("--tokenizer", "words")):
        ran = run("verify", enriched, flag, value)
        assert ran.code == 2
        assert f"{flag} {value}: has no effect" in ran.err


def test_python_functions_have_the_same_arguments(tokenizer, tmp_path):
    source, enriched = texts(tmp_path / "in.parquet"), tmp_path / "enriched.parquet"
    recipe = rlpost.Recipe(estimator="opo", tokenizer=str(tokenizer))
    rlpost.advantages(source, enriched, recipe)
    with pytest.raises(rlpost.errors.UsageError, match="--tokenizer"):
        rlpost.verify(enriched)
    assert rlpost.verify(enriched, tokenizer=str(tokenizer)).ok
