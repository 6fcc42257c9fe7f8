"""What a pass keeps for the next changes no bit, wherever it is stored and if it cannot be."""

import errno
import json
import os
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from runs import rollout, run, save
from strategies import recipes, rollouts, to_table
from test_invariance import OUTCOMES, SCANS, bits

import rlpost
from rlpost import api
from rlpost.errors import DataError, UsageError
from rlpost.io import scratch
from rlpost.pipeline import kept
from rlpost.recipe.recipe import EXTRA, WRITTEN, Recipe

GAE = ["--estimator", "gae", "--kl-coef", "0.1", "--whiten-advantages"]
EVERY = ("advantages", "returns", "raw_advantages", "token_level_rewards", "final_response_mask")


def critic():
    """Rollouts with values."""
    return rollout().append_column("values", rollout()["old_log_probs"])


@pytest.fixture
def stored(monkeypatch):
    """Sets how many bytes stay in memory."""
    return lambda most: monkeypatch.setattr(kept, "IN_MEMORY", most)


def enriched(table, recipe, tokens, folder=None):
    options = rlpost.Options(chunk_tokens=tokens, workers=2, scratch_dir=folder)
    out, summary = rlpost.enrich(table, recipe, options)
    new = [name for name in (*WRITTEN, *EXTRA) if name in out.column_names]
    return [(name, bits(out[name])) for name in new], json.dumps(summary)


@st.composite
def cases(draw):
    """Rows and a recipe, most of which have a pass for a stage of tokens."""
    options = draw(recipes((*SCANS, *OUTCOMES), gammas=(0.9, 1.0)))
    options["whiten_advantages"] = draw(st.sampled_from([True, True, False]))
    if draw(st.booleans()):
        options["emit"] = EVERY
    return draw(rollouts()), Recipe(**options)


@settings(max_examples=25)
@given(cases(), st.sampled_from([1, 40, 1 << 20]))
def test_memory_file_and_reading_again_give_the_same_bits(tmp_path_factory, case, tokens):
    rows, recipe = case
    table, folder = to_table(rows), tmp_path_factory.getbasetemp()
    usual = kept.IN_MEMORY
    try:
        in_memory = enriched(table, recipe, tokens)
        kept.IN_MEMORY = -1
        assert enriched(table, recipe, tokens) == in_memory  # read again: there is no directory
        assert enriched(table, recipe, tokens, folder) == in_memory
    except DataError:
        assume(False)  # noqa: FBT003 - masks drop all rows
    finally:
        kept.IN_MEMORY = usual


def written(tmp_path, *words):
    source = save(critic(), tmp_path / "in.parquet", rows=5)
    out = tmp_path / "out.parquet"
    ran = run("advantages", source, out, "--overwrite", *words, "--summary-json", "-", "-q")
    assert ran.code == 0, ran.err
    summary = json.loads(ran.out)
    return out.read_bytes(), summary["scratch"]


def test_a_file_of_tokens_is_beside_the_output_and_leaves_nothing(tmp_path, stored):
    want, facts = written(tmp_path, *GAE)
    assert facts["columns"] == ["advantages", "returns"]
    assert (facts["directory"], facts["problem"]) == (None, None)
    stored(-1)
    got, facts = written(tmp_path, *GAE)
    assert got == want
    assert facts["directory"] == str(tmp_path)
    own = tmp_path / "scratch"
    own.mkdir()
    got, facts = written(tmp_path, *GAE, "--scratch-dir", own)
    assert got == want
    assert facts["directory"] == str(own)
    assert {path.name for path in tmp_path.rglob("*")} == {"in.parquet", "out.parquet", "scratch"}


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fault", ["little space", "full while writing", "not writable"])
def test_columns_are_read_again_if_tokens_cannot_be_stored(tmp_path, stored, monkeypatch, fault):
    want, _ = written(tmp_path, *GAE)
    stored(-1)
    if fault == "little space":
        monkeypatch.setattr(scratch.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    elif fault == "full while writing":
        monkeypatch.setattr(scratch, "write_at", no_space)
    else:
        monkeypatch.setattr(scratch.tempfile, "TemporaryFile", no_space)
    got, facts = written(tmp_path, *GAE)
    assert got == want
    assert facts["problem"] == f"{tmp_path}: No space left on device"
    assert facts["columns"] == []


def test_a_scratch_directory_has_to_exist(tmp_path):
    source = save(critic(), tmp_path / "in.parquet")
    words = (source, tmp_path / "out.parquet", "--scratch-dir", tmp_path / "none")
    ran = run("advantages", *words)
    assert ran.code == 2
    assert "there is no such directory" in ran.err


@pytest.mark.parametrize(
    ("options", "kept_names"),
    [
        ({"estimator": "gae", "whiten_advantages": True}, ("advantages", "returns")),
        ({"estimator": "rloo"}, ()),
        ({"estimator": "gae", "whiten_rewards": True}, ("token_level_rewards",)),
    ],
    ids=["whitening", "score", "rewards"],
)
def test_the_passes_after_one_that_keeps_tokens_read_no_log_probs(tmp_path, options, kept_names):
    source = save(critic(), tmp_path / "in.parquet")
    plan = api.plan([source], Recipe(**options, kl_coef=0.1))
    passes = plan.passes(("advantages", "returns"), keeping=True)
    assert passes[1].keeps == kept_names
    assert {"old_log_probs", "ref_log_probs"} <= {*passes[1].columns}
    assert not {"old_log_probs", "ref_log_probs"} & {*passes[2].columns}


# One number per response


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "max_rl", "raw", "reinforce_pp"])
def test_a_response_advantage_is_that_of_each_of_its_tokens(tmp_path, name):
    source, out = save(critic(), tmp_path / "in.parquet", rows=5), tmp_path / "out.parquet"
    words = ("--estimator", name, "--drop-zero-variance", "--whiten-advantages", "--overwrite")
    both = ("--emit", "response_advantage,advantages")
    assert run("advantages", source, out, *words, *both, "-q").code == 0
    table = pq.read_table(out)
    for one, tokens, mask in zip(
        table["response_advantage"].to_pylist(),
        table["advantages"].to_pylist(),
        table["response_mask"].to_pylist(),
        strict=True,
    ):
        assert tokens == [one * m for m in mask]
    again = run("advantages", source, out, *words, "--emit", "response_advantage", "--verify")
    assert again.code == 0, again.err
    assert pq.read_table(out)["response_advantage"].equals(table["response_advantage"])
    assert run("verify", out).code == 0


def test_a_run_without_tokens_reads_none_in_its_last_pass_and_measures_no_kl(tmp_path):
    source = save(critic(), tmp_path / "in.parquet")
    names = ("response_advantage", "group_mean")
    plan = api.plan([source], Recipe(emit=names))
    assert [step.columns for step in plan.passes(names, keeping=True)][1:] == [()]
    _, summary = rlpost.enrich(rollout(), Recipe(emit=names))
    _, usual = rlpost.enrich(rollout())
    assert summary["kl"]["measured"] is False
    assert summary["kl"]["mean"] is None
    assert usual["kl"]["mean"] is not None
    assert summary["advantage"] == usual["advantage"]


def test_an_advantage_per_token_is_no_response_advantage():
    recipe = Recipe(estimator="gae", emit=("response_advantage",))
    with pytest.raises(UsageError, match="one per token with this recipe; --emit advantages,ret"):
        rlpost.enrich(critic(), recipe)


def test_scratch_returns_what_was_written_at_any_place(tmp_path):
    values = np.arange(1000, dtype=np.float64)
    for folder in (None, tmp_path):
        block = scratch.Scratch(8000, folder)
        for begin in (500, 0):
            block.write(values[begin : begin + 500], 8 * begin)
        assert (block.read(300, values.dtype, 8 * 400) == values[400:700]).all()
        block.close()
