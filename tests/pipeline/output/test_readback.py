"""`--verify`: a file is read from the disk again before it is published."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
from runs import rollout, run, save
from verified_files import chunk

from rlpost.io.parquet.splice import SpliceSink
from rlpost.io.staged import StagedFile
from rlpost.pipeline.output.readback import same_values


@pytest.fixture
def sabotaged(monkeypatch, tmp_path):
    """Runs with `--verify` a job whose file is harmed when it is complete."""
    source, out = save(rollout(48), tmp_path / "in.parquet", rows=10), tmp_path / "out.parquet"

    def work(harm, *words):
        usual = StagedFile.complete

        def complete(self):
            usual(self)
            harm(self.path)

        monkeypatch.setattr(StagedFile, "complete", complete)
        ran = run("advantages", source, out, "-q", "--verify", *words)
        assert out.exists() == (ran.code == 0)
        assert {path.name for path in tmp_path.iterdir()} <= {"in.parquet", "out.parquet"}
        return ran

    return work


def flipped(column):
    def harm(path):
        at, size = chunk(path, column)
        with path.open("rb+") as file:
            file.seek(at + size - 1)
            byte = file.read(1)[0]
            file.seek(at + size - 1)
            file.write(bytes([byte ^ 1]))

    return harm


@pytest.mark.parametrize(
    "column",
    ["prompt_id", "reward", "response_mask", "old_log_probs", "advantages", "returns",
     "response_level_rewards"],
)  # fmt: skip
def test_a_bit_that_flips_on_the_disk_is_found_before_the_file_is_published(sabotaged, column):
    ran = sabotaged(flipped(column))
    assert ran.code == 4
    assert "reads back wrong" in ran.err


def test_a_file_that_is_cut_short_is_found(sabotaged):
    ran = sabotaged(lambda path: os.truncate(path, path.stat().st_size - 9))
    assert ran.code == 4
    assert "reads back wrong" in ran.err


def test_a_bit_in_columns_that_are_encoded_anew_is_found(sabotaged, monkeypatch):
    monkeypatch.setattr("rlpost.io.parquet.sink._splice", lambda *_: "a test wants it so")
    monkeypatch.setattr(
        "rlpost.pipeline.output.readback._check_sums", lambda _: None
    )  # they find it at once
    ran = sabotaged(flipped("reward"))
    assert ran.code == 4
    assert "reward of row group 2 is not as in the source" in ran.err


def test_columns_that_are_encoded_anew_pass(sabotaged, monkeypatch):
    monkeypatch.setattr("rlpost.io.parquet.sink._splice", lambda *_: "a test wants it so")
    assert sabotaged(lambda _: None).code == 0


def test_numbers_that_are_encoded_wrong_are_found_by_their_sums(monkeypatch, tmp_path):
    """What the summary counted is not what the encoder was given: no checksum can tell."""
    source, out = save(rollout(48), tmp_path / "in.parquet", rows=10), tmp_path / "out.parquet"
    usual = SpliceSink.encode

    def encode(self, columns):
        name = "response_level_rewards"
        place = columns.schema.get_field_index(name)
        arrays = list(columns.columns)
        arrays[place] = pa.array(np.asarray(arrays[place]) + 1, pa.float32())
        return usual(self, pa.record_batch(arrays, columns.schema))

    monkeypatch.setattr(SpliceSink, "encode", encode)
    ran = run("advantages", source, out, "-q", "--verify")
    assert ran.code == 4
    assert "the sum of response_level_rewards" in ran.err
    assert not out.exists()
    assert run("advantages", source, out, "-q").code == 0
    assert run("verify", out).code == 1


def test_a_good_run_is_published_and_its_bytes_are_the_same(sabotaged, tmp_path):
    assert sabotaged(lambda _: None).code == 0
    assert run("advantages", tmp_path / "in.parquet", tmp_path / "b.parquet", "-q").code == 0
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "out.parquet").read_bytes()


@pytest.mark.parametrize("words", [("--replace",), ("--emit-only",), ("--emit", "kl")])
def test_outputs_that_keep_some_columns_pass(enriched, tmp_path, words):
    ran = run("advantages", enriched, tmp_path / "b.parquet", "-q", "--verify", *words)
    assert ran.code == 0, ran.err


def test_arrays_are_the_same_where_nan_is_nan_and_not_where_bits_differ():
    nan = pa.array([[1.0, float("nan")], None, []])
    assert same_values(nan, pa.array([[1.0, float("nan")], None, []]))
    assert not same_values(nan, pa.array([[1.0, 2.0], None, []]))
    assert not same_values(nan, pa.array([[1.0, float("nan")], [], None]))
    assert not same_values(pa.array([1.0, 2.0]), pa.array([1.0]))
    struct = pa.array([{"a": float("nan")}])
    assert same_values(struct, pa.array([{"a": float("nan")}]))
