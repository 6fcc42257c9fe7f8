from __future__ import annotations

import base64
import errno
import itertools
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
    enrich,
    feed,
    new_columns,
    rewrite,
    rewriting_sink,
    source_table,
)

from rlpost.errors import DataError, ReadWriteError, RlpostError, UsageError
from rlpost.io import outputs
from rlpost.io.outputs import OutputFile
from rlpost.io.parquet.footer import (
    ColumnChunk,
    ColumnMeta,
    FileMeta,
    RowGroup,
    Struct,
    Wire,
    file_end,
    read_footer,
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


def edited(path, edit):
    """Change a file's footer by a function of its FileMetaData."""
    data = path.read_bytes()
    with path.open("rb") as file:
        footer, start = read_footer(file.fileno(), len(data))
    footer.put_structs(FileMeta.SCHEMA, footer.structs(FileMeta.SCHEMA))  # decoded
    edit(footer)
    path.write_bytes(data[:start] + file_end(footer))


def first_chunk(footer):
    return footer.structs(FileMeta.ROW_GROUPS)[0].structs(RowGroup.COLUMNS)[0]


def first_meta(footer):
    return first_chunk(footer).struct(ColumnChunk.META)


@pytest.mark.parametrize("opened", [open_sink, rewriting_sink])
def test_the_target_appears_when_it_is_complete(source, target, opened):
    sink = opened(source, target, FIELDS)
    sink.append(0, sink.encode(new_columns(25)))
    hidden = [path.name for path in target.parent.iterdir() if path != source]
    assert len(hidden) == 1
    assert hidden[0].startswith(f".target.parquet.rlpost-{os.getpid()}-")
    sink.abort()
    sink.abort()
    assert list(target.parent.iterdir()) == [source]


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_thread_and_no_open_file_is_left(source, target):
    enrich(source, target)
    open_sink(source, target, FIELDS).abort()
    threads, files = threading.active_count(), open_files()
    enrich(source, target)
    open_sink(source, target, FIELDS).abort()
    rewrite(source, target)
    assert threading.active_count() == threads
    assert open_files() == files


def test_the_target_may_be_the_source(source):
    before = pq.read_table(source)
    enrich(source, source)
    assert pq.read_table(source).select(before.column_names).equals(before)
    enrich(source, source, drop=FIELDS.names)
    assert pq.read_table(source).num_columns == before.num_columns + len(FIELDS)


def test_abort_after_publication_leaves_the_target(source, target):
    sink = open_sink(source, target, FIELDS)
    feed(sink, source, new_columns(60))
    sink.abort()
    assert pq.read_metadata(target).num_rows == 60


def test_an_existing_column_name_is_a_usage_error(source, target):
    fields = pa.schema([("reward", pa.float32())])
    for opened in (open_sink, rewriting_sink):
        with pytest.raises(UsageError, match="column `reward` exists already"):
            opened(source, target, fields)
        opened(source, target, fields, drop=["reward"]).abort()
        opened(source, target, fields, keep=["step"]).abort()
    assert list(target.parent.iterdir()) == [source]


def test_row_counts_that_do_not_fit_raise_value_error(source, target):
    sink = open_sink(source, target, FIELDS)
    sink.append(0, sink.encode(new_columns(20)))
    with pytest.raises(ValueError, match="row group 0 lacks 5 rows"):
        sink.append(1, sink.encode(new_columns(1)))
    with pytest.raises(ValueError, match="row group 0 gets more rows"):
        sink.append(0, sink.encode(new_columns(6)))
    with pytest.raises(ValueError, match="row group 0 "):
        sink.complete({})
    sink.abort()
    assert list(target.parent.iterdir()) == [source]


@pytest.mark.parametrize("most", [1, 37])
def test_a_copy_whose_reads_and_writes_are_short_is_complete(source, target, monkeypatch, most):
    enrich(source, target)
    expected = target.read_bytes()
    copy, write = os.copy_file_range, os.pwrite
    monkeypatch.setattr(
        os, "copy_file_range", lambda a, b, size, *at: copy(a, b, min(size, most), *at)
    )
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:most], at))
    monkeypatch.setattr(outputs, "COPY_BYTES", 100)
    enrich(source, target)
    assert target.read_bytes() == expected


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, 0], ids=str)
@pytest.mark.parametrize("calls", [0, 2])
def test_a_copy_that_the_kernel_does_not_make_or_finish_is_complete(
    source, target, monkeypatch, number, calls
):
    enrich(source, target)
    expected, left, copy = target.read_bytes(), [None] * calls, os.copy_file_range

    def copied(*arguments):
        if left:
            left.pop()
            return copy(*arguments)
        if number:
            raise OSError(number, os.strerror(number))
        return 0

    monkeypatch.setattr(os, "copy_file_range", copied)
    monkeypatch.setattr(outputs, "COPY_BYTES", 100)
    enrich(source, target)
    assert target.read_bytes() == expected


@pytest.mark.parametrize("opened", [open_sink, rewriting_sink])
def test_a_disk_that_is_full_from_the_first_byte_on_leaves_nothing(
    source, target, monkeypatch, opened
):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ReadWriteError, match="No space left"):
        opened(source, target, FIELDS)
    assert list(target.parent.iterdir()) == [source]


def test_a_source_that_shrinks_is_an_error(source, target):
    sink = open_sink(source, target, FIELDS, keep=[])
    sink.abort()
    copied = OutputFile(target)
    copied.copy(
        os.open(source, os.O_RDONLY), [outputs.ByteRange(source.stat().st_size - 10, 20, 0)]
    )
    with pytest.raises(ReadWriteError, match="became shorter"):
        copied.complete()
    copied.discard()


def test_a_missing_source_or_folder_names_the_file(source, target, tmp_path):
    with pytest.raises(ReadWriteError, match=r"absent\.parquet: cannot be read: No such file"):
        open_sink(tmp_path / "absent.parquet", target, FIELDS)
    with pytest.raises(ReadWriteError, match="cannot be read: Is a directory"):
        open_sink(tmp_path, target, FIELDS)
    with pytest.raises(ReadWriteError, match=r"absent/target\.parquet: cannot be written"):
        open_sink(source, tmp_path / "absent" / "target.parquet", FIELDS)


@pytest.mark.parametrize("data", [b"", b"text\n" * 50, b"PAR1" + b"\xff" * 60 + b"\x20\0\0\0PAR1"])
def test_a_file_that_is_not_parquet_is_a_data_error(source, target, data):
    source.write_bytes(data)
    with pytest.raises(DataError, match=r"source\.parquet: cannot be read as Parquet"):
        open_sink(source, target, FIELDS)


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
    with pytest.raises(DataError, match=r"source\.parquet: the file is damaged: a column chunk"):
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
def test_files_that_cannot_be_spliced_are_rewritten_or_a_data_error(source, target, edit, reason):
    edited(source, edit)
    try:
        assert reason in enrich(source, target)
    except DataError:
        return
    assert pq.read_table(target, columns=FIELDS.names).num_rows == 60


def test_a_footer_with_an_unknown_type_is_an_error(source, target):
    data = source.read_bytes()
    field_100_a_set_of_one_integer = bytes([0x0A, 0xC8, 0x01, 0x15, 0x02, 0x00])
    footer = data[:-9] + field_100_a_set_of_one_integer
    length = int.from_bytes(data[-8:-4], "little") + 5
    source.write_bytes(footer + length.to_bytes(4, "little") + b"PAR1")
    with pytest.raises(DataError, match=r"source\.parquet: cannot be read .* type 10 is unknown"):
        enrich(source, target)
    assert not target.exists()


def test_an_inconsistent_arrow_schema_causes_a_rewrite(source, target):
    def other(footer):
        schema = base64.b64encode(pa.schema([("other", pa.int8())]).serialize())
        footer.structs(FileMeta.KEY_VALUES)[0].put(2, Wire.BINARY, schema)

    edited(source, other)
    assert "lacks 'prompt_id'" in enrich(source, target)
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
            sink.append(group, sink.encode(new[at : at + 25]))
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


def test_truncated_files_never_raise_anything_else(source, target):
    whole = source.read_bytes()
    for size in itertools.chain(range(0, len(whole), 997), range(len(whole) - 20, len(whole))):
        source.write_bytes(whole[:size])
        survive(source, target)
        source.write_bytes(whole[:size] + whole[-8:])
        survive(source, target)
