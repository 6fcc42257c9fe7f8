"""Options of `rlpost.load`: wrong ones, steps of a rollout, and states of other files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import rlpost
from rlpost.errors import DataError, UsageError

SAMPLE = Path("sample_data/calculator.parquet")


def test_a_state_names_the_file_that_differs(enriched: Path, tmp_path: Path) -> None:
    state = rlpost.load(enriched, batch_size=16).state_dict()
    rows = pl.read_parquet(enriched)
    for name, table, text in (
        ("moved", rows, "out.parquet (200 rows) was in the place of moved.parquet (200 rows)"),
        ("out", rows.head(9), "out.parquet had 200 rows and has 9"),
        ("out", rows, "out.parquet was written again"),
    ):
        table.write_parquet(tmp_path / f"{name}.parquet")
        with pytest.raises(UsageError, match=re.escape(f"of other files: {text}")):
            rlpost.load(tmp_path / f"{name}.parquet", batch_size=16).load_state_dict(state)
    copies = [tmp_path / f"{number}.parquet" for number in range(20)]
    for path in copies:
        rows.head(9).write_parquet(path)
    state = rlpost.load(copies, batch_size=16).state_dict()
    rlpost.load(copies, batch_size=16).load_state_dict(state)
    with pytest.raises(UsageError, match=r"4 more files \(36 rows\) was .* 3 more files"):
        rlpost.load(copies[:-1], batch_size=16).load_state_dict(state)


@pytest.mark.parametrize("steps", [[1], range(1, 9), {0, 1}, np.array([1])])
@pytest.mark.parametrize("hive", [False, True])
def test_rollout_steps(enriched: Path, tmp_path: Path, steps: Any, *, hive: bool) -> None:
    rows = pl.read_parquet(enriched).with_columns(step=pl.int_range(pl.len()) % 3)
    if hive:
        for number, part in rows.partition_by("step", as_dict=True, include_key=False).items():
            (tmp_path / f"step={number[0]}").mkdir()
            part.write_parquet(tmp_path / f"step={number[0]}" / "rows.parquet")
    else:
        rows.write_parquet(tmp_path / "rows.parquet")
    options = {"batch_size": 16, "shuffle": 1, "accumulate": 2, "together": "response"}
    batches = [*rlpost.load(tmp_path, steps=steps, **options)]
    found = torch.cat([batch["rollout_step"] for batch in batches]).tolist()
    kept = rows.filter(pl.col("step").is_in([*steps]), sample_mask=True)
    assert sorted(found) == sorted(kept["step"])
    assert [batch["step"] for batch in batches] == [n // 2 for n in range(len(batches))]
    assert batches[0]["totals"]["rows"] == 32
    other = rlpost.load(tmp_path, steps=[2], **options)
    with pytest.raises(UsageError, match="other options: steps was"):
        other.load_state_dict(json.loads(json.dumps(batches[0]["state"])))


def test_masks_that_a_file_lacks_are_a_warning(tmp_path: Path) -> None:
    recipe = rlpost.Recipe(unit="row", drop_truncated=True, emit=("advantages",))
    rlpost.advantages(SAMPLE, tmp_path / "out.parquet", recipe)
    with pytest.warns(UserWarning, match="sample_mask") as caught:
        rlpost.load(tmp_path / "out.parquet", batch_size=4)
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "batch_size= or batch_tokens= is needed"),
        ({"batch_size": 4, "batch_tokens": 9}, "batch_size=4 and batch_tokens=9: only one of them"),
        ({"batch_size": 0}, "a whole number from 1"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"batch_size": 2, "columns": "advantages"}, "a list of names"),
        (
            {"batch_size": 2, "columns": ["prompt_token_ids"]},
            "prompt_token_ids need response_token_ids",
        ),
        ({"batch_size": 2, "columns": ["prompt_tokens"]}, "name them prompt_token_ids"),
        ({"batch_size": 4, "layout": "flat"}, "padded or packed"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank=2"),
        ({"batch_size": 4, "columns": ["advantage"]}, "did you mean advantages"),
        ({"batch_size": 4, "columns": ["mask"]}, "is in every batch"),
        ({"batch_size": 4, "shuffle": False}, "shuffle=False: a seed (a whole number from 0) is"),
        ({"batch_size": 4, "together": "yes"}, "together='yes': response, rollout, group"),
        ({"batch_size": 4, "drop_masked": "false"}, "drop_masked='false': True or False"),
        ({"batch_size": 4, "columns": ["nope"]}, "; there are advantages, batch, "),
        ({"batch_size": 4, "columns": ["kl"]}, "`rlpost advantages --emit kl` writes it"),
        ({"batch_size": 4, "columns": ["input_ids"]}, "prompt_token_ids and response_token_ids"),
        ({"batch_size": 4, "world_size": 999}, "responses for 999 ranks, one has 0 for 1 batches"),
        ({"batch_size": 999, "last": "drop"}, "responses are no full step of 1 batches of 999"),
        ({"batch_size": 4, "epoch": "1"}, "epoch='1': a whole number from 0"),
        ({"batch_size": 4, "columns_map": "a=b"}, "columns_map='a=b': a dict of role and column"),
        ({"batch_size": 4, "columns_map": {"reward": 1}}, "a dict of role and column"),
        ({"batch_size": 4, "columns": ["step"]}, "name rollout_step for the column 'step'"),
        ({"batch_size": 4, "steps": 3}, "steps=3: a list of rollout steps is needed"),
        ({"batch_size": 4, "steps": [0.5]}, "a list of rollout steps is needed"),
        ({"batch_size": 4, "steps": [0, 7]}, "has no rollout step 7; its steps are 0"),
        ({"batch_size": 4, "steps": range(7, 9)}, "has no rollout step 7"),
        ({"batch_size": 4, "steps": [0], "columns_map": {"batch": "none"}}, "no column of rollout"),
    ],
)
def test_wrong_options(enriched: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises((UsageError, DataError)) as error:
        len(rlpost.load(enriched, **options))
    assert text in str(error.value)


@pytest.mark.parametrize("epoch", ["1", -1, 1.5, True])
def test_wrong_epochs(enriched: Path, epoch: Any) -> None:
    data = rlpost.load(enriched, batch_size=4)
    with pytest.raises(UsageError, match=f"epoch={epoch!r}: a whole number from 0 is needed"):
        data.set_epoch(epoch)
    with pytest.raises(UsageError, match=r"^load_state_dict: "):
        data.load_state_dict({**data.state_dict(), "epoch": epoch})


@pytest.mark.parametrize("steps", [range(10**12), range(1, 10**30), range(-(10**30), 10**30, 2)])
def test_a_range_of_any_length_is_compared_with_the_steps_of_the_input(
    enriched: Path, tmp_path: Path, steps: range
) -> None:
    rows = pl.read_parquet(enriched).with_columns(step=pl.int_range(pl.len()) % 3)
    for names in (rows, rows.with_columns(pl.col("step").cast(pl.String))):
        names.write_parquet(tmp_path / "rows.parquet")
        data = rlpost.load(tmp_path / "rows.parquet", batch_size=16, steps=steps)
        if names is not rows:
            with pytest.raises(UsageError, match="has no rollout step"):
                len(data)
            continue
        found = torch.cat([batch["rollout_step"] for batch in data]).tolist()
        assert {*found} == {step for step in range(3) if step in steps}


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_tokens", "shuffle", "world_size", "accumulate", "epoch", "window"]
)
def test_a_number_beyond_64_bits_is_an_error(enriched: Path, name: str) -> None:
    options: dict[str, Any] = {"batch_size": 4} if name != "batch_tokens" else {}
    with pytest.raises(UsageError, match=f"{name}=1000000000"):
        rlpost.load(enriched, **options | {name: 10**30})
    rlpost.load(enriched, **options | {name: 1})
    data = rlpost.load(enriched, batch_size=4)
    with pytest.raises(UsageError, match="epoch=1000000000"):
        data.set_epoch(10**30)
    for key in ("epoch", "batch"):
        with pytest.raises(UsageError, match=f"{key}=1000000000"):
            data.load_state_dict({**data.state_dict(), key: 10**30})
    last = (1 << 62) - 1
    data.load_state_dict({**data.state_dict(), "epoch": last, "batch": last})
    assert list(data) == []
    assert data.epoch == last
