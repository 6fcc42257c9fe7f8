from __future__ import annotations

import base64
import errno
import os
import random
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from splicing import (
    FIELDS,
    by_pyarrow,
    edited,
    enrich,
    first_chunk,
    first_meta,
    new_columns,
    source_table,
)

from rlpost.errors import DataError, ReadWriteError, RlpostError, UsageError
from rlpost.io import outputs
from rlpost.io.parquet.footer import (
    ColumnChunk,
    ColumnMeta,
    FileMeta,
    RowGroup,
    Struct,
    Wire,
)
from rlpost.io.parquet.sink import open_sink


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.parquet"
    pq.write_table(source_table(), path, row_group_size=25)
    return path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target.parquet"


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_thread_and_no_open_file_is_left(source, target):
    enrich(source, target)
    open_sink(source, target, FIELDS).abort()
    threads, files = threading.active_count(), open_files()
    enrich(source, target)
    open_sink(source, target, FIELDS).abort()
    assert threading.active_count() == threads
    assert open_files() == files


def test_an_existing_column_name_is_a_usage_error(source, target):
    fields = pa.schema([("reward", pa.float32())])
    with pytest.raises(UsageError, match="column `reward` exists already"):
        open_sink(source, target, fields)
    open_sink(source, target, fields, drop=["reward"]).abort()
    open_sink(source, target, fields, keep=["step"]).abort()
    assert list(target.parent.iterdir()) == [source]


@pytest.mark.parametrize("calls", [0, 2, 1000])
@pytest.mark.parametrize("number", [errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, 0], ids=str)
def test_a_copy_that_is_short_or_that_the_kernel_does_not_make_or_finish_is_complete(
    source, target, monkeypatch, number, calls
):
    enrich(source, target)
    expected, left = target.read_bytes(), [None] * calls
    copy, write = os.copy_file_range, os.pwrite

    def copied(begin, end, size, *at):
        if left:
            left.pop()
            return copy(begin, end, min(size, 37), *at)
        if number:
            raise OSError(number, os.strerror(number))
        return 0

    monkeypatch.setattr(os, "copy_file_range", copied)
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:37], at))
    monkeypatch.setattr(outputs, "COPY_BYTES", 100)
    enrich(source, target)
    assert target.read_bytes() == expected


def test_a_disk_that_is_full_from_the_first_byte_on_leaves_nothing(source, target, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ReadWriteError, match="No space left"):
        open_sink(source, target, FIELDS)
    assert list(target.parent.iterdir()) == [source]


def test_an_encrypted_file_is_an_error(source, target):
    edited(
        source, lambda footer: first_chunk(footer).put(ColumnChunk.CRYPTO, Wire.STRUCT, Struct())
    )
    with pytest.raises(ReadWriteError, match="encrypted; decrypt the file first"):
        open_sink(source, target, FIELDS)
    source.write_bytes(b"PAR1\0\0\0\0\1\0\0\0PARE")
    with pytest.raises(ReadWriteError, match="its footer is encrypted"):
        open_sink(source, target, FIELDS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (ColumnMeta.COMPRESSED, 1 << 40),
        (ColumnMeta.COMPRESSED, -1),
        (ColumnMeta.DATA_PAGE, 1 << 60),
        (ColumnMeta.DATA_PAGE, 3),
        (ColumnMeta.DICTIONARY_PAGE, 1 << 62),
        (ColumnMeta.DICTIONARY_PAGE, 1),
    ],
)
def test_a_chunk_outside_of_its_file_is_a_data_error(source, target, field, value):
    edited(source, lambda footer: first_meta(footer).put(field, Wire.I64, value))
    with pytest.raises(
        DataError, match=r"source\.parquet: its columns cannot be copied: a column chunk"
    ):
        open_sink(source, target, FIELDS)
    assert list(target.parent.iterdir()) == [source]


def overlap(footer):
    chunk = footer.structs(FileMeta.ROW_GROUPS)[1].structs(RowGroup.COLUMNS)[0]
    chunk[ColumnChunk.META] = first_chunk(footer)[ColumnChunk.META]


def move_elsewhere(footer):
    first_chunk(footer).put(ColumnChunk.FILE_PATH, Wire.BINARY, b"other.parquet")


@pytest.mark.parametrize(
    ("edit", "reason"),
    [(overlap, "overlap"), (move_elsewhere, "other files")],
)
def test_files_that_cannot_be_spliced_are_a_data_error(source, target, edit, reason):
    edited(source, edit)
    with pytest.raises(DataError, match=reason):
        open_sink(source, target, FIELDS)
    assert list(target.parent.iterdir()) == [source]


def test_an_inconsistent_arrow_schema_is_left_out(source, target):
    def other(footer):
        schema = base64.b64encode(pa.schema([("other", pa.int8())]).serialize())
        footer.structs(FileMeta.KEY_VALUES)[0].put(2, Wire.BINARY, schema)

    edited(source, other)
    enrich(source, target)
    assert b"ARROW:schema" not in pq.read_metadata(target).metadata
    assert by_pyarrow(target)[1].count("advantages") == 60


def survive(source, target):
    """Enrich a damaged file: it succeeds, or raises an RlpostError and leaves nothing."""
    try:
        new = new_columns(60)
        sink = open_sink(source, target, FIELDS)
    except RlpostError as error:
        if "source.parquet" not in str(error):
            raise
        return
    try:
        for group, at in enumerate(range(0, 60, 25)):
            sink.append(group, *sink.encode([new[at : at + 25]]))
        sink.complete({})
        sink.output.publish()
    except (RlpostError, ValueError):
        sink.abort()
    target.unlink(missing_ok=True)
    assert list(target.parent.iterdir()) == [source]


def test_mutated_footers_never_raise_anything_else(source, target):
    whole = source.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    rng = random.Random(0)  # noqa: S311
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(start, len(data))] = rng.choice([0, 0xFF, 0x7F, 0x80, 0x19, 0x1C])
        source.write_bytes(data)
        survive(source, target)
