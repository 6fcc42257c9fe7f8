"""Columns of training batches: by name, of other types, and those that an input lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import torch

import rlpost
from rlpost.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def test_names_of_token_ids(enriched: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    table = pl.read_parquet(enriched).rename({"response_tokens": "ids"})
    table.with_columns(output_tokens=pl.lit(7)).write_parquet(tmp_path / "ids.parquet")
    batch = next(iter(rlpost.load(tmp_path / "ids.parquet", batch_tokens=4000)))
    assert not {"input_ids", "response_token_ids", "prompt_token_ids"} & {*batch}
    names = {"response_token_ids": "ids"}
    batch = next(iter(rlpost.load(tmp_path / "ids.parquet", batch_tokens=4000, columns_map=names)))
    expected = [rows[number]["response_tokens"] for number in batch["rows"].tolist()]
    ids, lengths = batch["response_token_ids"].tolist(), batch["lengths"].tolist()
    assert [own[:n] for own, n in zip(ids, lengths, strict=True)] == expected
    assert batch["prompt_token_ids"].dtype == torch.int64
    with pytest.raises(DataError, match="columns_map: no column 'idz'; did you mean ids"):
        rlpost.load(
            tmp_path / "ids.parquet", batch_tokens=4000, columns_map={"response_token_ids": "idz"}
        )


def test_columns_by_name_and_texts(enriched: Path, rows: list[dict[str, Any]]) -> None:
    data = rlpost.load(
        enriched, batch_tokens=4000, columns=["advantages", "response", "difficulty"]
    )
    batch = next(iter(data))
    assert batch["response"] == [rows[n]["response"] for n in batch["rows"].tolist()]
    assert batch["difficulty"].dtype == torch.float32
    assert "values" not in batch
    assert "input_ids" not in batch


def test_files_without_tokens(tmp_path: Path) -> None:
    table = pl.DataFrame({"prompt_id": [*"aabb"], "reward": [1.0, 0, 1, 1], "response": [*"wxyz"]})
    table.write_parquet(tmp_path / "in.parquet")
    rlpost.advantages(tmp_path / "in.parquet", tmp_path / "out.parquet")
    (batch,) = rlpost.load(
        tmp_path / "out.parquet", batch_tokens=4000, columns=["response", "response_advantage"]
    )
    assert batch["response"] == [*"wxyz"]
    assert batch["response_advantage"].sign().tolist() == [1, -1, 0, 0]
    assert "mask" not in batch


def test_files_with_other_columns_are_an_error(enriched: Path, tmp_path: Path) -> None:
    pl.read_parquet(enriched).drop("sample_mask").write_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match="has no `sample_mask`, which other files have"):
        rlpost.load([enriched, tmp_path / "other.parquet"], batch_tokens=4000)
