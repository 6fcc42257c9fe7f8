"""`rlpost join`: a sidecar's new columns beside those of the input, without decoding either."""

import json

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from manual.program import run

import rlpost
from rlpost.errors import DataError, UsageError

SAMPLE = "sample_data/arithmetic.parquet"
FRAME = pl.read_parquet(SAMPLE)
IDS = FRAME.with_row_index("row")


def lists(seed=0):
    """A table with new columns of several kinds, a row for each of the sample."""
    generator = np.random.default_rng(seed)
    lengths = FRAME["response_mask"].list.len().to_list()
    return pl.DataFrame(
        {
            "row": pl.Series(range(len(lengths)), dtype=pl.UInt32),
            "scores": [generator.random(n).tolist() for n in lengths],
            "label": [None if i % 7 == 0 else f"label {i}" for i in range(len(lengths))],
            "kind": pl.Series([f"k{i % 3}" for i in range(len(lengths))], dtype=pl.Categorical),
            "pair": [{"a": i, "b": [i, None]} for i in range(len(lengths))],
            "when": pl.Series(range(len(lengths))).cast(pl.Datetime("us", "UTC")),
        }
    )


def written(frame, path, **options):
    pq.write_table(frame.to_arrow(), path, **options)
    return path


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("codec", ["snappy", "zstd"])
@pytest.mark.parametrize(
    "recipe", [{}, {"estimator": "gae"}, {"emit": ("kl", "group_size", "final_response_mask")}]
)
def test_advantages_as_a_sidecar_and_a_join_give_the_bytes_of_one_run(
    tmp_path, recipe, codec, indexed
):
    source = tmp_path / "in.parquet"
    options = {"row_group_size": 100, "compression": codec, "write_page_index": indexed}
    pq.write_table(pq.read_table(SAMPLE), source, **options)
    rlpost.advantages(source, tmp_path / "full.parquet", rlpost.Recipe(**recipe))
    only = rlpost.Recipe(**recipe, emit_only=True)
    rlpost.advantages(source, tmp_path / "side.parquet", only)
    result = rlpost.join(source, tmp_path / "side.parquet", tmp_path / "out.parquet")
    assert result.decoded == result.rewritten == result.warnings == []
    assert result.equal_columns == ["prompt_id", "step", "domain"]
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "full.parquet").read_bytes()


def test_the_bytes_are_those_of_one_run_over_several_files_and_with_replaced_columns(tmp_path):
    for step in (0, 1):
        folder = tmp_path / "in" / f"step={step}"
        folder.mkdir(parents=True)
        old = FRAME.filter(pl.col("step") == step).drop("step").with_columns(returns=pl.lit(1.5))
        written(old, folder / "rollouts.parquet", row_group_size=60 + step)
    replacing, only = rlpost.Recipe(replace=True), rlpost.Recipe(emit_only=True)
    rlpost.advantages(tmp_path / "in", tmp_path / "full", replacing)
    rlpost.advantages(tmp_path / "in", tmp_path / "side", only)
    words = ["join", tmp_path / "in", tmp_path / "side", tmp_path / "out"]
    ran = run([*map(str, words)])
    assert ran.code == 2
    assert "has columns of" in ran.err
    assert "already: returns; --replace" in ran.err
    assert not (tmp_path / "out").exists()
    ran = run([*map(str, words), "--replace", "--summary-json", "-"])
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["replaced"] == ["returns"]
    for step in (0, 1):
        name = f"step={step}/rollouts.parquet"
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "full" / name).read_bytes()
    assert rlpost.verify(tmp_path / "out").ok
    (tmp_path / "side/step=1/rollouts.parquet").rename(tmp_path / "side/step=1/other.parquet")
    ran = run([*map(str, words), "--replace", "--overwrite"])
    assert ran.code == 2
    assert "has no file step=1/rollouts.parquet; the files of IN and SIDECAR" in ran.err


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


def test_rows_in_another_order_are_joined_by_key(tmp_path, monkeypatch):
    monkeypatch.setattr("rlpost.sidecars.output.READ_BYTES", 20_000)  # several batches
    monkeypatch.setattr("rlpost.io.parquet.sink.READ_BYTES", 30_000)
    source = written(IDS, tmp_path / "in.parquet", row_group_size=200)
    new = lists()
    extra = new.head(5).with_columns(row=pl.col("row") + 9000)
    shuffled = pl.concat([new, extra]).sample(fraction=1, shuffle=True, seed=3)
    side = written(shuffled, tmp_path / "side.parquet", row_group_size=77)
    with pytest.raises(DataError, match=r"has 517 rows, and .*in.parquet has 512; .*--on COLUMN"):
        rlpost.join(source, side, tmp_path / "out.parquet")
    result = rlpost.join(source, side, tmp_path / "out.parquet", on="row")
    assert result.unused_rows == 5
    assert "5 rows of 517 have a key that no row of the input has" in result.warnings[0]
    out = pl.read_parquet(tmp_path / "out.parquet")
    assert out.drop([n for n in IDS.columns if n != "row"]).equals(new.with_columns(IDS["row"]))
    assert (
        rlpost.join(source, written(new, side), tmp_path / "b.parquet", on=["row"]).unused_rows == 0
    )


def test_a_sidecar_of_prompts_serves_all_rows_of_all_files(tmp_path):
    (tmp_path / "in").mkdir()
    for step, part in FRAME.partition_by("step", as_dict=True).items():
        written(part, tmp_path / "in" / f"{step[0]}.parquet")
    levels = FRAME.select(pl.col("prompt_id").unique()).with_row_index("level")
    side = written(levels, tmp_path / "levels.parquet")
    result = rlpost.join(tmp_path / "in", side, tmp_path / "out", on="prompt_id")
    assert result.rows == 512
    assert (result.unused_rows, result.repeated_keys, result.warnings) == (0, 512 - 64, [])
    joined = pl.concat([pl.read_parquet(path) for path in sorted((tmp_path / "out").iterdir())])
    assert joined["level"].to_list() == (
        joined.join(levels, on="prompt_id", how="left")["level_right"].to_list()
    )


@pytest.mark.parametrize(
    ("side", "on", "text"),
    [
        (IDS.select("row", x="row").reverse(), (),
         r"in.parquet, row 0: `row` is 0, and .* of .*side.parquet it is 511; .*--on COLUMN"),
        (lists().head(511), "row", "row 511: no row of .* has the key `row` 511; 1 row of 512"),
        (pl.concat([lists(), lists().head(2)]), "row", "row 512: has the key `row` 0 of row 0; 2"),
        (lists().with_columns(row=pl.when(pl.col("row") != 3).then("row")), "row",
         "side.parquet, row 3: `row` is null; --on needs a key in every row"),
        (lists().with_columns(pl.col("row").cast(pl.String)), "row",
         "`row` is large_string, and in .* it is int64; a key needs the same type"),
        (lists().with_columns(domain=pl.lit("x")), "row", "--replace uses the sidecar's values"),
        (lists(), "rwo", r"--on rwo: there is no such column; .*did you mean row\?"),
        (lists().rename({"scores": "reward"}), "row", "already: reward; --replace"),
        (lists(), "scores", "there is no such column"),
        (IDS.select("row", "prompt_id"), (), "has no other columns than"),
    ],
)  # fmt: skip
def test_errors_name_file_row_and_values(tmp_path, side, on, text):
    source = written(IDS, tmp_path / "in.parquet")
    path = written(side, tmp_path / "side.parquet")
    with pytest.raises((DataError, UsageError), match=text):
        rlpost.join(source, path, tmp_path / "out.parquet", on)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in.parquet", "side.parquet"]


def test_a_sidecar_of_another_file_is_warned_of(tmp_path):
    source, side = written(FRAME, tmp_path / "in.parquet"), tmp_path / "side.parquet"
    rlpost.advantages(source, side, rlpost.Recipe(emit_only=True))
    within = FRAME.with_row_index().select(pl.col("index").reverse().over("step", "prompt_id"))
    written(FRAME[within["index"].to_list()], source)  # the responses of each group change places
    ran = run(["join", str(source), str(side), str(tmp_path / "out.parquet")])
    assert ran.code == 0
    said = " ".join(ran.err.split())
    assert "was computed from another file than" in said
    assert "prompt_id, step, domain agree in all rows" in said
    without = written(lists().drop("row"), tmp_path / "x.parquet")
    (warning,) = rlpost.join(source, without, tmp_path / "other.parquet").warnings
    assert "so the order of rows was not checked" in warning


def test_changed_bytes_of_a_sidecar_are_found(tmp_path):
    source, side = written(FRAME, tmp_path / "in.parquet"), tmp_path / "side.parquet"
    rlpost.advantages(source, side, rlpost.Recipe(emit_only=True))
    data = bytearray(side.read_bytes())
    chunk = pq.read_metadata(side).row_group(0).column(3)
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    side.write_bytes(data)
    with pytest.raises(DataError, match=r"side.parquet: column `advantages`, row group 0: bytes "):
        rlpost.join(source, side, tmp_path / "out.parquet")


@pytest.mark.parametrize("kind", ["polars", "lazy", "pandas", "arrow"])
def test_tables_are_joined_and_come_back_in_their_own_type(kind):
    make = {
        "polars": lambda frame: frame,
        "lazy": lambda frame: frame.lazy(),
        "pandas": lambda frame: frame.to_pandas(),
        "arrow": lambda frame: frame.to_arrow(),
    }[kind]
    joined, result = rlpost.join(make(IDS), make(lists().reverse()), on="row")
    assert type(joined) is type(make(IDS))
    frame = joined.collect() if kind == "lazy" else pl.DataFrame(joined)
    assert frame["label"].to_list() == lists()["label"].to_list()
    assert result.inputs == [type(make(IDS)).__name__]
    with pytest.raises(UsageError, match="an output is needed"):
        rlpost.join(SAMPLE, lists())
