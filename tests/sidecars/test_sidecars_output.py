"""Joined files: columns of any program, copied or encoded again."""

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from sidecar_tables import FRAME, IDS, SAMPLE, lists, written

import rlpost
from rlpost.errors import DataError


@pytest.mark.parametrize("writer", ["polars", "pyarrow", "pandas", "other row groups", "indexed"])
def test_columns_of_any_program_are_joined_unchanged(tmp_path, writer):
    indexed = writer == "indexed"
    source = written(IDS, tmp_path / "in.parquet", row_group_size=200, write_page_index=indexed)
    side, new = tmp_path / "side.parquet", lists()
    if writer == "polars":
        new.write_parquet(side, row_group_size=200)
    elif writer == "pandas":
        new = new.drop("pair")
        new.to_pandas().to_parquet(side, row_group_size=200)
    else:
        written(new, side, row_group_size=33 if writer == "other row groups" else 200)
    result = rlpost.join(source, side, tmp_path / "out.parquet")
    why = {"other row groups": "other sizes", "indexed": "has page indexes"}
    assert [why[writer] in text for text in result.decoded] == ([True] if writer in why else [])
    out = pl.read_parquet(tmp_path / "out.parquet")
    assert out.select(IDS.columns).equals(IDS)
    expected = pl.read_parquet(side).drop("row")
    assert out.drop(IDS.columns).equals(expected)
    types = [pq.read_schema(path).field("when").type for path in (side, tmp_path / "out.parquet")]
    assert types[0] == types[1]
    verdict = pq.ParquetFile(tmp_path / "out.parquet").metadata
    assert verdict.num_row_groups == 3
    assert b"rlpost.checksums" in verdict.metadata
    rlpost.join(source, side, tmp_path / "out.parquet", overwrite=True)  # it is rlpost's own


def test_types_that_parquet_lacks_are_kept_beside_an_input_without_arrows_schema(tmp_path):
    source, side = tmp_path / "in.parquet", tmp_path / "side.parquet"
    duckdb.sql(f"COPY (FROM '{SAMPLE}') TO '{source}' (FORMAT parquet)")
    new = FRAME.select("prompt_id", waited=pl.int_range(pl.len()).cast(pl.Duration("ms")))
    new.write_parquet(side)
    rlpost.join(source, side, tmp_path / "out.parquet")
    out = pl.read_parquet(tmp_path / "out.parquet")
    assert out.schema["waited"] == pl.Duration("ms")
    assert out.equals(pl.concat([pl.read_parquet(source), new.drop("prompt_id")], how="horizontal"))


def test_empty_row_groups_and_inputs_that_cannot_be_copied(tmp_path, monkeypatch):
    source, side, table = tmp_path / "in.parquet", tmp_path / "side.parquet", FRAME.to_arrow()
    with pq.ParquetWriter(source, table.schema, write_page_index=True) as writer:
        for part in (table[:0], table[:100], table[:0], table[100:]):
            writer.write_table(part)
    rlpost.advantages(source, side, rlpost.Recipe(emit_only=True))
    rlpost.advantages(source, tmp_path / "full.parquet")
    assert rlpost.join(source, side, tmp_path / "a.parquet").decoded == []
    full = (tmp_path / "full.parquet").read_bytes()
    assert (tmp_path / "a.parquet").read_bytes() == full
    monkeypatch.setattr("rlpost.io.parquet.sink._splice", lambda *_: "for a test")
    result = rlpost.join(source, side, tmp_path / "b.parquet")
    assert (result.decoded, result.rewritten) == ([], ["b.parquet: for a test"])
    assert pq.read_table(tmp_path / "b.parquet").equals(pq.read_table(tmp_path / "full.parquet"))
    written(FRAME.head(0), source)
    written(FRAME.head(0).select("prompt_id", x="step"), side)
    for on in ((), "prompt_id"):
        assert rlpost.join(source, side, tmp_path / "b.parquet", on, overwrite=True).rows == 0


def test_changed_bytes_of_a_sidecar_are_found(tmp_path):
    source, side = written(FRAME, tmp_path / "in.parquet"), tmp_path / "side.parquet"
    rlpost.advantages(source, side, rlpost.Recipe(emit_only=True))
    data = bytearray(side.read_bytes())
    chunk = pq.read_metadata(side).row_group(0).column(3)
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    side.write_bytes(data)
    with pytest.raises(DataError, match=r"side.parquet: column `advantages`, row group 0: bytes "):
        rlpost.join(source, side, tmp_path / "out.parquet")
