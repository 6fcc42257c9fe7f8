"""A file that another program still writes is noticed by its end, wherever it stops."""

import io
import json
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rlpost.formats.whole import is_whole

ROWS = [{"text": "a}\n{", "score": 1.5}, {"text": "b" * 200_000, "score": {"x": [1, {"y": 2}]}}]


def parquet():
    out = io.BytesIO()
    pq.write_table(pa.table({"a": [1.0, 2.0]}), out)
    return out.getvalue()


def saved():
    out = io.BytesIO()
    torch.save({"samples": ROWS[:1], "rewards": torch.ones(3)}, out)
    return out.getvalue()


WHOLE = {
    "a.parquet": parquet(),
    "a.pt": saved(),
    "old.pt": pickle.dumps(ROWS),
    "a.json": json.dumps(ROWS).encode(),
    "lines.jsonl": "\n".join(map(json.dumps, ROWS)).encode(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_is_whole_only_with_its_last_byte(tmp_path, name):
    data, path = WHOLE[name], tmp_path / name
    for size in sorted(
        {0, 1, 3, 12, len(data) // 3, len(data) // 2, *range(len(data) - 9, len(data))}
    ):
        path.write_bytes(data[:size])
        assert not is_whole(path, table=name.endswith(".parquet")), size
    path.write_bytes(data)
    assert is_whole(path, table=name.endswith(".parquet"))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_jsonl_ends_with_a_line(tmp_path, name):
    path = tmp_path / name
    for text, whole in (
        ('{"a": 1}\n{"b": 2}\n', True),
        ('{"a": 1}\n{"b": 2}\n\n', True),
        ('{"a": 1}\n{"b": 2', False),
        (" \n", False),
    ):
        path.write_text(text)
        assert is_whole(path, table=False) is whole, text
