"""Rows of a sidecar: matched by key or by order; errors name the file, the row and the values."""

import polars as pl
import pytest
from sidecar_tables import FRAME, IDS, lists, written

import rlpost
from rlpost.errors import DataError, UsageError


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


@pytest.mark.parametrize("on", [("uid",), ("turn",), ("turn", "uid")])
@pytest.mark.parametrize("names", [("step", "uid", "turn"), ("turn", "uid", "step")])
def test_shared_keys_may_come_in_any_order_in_either_file(tmp_path, names, on):
    keys = pl.DataFrame(
        {"step": [1, 1, 2], "uid": ["a", "b", "c"], "turn": [3, 4, 5], "reward": [1.0, 0.0, 1.0]}
    )
    source = written(keys, tmp_path / "in.parquet")
    new = keys.select(*names).reverse().with_columns(score=pl.Series([0.3, 0.2, 0.1]))
    result = rlpost.join(
        source, written(new, tmp_path / "side.parquet"), tmp_path / "out.parquet", on=on
    )
    assert sorted(result.equal_columns) == ["step", "turn", "uid"]
    assert pl.read_parquet(tmp_path / "out.parquet")["score"].to_list() == [0.1, 0.2, 0.3]


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
