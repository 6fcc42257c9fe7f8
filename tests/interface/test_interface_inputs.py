"""Inputs of Python functions: tables, dumps and paths, by the names that errors have."""

import json

import polars as pl
import pytest

import rlpost
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError, UsageError

FRAME = pl.read_parquet("sample_data/arithmetic.parquet")


def test_errors_name_the_table():
    with pytest.raises(DataError, match=r"^DataFrame: no column for log_probs"):
        rlpost.loss(FRAME.drop("log_probs"))
    broken = FRAME.with_columns(pl.when(pl.int_range(pl.len()) > 0).then("reward").alias("reward"))
    with pytest.raises(DataError, match=r"^DataFrame 1, row 0: `reward` is null"):
        rlpost.advantages([FRAME, broken], "folder")
    with pytest.raises(UsageError, match="dict came; a path or a table"):
        rlpost.inspect({})
    with pytest.raises(UsageError, match="a path is empty"):
        rlpost.advantages("sample_data/arithmetic.parquet", "")
    with pytest.raises(UsageError, match="no input"):
        rlpost.inspect([])


def test_notes_and_results_name_the_dump_and_not_the_file_that_is_made_of_it(tmp_path):
    enriched, _ = rlpost.enrich(FRAME.head(16))
    dumps = [tmp_path / name / "dump.jsonl" for name in "ab"]
    for dump in dumps:
        dump.parent.mkdir()
        rlpost.export(enriched, dump, "jsonl")
    notes = []
    found = rlpost.compare(dumps, progress=SilentReporter(notes.append))
    assert [note.partition(": ")[0] for note in notes] == [str(dump) for dump in dumps]
    assert "read as jsonl, 16 responses" in notes[0]
    assert found.sides == [str(dump) for dump in dumps]
    assert "rlpost-" not in json.dumps(found)


@pytest.mark.parametrize("call", [rlpost.verify, lambda table: rlpost.convert(table, "x.parquet")])
def test_what_needs_paths_names_a_table(call):
    with pytest.raises(UsageError, match="DataFrame came; a path is needed"):
        call(pl.DataFrame({"reward": [1.0]}))
