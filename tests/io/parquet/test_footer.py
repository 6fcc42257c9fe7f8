from __future__ import annotations

import struct

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from splicing import source_table

from rlpost.io.parquet import footer
from rlpost.io.parquet.footer import (
    FOOTER,
    MAX_DEPTH,
    FileMeta,
    FooterError,
    Struct,
    Wire,
    decode,
    encode,
    encoded,
    file_end,
    read_footer,
)

NUMBERS = st.integers(-(2**63), 2**63 - 1)
INTEGERS = st.sampled_from([Wire.I16, Wire.I32, Wire.I64])
FIELDS = st.integers(-(2**15), 2**15 - 1)


@st.composite
def structs(draw, depth=3):
    """Return a struct with values of any type."""
    fields = Struct()
    for field in draw(st.lists(FIELDS, max_size=5, unique=True)):
        how = draw(st.integers(0, 6 if depth else 4))
        if how == 0:
            fields.put(field, draw(INTEGERS), draw(NUMBERS))
        elif how == 1:
            fields.put(field, Wire.BINARY, draw(st.binary()))
        elif how == 2:
            kind, size = draw(st.sampled_from([(Wire.BYTE, 1), (Wire.DOUBLE, 8), (Wire.TRUE, 0)]))
            fields.put(field, kind, draw(st.binary(min_size=size, max_size=size)))
        elif how == 3:
            numbers = draw(st.lists(NUMBERS, max_size=40))
            fields.put_parts(field, Wire.I64, [encoded(Wire.I64, number) for number in numbers])
        elif how == 4:
            flags = draw(st.lists(st.sampled_from([b"\1", b"\2"]), max_size=20))
            fields.put_parts(field, Wire.TRUE, flags)
        elif how == 5:
            fields.put(field, Wire.STRUCT, draw(structs(depth - 1)))
        else:
            fields.put_structs(field, draw(st.lists(structs(depth - 1), max_size=3)))
    return fields


@given(structs())
def test_a_struct_survives_a_round_trip_whatever_is_decoded(fields):
    data = encode(fields)
    for spine in ({}, {field: {} for field in fields if isinstance(fields[field][1], list)}):
        decoded, used = decode(data + b"rest", spine)
        assert used == len(data)
        assert encode(decoded) == data
        assert {*decoded} == {*fields}
    for field, (kind, _) in fields.items():
        if kind in (Wire.I16, Wire.I32, Wire.I64):
            assert decoded.integer(field) == fields.integer(field)
        elif kind == Wire.BINARY:
            assert decoded.binary(field) == fields.binary(field)
        elif kind == Wire.LIST:
            assert decoded.count(field) == fields.count(field)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_raise_footer_error(data):
    try:
        fields, used = decode(data, FOOTER)
    except FooterError:
        return
    assert used <= len(data)
    assert decode(encode(fields), FOOTER)[0] == fields


@given(structs(), st.data())
def test_a_struct_cut_short_raises_footer_error(fields, data):
    whole = encode(fields)
    with pytest.raises(FooterError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


def by_pyarrow(path):
    pq.write_table(source_table(), path, row_group_size=9, write_page_index=True)


def by_polars(path):
    pl.from_arrow(source_table()).write_parquet(path, row_group_size=9)


def by_duckdb(path):
    with duckdb.connect() as connection:
        connection.from_arrow(source_table()).write_parquet(str(path))


@pytest.mark.parametrize("write", [by_pyarrow, by_polars, by_duckdb])
def test_footers_of_real_writers_survive_a_round_trip_byte_for_byte(tmp_path, write):
    path = tmp_path / "file.parquet"
    write(path)
    data = path.read_bytes()
    length = struct.unpack("<I", data[-8:-4])[0]
    with path.open("rb") as file:
        fields, start = read_footer(file.fileno(), len(data))
    assert start == len(data) - 8 - length
    assert file_end(fields) == data[start:]
    assert fields.integer(FileMeta.ROWS) == 60


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x1c" * 10_000, f"more than {MAX_DEPTH} levels deep"),
        (b"\x19" * 10_000, "does not fit|deep"),
        (b"\x19\x1c" * 5_000, "does not fit|deep"),
        (b"\x19\xf6" + b"\xff" * 8 + b"\x7f" + b"\0" * 50, "a list of 9223372036854775807 values"),
        (b"\x18" + b"\xff" * 8 + b"\x7f", "in the middle"),
        (b"\x18" + b"\xff" * 100_000, "more than 64 bits"),
        (b"\x18" + b"\x80" * 100_000, "more than 64 bits"),
        (b"\x15\x02\x05\x02\x02\x00", "field 1 occurs twice"),
        (b"\x1d" + b"\0" * 20, "type 13 is unknown"),
        (b"\x10\x00", "type 0 is unknown"),
        (b"", "in the middle"),
        (b"\x16", "in the middle"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_hostile_structs_raise_footer_error_at_once(data, reason):
    with pytest.raises(FooterError, match=reason):
        decode(data[:2000] if len(data) > 10_000 else data)
    with pytest.raises(FooterError):
        decode(data)


def test_too_many_structs_raise_footer_error(monkeypatch):
    monkeypatch.setattr(footer, "MAX_STRUCTS", 100)
    fields = Struct().put_structs(FileMeta.ROW_GROUPS, [Struct().put(1, Wire.I32, 0)] * 101)
    with pytest.raises(FooterError, match="a list of 101 structs does not fit"):
        decode(encode(fields), FOOTER)
