"""The examples run unchanged, and do what their comments promise."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import rlpost

HERE = Path(__file__).parent
SAMPLE = HERE.parents[1] / "sample_data" / "arithmetic.parquet"
sys.path.insert(0, str(HERE))

from train import Rollouts, collate, train  # noqa: E402


@pytest.fixture(scope="module")
def enriched(tmp_path_factory):
    path = tmp_path_factory.mktemp("out") / "out.parquet"
    rlpost.advantages(SAMPLE, path, rlpost.Recipe(difficulty_mask=True, whiten_advantages=True))
    return path


# Training


def test_the_dataset_yields_the_kept_responses_of_the_file(enriched):
    data = Rollouts(enriched)
    rows = [row for row in pq.read_table(enriched).to_pylist() if row["sample_mask"]]
    assert len(data) == len(rows) < 512
    for index in (0, len(rows) - 1):
        assert data[index]["advantages"].tolist() == rows[index]["advantages"]
        assert data[index]["response_tokens"].tolist() == rows[index]["response_tokens"]


def test_the_mask_of_a_batch_is_zero_on_prompts_and_padding(enriched):
    data = Rollouts(enriched)
    samples = [data[i] for i in range(8)]
    batch = collate(samples)
    for row, one in enumerate(samples):
        start = len(one["prompt_tokens"])
        stop = start + len(one["response_tokens"])
        assert torch.equal(batch["tokens"][row, start:stop], one["response_tokens"].long())
        assert torch.equal(batch["advantages"][row, start:stop], one["advantages"])
        assert batch["mask"][row].sum() == one["response_mask"].sum()
        assert not batch["mask"][row, :start].any()
        assert not batch["mask"][row, stop:].any()


def test_training_lowers_the_loss(enriched):
    losses = train(enriched, epochs=3)
    assert losses[-1] < losses[0] - 0.01


def test_the_script_prints_the_loss_of_each_epoch(enriched):
    done = subprocess.run(
        [sys.executable, HERE / "train.py", enriched], capture_output=True, text=True, check=True
    )
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        f"epoch {n}" for n in range(4)
    ]


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


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--gama", "1"), 2, "--gama"),
        (("--map", "mask=gone"), 3, "this dump is skipped"),
        (("--max-len-mask", "--max-response-length", "22"), 10, "% masked"),
    ],
)
def test_each_failure_has_its_own_exit_code(tmp_path, words, code, text):
    done = prepare(SAMPLE, tmp_path / "out.parquet", *words, LEAST_KEPT="0.999")
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_missing_file_exits_with_code_4(tmp_path):
    assert prepare(tmp_path / "gone.parquet", tmp_path / "out.parquet").returncode == 4
    assert prepare(SAMPLE, tmp_path / "no" / "out.parquet").returncode == 4


@pytest.mark.parametrize("words", [(), (SAMPLE,), ("--help",), (SAMPLE, "--estimator", "grpo")])
def test_wrong_arguments_print_the_usage(words):
    done = prepare(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: prepare.sh IN OUT")
