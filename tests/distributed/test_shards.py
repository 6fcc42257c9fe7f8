"""Runs in shards: planned once, written by many, with the very files of a run in one process."""

import json
from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import torch
from distributed_runs import LOCAL, rlpost_command, same_files, steps_table, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import run as run_command
from shard_runs import check
from strategies import recipes, rollouts, to_table

import rlpost
from rlpost.distributed import shards
from rlpost.estimators import ESTIMATORS


def spread_over(rows, steps):
    """The rows with these many steps, all mixed up."""
    order = np.random.default_rng(len(rows)).permutation(len(rows))
    mixed = [rows[place] for place in order]
    return [replace(row, batch=place % steps) for place, row in enumerate(mixed)]


@settings(max_examples=25)
@given(rollouts(), recipes(tuple(ESTIMATORS)), st.integers(1, 4), st.integers(1, 3), st.data())
def test_shards_leave_the_bytes_of_a_run_in_one_process(rows, options, files, count, data):
    if data.draw(st.booleans()):
        rows = spread_over(rows, data.draw(st.integers(2, 5)))
    how = {"divide": data.draw(st.booleans()), "indexed": data.draw(st.booleans())}
    check(to_table(rows), rlpost.Recipe(**options), files, count, 3, **how)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_gives_the_same_in_bundles(estimator):
    options = {
        "gdpo": {"reward_components": ("correctness", "format")},
        "opd": {"teachers": {"log_probs": 1.0}},
    }.get(estimator, {})
    recipe = rlpost.Recipe(estimator=estimator, length_weight=True, **options)
    check(steps_table(36), recipe, files=3, count=2, rows_a_bucket=9, divide=True)


@pytest.mark.parametrize("options", [{}, {"emit_only": True}, {"estimator": "gae"}], ids=str)
def test_page_indexes_are_the_same_where_a_file_is_divided(options):
    recipe = rlpost.Recipe(**options)
    check(steps_table(36), recipe, files=2, count=2, rows_a_bucket=9, divide=True, indexed=True)


@pytest.mark.parametrize("name", ["sample_mask", "loss_multiplier"])
@pytest.mark.parametrize("options", [{}, {"drop_zero_variance": True, "replace": True}], ids=str)
def test_a_sample_mask_of_the_input_gives_the_same(name, options):
    mask = pa.array([float(i % 3 > 0) for i in range(60)])
    table = steps_table().append_column(name, mask)
    check(table, rlpost.Recipe(**options), files=2, count=2, rows_a_bucket=5)
    computed = table.replace_schema_metadata({"rlpost.sample_mask": "computed"})
    check(computed, rlpost.Recipe(replace=True), files=2, count=2, rows_a_bucket=5)
    nothing = table.set_column(table.num_columns - 1, name, pa.array([0] * 60))
    check(nothing, rlpost.Recipe(**options), files=2, count=2, rows_a_bucket=5)


def test_the_number_of_shards_may_change_and_a_lot_is_written_once(planned):
    before = rlpost.Options(workers=1, reporter=mock.Mock())
    assert shards.shard(planned / "state", 0, 2, before) is None
    again = rlpost.Options(workers=1, reporter=mock.Mock())
    assert shards.shard(planned / "state", 0, 1, again)["responses"] == 60
    counted = [
        sum(call.args[0] for call in one.reporter.advance.mock_calls) for one in (before, again)
    ]
    assert counted[0] > 0
    assert sum(counted) == 60
    assert not list((planned / "out").glob(".*"))


def test_a_shard_that_is_done_again_after_all_says_the_same(planned):
    first = shards.shard(planned / "state", 0, 1, LOCAL)
    assert json.dumps(shards.shard(planned / "state", 1, 5, LOCAL)) == json.dumps(first)


def test_the_state_is_kept_when_the_last_shard_ends(tmp_path):
    write_files(steps_table(), tmp_path / "in", 3)
    norms = {"norm_mean": "running", "norm_std": "running"}
    kl = {"kl_coef": 0.2, "kl_target": 0.01, "kl_horizon": 50}
    recipe = rlpost.Recipe(estimator="gae", whiten_advantages=True, **norms, **kl)  # settles twice
    for name in ("local", "shards"):
        (tmp_path / f"{name}.json").write_text(
            '{"version": 1, "semantics": 1, '
            '"running": {"math": {"count": 5, "mean": 0.5, "variance": 0.25}}}'
        )
    options = {n: replace(LOCAL, state=tmp_path / f"{n}.json") for n in ("local", "shards")}
    rlpost.advantages(tmp_path / "in", tmp_path / "local", recipe, options["local"])
    before = (tmp_path / "shards.json").read_text()
    shards.plan([tmp_path / "in"], tmp_path / "shards", tmp_path / "s", recipe, options["shards"])
    shards.shard(tmp_path / "s", 0, 2, LOCAL)
    assert (tmp_path / "shards.json").read_text() == before
    shards.shard(tmp_path / "s", 1, 2, LOCAL)
    assert (tmp_path / "shards.json").read_text() == (tmp_path / "local.json").read_text()
    assert json.loads((tmp_path / "shards.json").read_text())["kl_coef"] != 0.2
    same_files(tmp_path / "shards", tmp_path / "local")


def test_shards_on_an_object_store_leave_the_bytes_of_a_local_run(s3, tmp_path):
    write_files(steps_table(), tmp_path / "in", 3)
    for path in (tmp_path / "in").iterdir():
        s3.put(f"in/{path.name}", path.read_bytes())
    rlpost.advantages(tmp_path / "in", tmp_path / "local")
    own = rlpost.Options()
    shards.plan(["s3://lab/in/"], "s3://lab/out/", tmp_path / "state", rlpost.Recipe(), own)
    assert shards.shard(tmp_path / "state", 1, 2, own) is None
    names = s3.keys()
    assert [key for key in names if key.startswith("out/part")] == []
    assert shards.shard(tmp_path / "state", 0, 2, own)["responses"] == 60
    names = s3.keys()
    made = {key: s3.get(key) for key in names if not key.startswith("in/")}
    want = {f"out/{path.name}": path.read_bytes() for path in (tmp_path / "local").iterdir()}
    assert made == want


def test_an_array_job_by_the_command_line(tmp_path):
    write_files(steps_table(), tmp_path / "in", 3)
    done = rlpost_command(
        "plan", "in", "out", "--state-dir", "s", "--summary-json", "-", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["responses"] == 60
    assert "4 files, 60 responses" in done.stderr
    shard = ("advantages", "--state-dir", "s", "--num-shards", 2, "--shard-index")
    first = rlpost_command(*shard, 1, cwd=tmp_path)
    assert (first.returncode, "Shard 1 of 2 is written" in first.stderr) == (0, True)
    assert not list((tmp_path / "out").glob("*.parquet"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shard = ("advantages", "--state-dir", "../s", "--num-shards", 2, "--shard-index")
    last = rlpost_command(*shard, 0, "--summary-json", "-", cwd=elsewhere)
    assert json.loads(last.stdout)["responses"] == 60
    rlpost.advantages(tmp_path / "in", tmp_path / "local")
    same_files(tmp_path / "out", tmp_path / "local")


ONE_SHARD = ["--state-dir", "state", "--shard-index", "0", "--num-shards", "1"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--shard-index", "0"], "--state-dir and --num-shards"),
        (
            ["in", "out", *["--state-dir", "state", "--shard-index", "0", "--num-shards", "1"]],
            "takes no paths",
        ),
        (
            [
                "--state-dir",
                "state",
                "--shard-index",
                "0",
                "--num-shards",
                "1",
                "--estimator",
                "rloo",
            ],
            "planned with another recipe",
        ),
        ([*ONE_SHARD, "--overwrite"], "--overwrite: is for `rlpost plan`"),
        ([*ONE_SHARD, "--resume"], "--resume: is not needed"),
        ([*ONE_SHARD, "--engine", "ray"], "--engine ray: is for runs without a plan"),
        ([*ONE_SHARD, "--ray-address", "auto"], "--ray-address: is for runs without a plan"),
        ([*ONE_SHARD, "--state", "moments.json"], "--state: is for `rlpost plan`"),
        (["in", "new", "--ray-address", "auto"], "--ray-address auto: needs --engine ray"),
    ],
)
def test_a_wrong_command_line_says_what_is_right(planned, monkeypatch, words, told):
    monkeypatch.chdir(planned)
    done = run_command("advantages", *words)
    assert done.code == 2
    assert told in " ".join(done.err.split())
    assert not (planned / "new").exists()
    assert list((planned / "out").glob("*.parquet")) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_plan_checks_the_name_of_a_device_and_a_shard_whether_it_is_there(tmp_path):
    table = pa.table({"prompt_id": [0, 0], "reward": [0.0, 1.0], "response_mask": [[1], [1]]})
    write_files(table, tmp_path / "in", 1)
    plan = ("plan", tmp_path / "in", tmp_path / "out", "--state-dir", tmp_path / "state")
    ran = run_command(*plan, "--device", "gpu")
    assert (ran.code, ran.err[:20]) == (2, "error: --device gpu:")
    assert run_command(*plan, "--device", "cuda").code == 0
    shard = ("--state-dir", tmp_path / "state", "--shard-index", 0, "--num-shards", 1)
    ran = run_command("advantages", *shard)
    assert ran.code == 5
    assert f"--state-dir {tmp_path / 'state'}: planned with --device cuda: torch" in ran.err
    assert "A --device of this shard overrides that of the plan" in ran.err
    assert run_command("advantages", *shard, "--device", "cpu").code == 0
