"""Single responses are read from their row groups, by the columns that are needed."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from response_index import ARITHMETIC, CALCULATOR, index_of

from rlpost.analysis.responses import reader as reader_module
from rlpost.analysis.responses.columns import text_of
from rlpost.analysis.responses.reader import ResponseReader
from rlpost.io.parquet.reader import ParquetReader


@pytest.mark.parametrize(("row_group_size", "chunk_bytes"), [(5, 20_000), (37, 1), (512, 1 << 30)])
def test_rows_come_as_they_are_asked_for(tmp_path, monkeypatch, row_group_size, chunk_bytes):
    monkeypatch.setattr(reader_module, "_CHUNK_BYTES", chunk_bytes)
    path = tmp_path / "cut.parquet"
    pq.write_table(pq.read_table(CALCULATOR).slice(0, 530), path, row_group_size=row_group_size)
    frame, reader = pl.read_parquet(CALCULATOR), ResponseReader(index_of(path), ("logprob", "kl"))
    for asked in ([525, 3, 3, 36, 37, 38], [4], [510, 511, 512]):
        found = reader.read(asked)
        assert [one.row for one in found] == asked
        for one in found:
            row = frame.row(one.row, named=True)
            assert (one.text, one.prompt) == (row["response"], row["prompt"])
            assert one.mask.tolist() == [m == 1 for m in row["response_mask"]]
            assert one.token_measures["logprob"].tolist() == row["old_log_probs"]
            assert one.fields["traj_id"] == row["traj_id"]
            assert "".join(one.token_texts) == row["response"]


def test_only_the_needed_columns_are_read(monkeypatch):
    reader = ResponseReader(index_of(ARITHMETIC), ("logprob",))
    seen = []
    whole = ParquetReader.batches

    def spy(self, rows, group, columns, **options):
        seen.append((group, set(columns)))
        return whole(self, rows, group, columns, **options)

    monkeypatch.setattr(ParquetReader, "batches", spy)
    reader.read([130, 131])
    ((group, columns),) = seen
    assert group == 1
    assert "old_log_probs" in columns
    assert not columns & {"ref_log_probs", "values", "infer_log_probs", "prompt_tokens"}
    reader.read([135])
    assert len(seen) == 1, "the piece was kept"


def test_ids_of_prompt_and_response_give_the_last_ones(tmp_path):
    table = pa.table({"tokens": [[5, 6, 7, 8]], "loss_mask": [[1, 1]], "reward": [1.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    (one,) = ResponseReader(index_of(tmp_path / "a.parquet")).read([0])
    assert one.token_texts == ["7", "8"]


def test_messages_are_read_as_a_conversation():
    said = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    assert text_of(said) == "user: 2+2?\nassistant: 4"
    assert text_of([{"type": "text", "text": "a"}]) == "a"
    assert text_of(None) == ""
