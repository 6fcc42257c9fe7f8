"""Conversion by several processes: the bytes, errors and counts of one."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlpost.errors import DataError
from rlpost.formats.convert import convert


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
    path.parent.mkdir(exist_ok=True)
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
    written(source / f"a.jsonl{suffix}", map(record, range(100)))
    written(source / "b.jsonl", map(record, range(100, 103)))
    written(source / f"c.jsonl{suffix}", map(record, range(103, 200)))
    summaries = [convert([source], tmp_path / f"{n}.parquet", "jsonl", workers=n) for n in (1, 3)]
    one, three = ((tmp_path / f"{n}.parquet").read_bytes() for n in (1, 3))
    assert one == three
    assert summaries[0]["responses"] == 200
    counted = ("responses", "tokens", "columns", "sources", "warnings")
    assert {name: summaries[0][name] for name in counted} == {
        name: summaries[1][name] for name in counted
    }
    table = pq.read_table(tmp_path / "3.parquet")
    assert table["score"].to_pylist() == [record(i)["score"] for i in range(200)]


def test_the_first_error_is_that_of_one_process(tmp_path):
    for name, at in (("a", 120), ("b", 50)):
        records = [*map(record, range(200))]
        del records[at]["infer_log_probs"]
        written(tmp_path / "in" / f"{name}.jsonl", records)
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"a\.jsonl, line 121: lacks infer_log_probs"):
            convert([tmp_path / "in"], tmp_path / "out.parquet", "jsonl", workers=workers)
    assert not (tmp_path / "out.parquet").exists()
