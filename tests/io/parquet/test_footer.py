from __future__ import annotations

import io
import os
import struct

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from splicing import source_table

from rlpost.io.parquet import footer
from rlpost.io.parquet.footer import (
    MAX_DEPTH,
    EncryptedError,
    FileMeta,
    FooterError,
    Struct,
    Wire,
    decode,
    encode,
    file_end,
    read_footer,
)

NUMBERS = st.integers(-(2**63), 2**63 - 1)
LEAVES = (
    st.tuples(st.sampled_from([Wire.I16, Wire.I32, Wire.I64]), NUMBERS)
    | st.tuples(st.just(Wire.BINARY), st.binary())
    | st.tuples(st.just(Wire.BYTE), st.binary(min_size=1, max_size=1))
    | st.tuples(st.just(Wire.DOUBLE), st.binary(min_size=8, max_size=8))
    | st.tuples(st.sampled_from([Wire.TRUE, Wire.FALSE]), st.none())
    | st.tuples(st.just(Wire.LIST), st.tuples(st.just(Wire.I64), st.lists(NUMBERS, max_size=40)))
    | st.tuples(
        st.just(Wire.LIST),
        st.tuples(st.just(Wire.TRUE), st.lists(st.sampled_from([b"\1", b"\2"]), max_size=20)),
    )
)


def structs(values):
    return st.dictionaries(st.integers(-(2**15), 2**15 - 1), values, max_size=5).map(Struct)


STRUCTS = structs(
    st.recursive(
        LEAVES,
        lambda values: (
            st.tuples(st.just(Wire.STRUCT), structs(values))
            | st.tuples(
                st.just(Wire.LIST),
                st.tuples(st.just(Wire.STRUCT), st.lists(structs(values), max_size=3)),
            )
        ),
        max_leaves=8,
    )
)


@given(STRUCTS)
def test_a_struct_survives_a_round_trip(fields):
    data = encode(fields)
    assert decode(data + b"rest") == (fields, len(data))


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_raise_footer_error(data):
    try:
        fields, used = decode(data)
    except FooterError:
        return
    assert used <= len(data)
    assert decode(encode(fields))[0] == fields


@given(STRUCTS, st.data())
def test_a_struct_cut_short_raises_footer_error(fields, data):
    whole = encode(fields)
    with pytest.raises(FooterError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


def renumbered(value, kind, draw):
    """The same shape with other 64-bit integers and binary fields."""
    if kind == Wire.I64:
        return draw(NUMBERS)
    if kind == Wire.BINARY:
        return draw(st.binary(max_size=200))
    if kind == Wire.STRUCT:
        return Struct({f: (k, renumbered(v, k, draw)) for f, (k, v) in value.items()})
    if kind == Wire.LIST:
        inner, items = value
        return inner, [renumbered(item, inner, draw) for item in items]
    return value


@settings(max_examples=20)
@given(STRUCTS, st.data())
def test_chunks_of_one_shape_decode_as_they_do_one_by_one(chunk, data):
    draw = data.draw
    others = [renumbered(chunk, Wire.STRUCT, draw) for _ in range(3)]
    chunks = [chunk] * footer._BEFORE_SHAPE + [chunk, chunk, *others, Struct()]
    groups = [Struct().put_list(1, Wire.STRUCT, [one]) for one in chunks]
    encoded = bytearray(encode(Struct().put_list(4, Wire.STRUCT, groups)))
    place = draw(st.integers(0, len(encoded) - 1))
    for byte in (encoded[place], draw(st.integers(0, 255))):
        encoded[place] = byte
        results = []
        for allowed in (footer._MOST_SHAPES, 0):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(footer, "_MOST_SHAPES", allowed)
                try:
                    results.append(decode(bytes(encoded)))
                except FooterError as error:
                    results.append(str(error))
        assert results[0] == results[1]


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
        (b"\x19" * 10_000, "does not fit"),
        (b"\x19\x1c" * 5_000, "does not fit|deep"),
        (b"\x19\xf6" + b"\xff" * 8 + b"\x7f" + b"\0" * 50, "a list of 9223372036854775807 values"),
        (b"\x18" + b"\xff" * 8 + b"\x7f", "too early"),
        (b"\x16" + b"\xff" * 100_000, "more than 64 bits"),
        (b"\x16" + b"\x80" * 100_000, "more than 64 bits"),
        (b"\x15\x02\x05\x02\x02\x00", "field 1 occurs twice"),
        (b"\x1d" + b"\0" * 20, "type 13 is unknown"),
        (b"\x10\x00", "type 0 is unknown"),
        (b"", "in the middle"),
        (b"\x16", "in the middle"),
    ],
    ids=str,
)
def test_hostile_structs_raise_footer_error_at_once(data, reason):
    with pytest.raises(FooterError, match=reason):
        decode(data[:2000] if len(data) > 10_000 else data)
    with pytest.raises(FooterError):
        decode(data)


def test_too_many_values_raise_footer_error(monkeypatch):
    monkeypatch.setattr("rlpost.io.parquet.footer.MAX_VALUES", 100)
    fields = Struct().put_list(1, Wire.STRUCT, [Struct().put(1, Wire.I32, 0)] * 50)
    with pytest.raises(FooterError, match="more than 100 values"):
        decode(encode(fields))


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        (b"", FooterError, "does not end with PAR1, as Parquet files do"),
        (b"PAR1", FooterError, "does not end"),
        (b"PAR1PAR1", FooterError, "does not end"),
        (b"PAR1" + b"\xff\xff\xff\x7fPAR1", FooterError, "does not fit in 12 bytes"),
        (b"PAR1" + b"\0\0\0\0PAR1", FooterError, "in the middle"),
        (b"PAR1\0\1\0\0\0PARE", EncryptedError, "encrypted"),
        (b"PAR1" + file_end(Struct().put(8, Wire.STRUCT, Struct())), EncryptedError, "columns"),
        (b"some,text\n" * 9, FooterError, "does not end"),
    ],
)
def test_files_that_are_not_parquet_are_errors_with_a_reason(tmp_path, data, error, reason):
    path = tmp_path / "file.parquet"
    path.write_bytes(data)
    file = os.open(path, os.O_RDONLY)
    with pytest.raises(error, match=reason):
        read_footer(file, len(data))
    os.close(file)


def test_a_field_of_the_wrong_type_raises_footer_error():
    fields = Struct().put(1, Wire.BINARY, b"text").put_list(2, Wire.I32, [1])
    assert fields.integer(3, 7) == 7
    assert fields.binary(1) == b"text"
    assert fields.structs(3) == []
    for read in (fields.integer, fields.struct, fields.structs):
        with pytest.raises(FooterError, match="field 1"):
            read(1)
    for read in (fields.integer, fields.struct, fields.binary):
        with pytest.raises(FooterError, match="field 3"):
            read(3)
    with pytest.raises(FooterError, match="not a list of STRUCT"):
        fields.structs(2)


def test_pyarrow_reads_what_the_codec_writes():
    out = io.BytesIO()
    pq.write_table(source_table(), out)
    data = out.getvalue()
    length = struct.unpack("<I", data[-8:-4])[0]
    footer, _ = decode(data[-8 - length : -8])
    again = data[: -8 - length] + file_end(footer)
    assert pq.read_metadata(io.BytesIO(again)).equals(pq.read_metadata(io.BytesIO(data)))
