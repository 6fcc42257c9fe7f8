"""Containers: the same records wherever they are stored, and damage as errors with its place."""

import gzip
import json
import warnings
import zipfile
from unittest import mock

import format_writers as writers
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import rlpost
from rlpost.errors import DataError, NotEnoughMemoryError, UsageError
from rlpost.formats import json_text
from rlpost.formats.containers import PARQUET, PICKLE, STREAM, ZIP, container_of, json_records
from rlpost.io.memory_limit import MemoryLimit

ROWS = [{"step": 1, "group": f"g{i // 4}", "reward": i / 3, "text": "a}\n{é" * (i % 5)}
        for i in range(200)]  # fmt: skip
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def archive(path, members):
    with zipfile.ZipFile(path, "w") as out:
        for name, data in members.items():
            out.writestr(name, data)
    return path.read_bytes()


def containers(folder):
    pretty = "\n".join(json.dumps(row, indent=2, ensure_ascii=False) for row in ROWS).encode()
    halves = LINES[: LINES.index(b"\n", len(LINES) // 2) + 1]
    return {
        "lines.jsonl": LINES,
        "named.json": LINES,
        "array.json": json.dumps(ROWS).encode(),
        "objects.json": pretty,
        "joined.jsonl": b"".join(json.dumps(row).encode() for row in ROWS),
        "gzip.jsonl.gz": gzip.compress(LINES[:999]) + gzip.compress(LINES[999:]),
        "frames.jsonl.zst": writers.seekable(LINES, table=False),
        "seekable.jsonl.zst": writers.seekable(LINES),
        "objects.json.zst": pa.compress(pretty, "zstd", asbytes=True),
        "archive.zip": archive(
            folder / "a", {"0.jsonl": halves, "readme.txt": b"x", "1/1.jsonl": LINES[len(halves) :]}
        ),
    }


def test_every_container_has_the_same_rows(tmp_path):
    tables = {}
    for name, data in containers(tmp_path).items():
        (tmp_path / name).write_bytes(data)
        rlpost.convert(tmp_path / name, tmp_path / "out.parquet", source="jsonl", overwrite=True)
        tables[name] = pq.read_table(tmp_path / "out.parquet")
    assert all(table.equals(tables["lines.jsonl"]) for table in tables.values())
    assert tables["lines.jsonl"]["text"].to_pylist() == [row["text"] for row in ROWS]


def test_the_content_decides_and_the_suffix_does_not(tmp_path):
    of_content = {**containers(tmp_path), "eval": archive(tmp_path / "a", {
        "header.json": b"{}", "_journal/0.json": b"{}",
        **{f"samples/{i:03d}.json": json.dumps(row).encode() for i, row in enumerate(ROWS)},
    })}  # fmt: skip
    for data in of_content.values():
        (tmp_path / "run.traj").write_bytes(data)
        rlpost.convert(
            tmp_path / "run.traj", tmp_path / "o.parquet", source="jsonl", overwrite=True
        )
        assert pq.read_table(tmp_path / "o.parquet")["text"].to_pylist() == [
            x["text"] for x in ROWS
        ]
    torch.save({"a": 1}, tmp_path / "a.zip")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.json")
    kinds = [container_of(tmp_path / name) for name in ("a.zip", "a.json", "missing.pt")]
    assert kinds == [PICKLE, PARQUET, PICKLE]


def test_a_folder_of_one_object_a_file_is_one_dump(tmp_path):
    for i, row in enumerate([*ROWS[:9], {**ROWS[9], "late": [1]}]):
        file = tmp_path / "in" / f"task{i % 2}" / f"{i}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(row, indent=1))
    rlpost.convert(tmp_path / "in", tmp_path / "o.parquet", source="jsonl")
    table = pq.read_table(tmp_path / "o.parquet")
    assert sorted(table["reward"].to_pylist()) == [row["reward"] for row in ROWS[:10]]
    assert table["late"].null_count == 9


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.pt"])
def test_a_pointer_of_git_lfs_is_an_error_with_the_command(name, tmp_path):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(DataError, match=rf"{name}: is a pointer of Git LFS.*git lfs pull"):
        rlpost.convert(tmp_path / name, tmp_path / "o.parquet")


@pytest.mark.parametrize(
    "data", [writers.seekable(LINES), writers.seekable(LINES, table=False), gzip.compress(LINES)]
)
def test_compressed_data_that_ends_early_is_an_error(tmp_path, data):
    path = tmp_path / ("a.jsonl.gz" if data[:2] == b"\x1f\x8b" else "a.jsonl.zst")
    for size in (3, 700, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(DataError, match=r"a\.jsonl\.\w+: damaged"):
            [*json_records(path)]


@pytest.mark.parametrize("method", ["ZIP_DEFLATED", "ZIP_BZIP2", "ZIP_LZMA", "ZIP_STORED"])
def test_a_damaged_member_of_an_archive_is_named(method, tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", getattr(zipfile, method)) as out:
        out.writestr("b.jsonl", LINES)
        begin = out.getinfo("b.jsonl").header_offset + 30 + len("b.jsonl") + 13
    data = bytearray(path.read_bytes())
    data[begin : begin + 20] = b"\xff" * 20
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.zip, member b\.jsonl"):
        [*ZIP.records(path)]
    assert ZIP.first(path) == {}


def test_each_member_of_an_archive_is_read_once_whatever_its_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's, of the same name twice
        for reward in (0, 1, 2):
            out.writestr("same.jsonl", json.dumps({"reward": reward}))
    records = ZIP.records(tmp_path / "a.zip")
    assert [record.fields["reward"] for record in records] == [0, 1, 2]
    assert ZIP.first(tmp_path / "a.zip") == {"reward": 0}


def test_a_line_of_200_mb_is_read_or_is_an_error_of_memory(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(pa.compress(b'{"a": "' + b"x" * (200 << 20) + b'"}\n', "zstd", asbytes=True))
    (record,) = json_records(path)
    assert len(record.fields["a"]) == 200 << 20
    limit = MemoryLimit(300 << 20, "300MB")
    with (
        mock.patch.object(json_text, "memory_limit", return_value=limit),
        pytest.raises(NotEnoughMemoryError, match=r"a\.jsonl\.zst, line 1"),
    ):
        [*json_records(path)]


def test_the_last_of_two_equal_keys_counts_in_both_passes(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"group": "g", "reward": 1, "reward": 2, "x": "a", "x": 3}\n')
    rlpost.convert(path, tmp_path / "o.parquet", source="jsonl")
    (row,) = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert (row["reward"], row["x"]) == (2.0, 3)


def test_the_error_of_an_object_has_its_first_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{\n "a": 1\n}\n{\n "a": 2,\n "b": x\n}\n')
    with pytest.raises(DataError, match=r"a\.json, line 4: not JSON: .* line 6"):
        [*json_records(path)]


def test_a_layout_in_a_container_that_it_is_not_found_in_is_an_error(tmp_path):
    path = tmp_path / "a.zip"
    archive(path, {"1.jsonl": LINES})
    with pytest.raises(UsageError, match=r"a\.zip: is a zip archive .*; verl dumps are JSON lines"):
        rlpost.convert(path, tmp_path / "o.parquet", source="verl")


def test_a_stream_prefers_plain_files_and_leaves_out_a_line_that_is_not_written_yet(tmp_path):
    cut = LINES.index(b"\n", 5000) + 1
    (tmp_path / "00000.jsonl.zst").write_bytes(writers.seekable(LINES[:cut]))
    (tmp_path / "00000.jsonl").write_bytes(LINES[:cut])
    (tmp_path / "00001.jsonl").write_bytes(LINES[cut:-7])
    records = [*STREAM.records(tmp_path)]
    assert [record.fields for record in records] == ROWS[:-1]
    assert records[-1].file.name == "00001.jsonl"
    (tmp_path / "00000.jsonl").write_bytes(LINES[: cut - 7])  # only the last file is written to
    with pytest.raises(DataError, match=r"00000\.jsonl, line \d+: not JSON"):
        [*STREAM.records(tmp_path)]


def test_an_unknown_version_is_an_error_that_names_the_field(tmp_path):
    dump = writers.slime_train(tmp_path, writers.made())
    stored = torch.load(dump)
    torch.save({**stored, "format_version": 3}, dump)
    with pytest.raises(DataError, match=r"`format_version` is 3; rlpost reads 2 of slime-train"):
        rlpost.convert(dump, tmp_path / "o.parquet")
