"""Facts of rows, read before training: which have a response to train on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

import rlpost
from rlpost.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def test_first_tokens_without_a_prompt_are_not_trained_on(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "response_mask": [[1, 1, 1], [0, 1], [1], []],
            "advantages": [[1.0, 2.0, 3.0], [0.0, 4.0], [5.0], []],
            "response_tokens": [[7, 8, 9], [5, 6], [4], []],
            "prompt_tokens": [[], [2], [], [3]],
        },
        schema_overrides={"prompt_tokens": pl.List(pl.Int64)},
    )
    table.write_parquet(tmp_path / "in.parquet")
    ids = ["advantages", "response_token_ids", "prompt_token_ids"]
    for columns, layout, expected in (
        (ids[:2], "packed", [0, 1, 1, 0, 1, 0]),
        (ids, "packed", [0, 1, 1, 0, 0, 1, 0, 0]),  # with two prompts of one token
        (ids, "padded", [0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
        (ids[:1], "packed", [1, 1, 1, 0, 1, 1]),  # no input_ids: nothing is predicted of them
    ):
        (batch,) = rlpost.load(
            tmp_path / "in.parquet", batch_size=4, columns=columns, layout=layout
        )
        assert batch["mask"].flatten().tolist() == [bool(x) for x in expected]
        trained_on = [2, 1, 0, 0] if "response_token_ids" in columns else [3, 1, 1, 0]
        assert batch["totals"]["tokens"] == sum(trained_on) == int(batch["mask"].sum())
        assert batch["totals"]["responses"] == sum(n > 0 for n in trained_on)
        assert batch["totals"]["groups"] == batch["totals"]["responses"]
        assert batch["totals"]["rows"] == 4


def test_a_file_without_a_response_to_train_on_is_named(enriched: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(enriched).with_columns(sample_mask=pl.lit(value=False))
    rows.write_parquet(tmp_path / "in.parquet")
    with pytest.raises(DataError, match=r"in.parquet: no response is left .*drop_masked=False"):
        len(rlpost.load(tmp_path / "in.parquet", batch_size=4))
