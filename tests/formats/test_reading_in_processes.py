"""Conversion by several processes: the bytes, errors and counts of one."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import loads

from rlpost.errors import DataError
from rlpost.formats.containers import json_text
from rlpost.formats.convert import convert
from rlpost.formats.rows import OtherFields, field_types


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(json_text, "LINES_BYTES", 1 << 12)
    monkeypatch.setattr("rlpost.formats.dumps.LINES_BYTES", 1 << 12)


def record(i):
    rng = np.random.default_rng(i)
    n = int(rng.integers(1, 40))
    return {
        "prompt_id": f"p{i // 4}",
        "reward": float(i % 3),
        "response_mask": [0, *[1] * n][-n:],
        "infer_log_probs": (-rng.random(n)).tolist(),
        "score": i if i < 60 else i / 2,  # an integer in the first parts
        **({"late": [i]} if i > 80 else {}),
    }


def written(path, records):
    data = "".join(json.dumps(one) + "\n" for one in records).encode()
    if path.suffix in (".gz", ".zst"):
        with pa.CompressedOutputStream(str(path), "gzip" if path.suffix == ".gz" else "zstd") as f:
            f.write(data)
    else:
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_the_file_is_that_of_one_process(suffix, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    written(source / f"a.jsonl{suffix}", map(record, range(100)))
    written(source / "b.jsonl", map(record, range(100, 103)))  # small, so read whole
    written(source / f"c.jsonl{suffix}", map(record, range(103, 200)))
    summaries = [convert([source], tmp_path / f"{n}.parquet", "jsonl", workers=n) for n in (1, 3)]
    one, three = ((tmp_path / f"{n}.parquet").read_bytes() for n in (1, 3))
    assert one == three
    assert summaries[0]["responses"] == 200
    counted = ("responses", "tokens", "columns", "sources", "warnings", "nonfinite")
    assert {name: summaries[0][name] for name in counted} == {
        name: summaries[1][name] for name in counted
    }
    table = pq.read_table(tmp_path / "3.parquet")
    assert table["score"].to_pylist() == [record(i)["score"] for i in range(200)]


def failed(path, workers):
    with pytest.raises(DataError) as raised:
        convert([path], path.with_name("out.parquet"), "jsonl", workers=workers)
    assert not path.with_name("out.parquet").exists()
    return str(raised.value)


def test_errors_name_the_line_of_the_file(tmp_path):
    records = [*map(record, range(200))]
    records[150]["infer_log_probs"] = [0.0] * 99
    del records[120]["infer_log_probs"]
    path = written(tmp_path / "in.jsonl", records)
    assert failed(path, 3) == failed(path, 1)
    assert f"{path}, line 121: lacks infer_log_probs" in failed(path, 1)


def test_a_frame_that_ends_early_is_an_error(tmp_path):
    path = written(tmp_path / "in.jsonl.zst", map(record, range(3000)))
    path.write_bytes(path.read_bytes()[:-5000])
    assert failed(path, 3) == failed(path, 1)
    assert str(path) in failed(path, 1)


def test_types_of_parts_join_as_those_of_the_whole():
    values = [
        None,
        True,
        1,
        2.5,
        "a",
        [],
        [None],
        [1],
        [1.5],
        ["a"],
        [True],
        [[1]],
        {"b": 1},
        2**70,
    ]
    rng = np.random.default_rng(0)
    for _ in range(200):
        records = [{"x": values[i]} for i in rng.integers(0, len(values), 6)]
        at = int(rng.integers(0, 7))
        parts = [field_types(part, ()) for part in (records[:at], records[at:])]
        assert OtherFields.of_parts(parts) == OtherFields.of_parts([field_types(records, ())])


def test_integers_and_masks_have_the_types_of_their_values():
    texts = [
        "[1,-2]",
        "[ ]",
        "[1,[2]]",
        "[1.5,2]",
        "[1e3]",
        f"[{2**63 - 1}]",
        f"[{2**64}]",
        "[1,null]",
        "[1.5,null]",
        '[0.5,"a"]',
        "[0.5,true]",
        "[0.5,[2]]",
        '[0.5,{"a":1}]',
    ]
    for text in texts:
        raw = json_text._decode_fields(f'{{"x":{text}}}'.encode())
        assert field_types([raw], ()) == field_types([loads(f'{{"x":{text}}}')], ())


def test_attempts_of_a_stream_are_numbered_over_its_parts(tmp_path):
    stream = tmp_path / "traces" / "stream"
    stream.mkdir(parents=True)
    node = {"parent": None, "token_ids": [1] * 40, "mask": [True] * 40, "logprobs": [-0.5] * 40,
            "sampled": True, "message": {"role": "assistant", "content": "a"}}  # fmt: skip
    written(stream / "00000.jsonl", (
        {"id": f"e{i}", "env": {"name": "sum"}, "task": {"key": "t"}, "group": {"id": "g"},
         "run": {"id": f"r{i // 40}", "work": {"type": "train", "step": i}},
         "traces": [{"id": f"t{i}", "nodes": [node], "rewards": {}, "task": {}}]}
        for i in range(100)
    ))  # fmt: skip
    for n in (1, 3):
        convert([stream], tmp_path / f"{n}.parquet", workers=n)
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "3.parquet").read_bytes()
    table = pq.read_table(tmp_path / "3.parquet")
    assert table["run_attempt"].to_pylist() == [i // 40 + 1 for i in range(100)]
