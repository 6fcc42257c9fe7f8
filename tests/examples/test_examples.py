"""The examples run unchanged, and do what their comments promise."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import rlpost
from rlpost.functional import policy_loss

HERE = Path(__file__).parent
SAMPLE = HERE.parents[1] / "sample_data" / "arithmetic.parquet"
sys.path.insert(0, str(HERE))

from train import train  # noqa: E402


@pytest.fixture(scope="module")
def enriched(tmp_path_factory):
    path = tmp_path_factory.mktemp("out") / "out.parquet"
    recipe = rlpost.Recipe(  # that of the manual's page
        drop_difficulty="0.1:0.95",
        whiten_advantages=True,
        difficulty_weight=True,
        is_weight="token",
    )
    rlpost.advantages(SAMPLE, path, recipe)
    return path


# Training


def with_log_probs(path, before, after):
    """Return the rows of a file with the log-probs of two policies, and the losses of batches."""
    rows = pl.read_parquet(path).filter("sample_mask").with_row_index("row")
    old, new = {}, {}
    for batch in rlpost.load(path, batch_tokens=4096):
        with torch.no_grad():
            pairs = ((old, before(batch)), (new, after(batch)))
        for columns, values in pairs:
            for number, n, own in zip(batch["rows"], batch["lengths"], values, strict=True):
                columns[int(number)] = own[:n].tolist()
    order = sorted(old)
    return rows.with_columns(
        pl.Series("old_log_probs", [old[n] for n in order], dtype=pl.List(pl.Float32)),
        pl.Series("log_probs", [new[n] for n in order], dtype=pl.List(pl.Float32)),
    )


@pytest.mark.parametrize("loss", ["ppo", pytest.param("gspo", marks=pytest.mark.nightly)])
def test_training_raises_what_advantages_reward(enriched, loss, tmp_path):
    steps, before, after = train(enriched, steps=30, loss=loss)
    assert len(steps) == 30
    assert steps[0].gain == 0
    assert min(step.gain for step in steps[20:]) > max(step.gain for step in steps[:3])
    rows = with_log_probs(enriched, before, after)
    weighted = [
        sum(np.dot(row["advantages"], row[name]) for row in rows.iter_rows(named=True))
        for name in ("old_log_probs", "log_probs")
    ]
    assert weighted[1] > weighted[0] + 0.01 * abs(weighted[0])

    rows.write_parquet(tmp_path / "trained.parquet")
    summary = rlpost.loss(tmp_path / "trained.parquet", loss=rlpost.LossOptions(loss=loss))
    (batch,) = rlpost.load(
        tmp_path / "trained.parquet", batch_tokens=10**9, layout="packed",
        columns=["advantages", "old_log_probs", "log_probs"],
    )  # fmt: skip
    first, result = (
        policy_loss(
            batch[name], batch["old_log_probs"], batch["advantages"], batch["cu_seqlens"],
            batch["mask"], loss=loss, totals=batch["totals"],
        )
        for name in ("old_log_probs", "log_probs")
    )  # fmt: skip
    if loss == "ppo":  # the range of gspo is so narrow that most of its gain is clipped
        assert result.loss < first.loss - 0.01
    for code, name in ((1, "clipped_low"), (2, "clipped_high")):
        assert int((result.clip == code).sum()) == summary.facts[name]["all"]["total"] > 0


@pytest.mark.nightly
def test_the_script_learns(enriched):
    done = subprocess.run(
        [sys.executable, HERE / "train.py", enriched],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    printed = [re.findall(r"[-+]?[\d.]+", line) for line in done.stdout.splitlines()]
    steps = np.array(printed, float)
    assert steps[:, 0].tolist() == [*range(30)]
    gains = steps[:, 2].reshape(6, 5).mean(axis=1)
    assert gains[0] == pytest.approx(0, abs=0.02)
    assert gains[-1] > 0.02


# Preparing data


def prepare(*words, **variables):
    if shutil.which("jq") is None:
        assert os.environ.get("CI") != "true", "CI installs jq"
        pytest.skip("the script needs jq, which is not installed")
    folder = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", HERE / "prepare.sh", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": folder, **variables},
    )


def test_good_data_is_written(tmp_path):
    out = tmp_path / "out.parquet"
    done = prepare(SAMPLE, out, "--estimator", "rloo")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("prepare: 512 responses")
    assert json.loads((tmp_path / "out.summary.json").read_text())["estimator"] == "rloo"
    assert "advantages" in pq.read_schema(out).names
    written = out.stat().st_mtime_ns
    again = prepare(SAMPLE, out, "--estimator", "rloo")
    assert (again.returncode, out.stat().st_mtime_ns) == (2, written)
    assert "exists already" in again.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "out.inspect.json", "out.parquet", "out.summary.json",
    }  # fmt: skip


def with_constant(tmp_path, **columns):
    table = pq.read_table(SAMPLE)
    for name, value in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array([value] * table.num_rows))
    path = tmp_path / "in.parquet"
    pq.write_table(table, path)
    return path


def test_findings_stop_the_script_and_are_printed(tmp_path):
    done = prepare(with_constant(tmp_path, reward=1.0), tmp_path / "out.parquet")
    assert done.returncode == 1
    assert "reward" in done.stderr
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--gama", "1"), 2, "--gama"),
        (("--map", "mask=gone"), 3, "this dump is skipped"),
        (("--drop-longer", "22"), 10, "% masked"),
    ],
)
def test_each_failure_has_its_own_exit_code(tmp_path, words, code, text):
    done = prepare(SAMPLE, tmp_path / "out.parquet", *words, LEAST_KEPT="0.999")
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.nightly
def test_a_missing_file_exits_with_code_4(tmp_path):
    assert prepare(tmp_path / "gone.parquet", tmp_path / "out.parquet").returncode == 4
    assert prepare(SAMPLE, tmp_path / "no" / "out.parquet").returncode == 4


@pytest.mark.parametrize("words", [(), (SAMPLE,), ("--help",), (SAMPLE, "--estimator", "grpo")])
def test_wrong_arguments_print_the_usage(words):
    done = prepare(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: prepare.sh IN OUT")
