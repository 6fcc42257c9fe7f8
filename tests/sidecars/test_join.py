"""`rlpost join`: a sidecar's new columns beside those of the input, without decoding either."""

import json

import polars as pl
import pyarrow.parquet as pq
import pytest
from manual.program import run
from sidecar_tables import FRAME, IDS, SAMPLE, lists, written

import rlpost
from rlpost.errors import UsageError


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
    assert "has no file step=1/rollouts.parquet" in " ".join(ran.err.split())


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
