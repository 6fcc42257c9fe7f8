"""`rlpost.load`: the values of batches, their order, ranks, workers."""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import rlpost
from rlpost.errors import DataError, UsageError
from rlpost.manual import page
from rlpost.training import reading

if TYPE_CHECKING:
    from pathlib import Path

PAGE = re.DOTALL | re.MULTILINE


def trained(row: dict[str, Any]) -> list[bool]:
    """Return the mask that a batch has for a row."""
    return [bool(m) and row["sample_mask"] for m in row["response_mask"]]


@pytest.mark.parametrize("shuffle", [None, 5])
def test_padded_values(enriched: Path, rows: list[dict[str, Any]], shuffle: int | None) -> None:
    seen = []
    for batch in rlpost.load(enriched, batch_tokens=2000, shuffle=shuffle):
        width = batch["mask"].shape[1]
        for i, number in enumerate(batch["rows"].tolist()):
            row, n = rows[number], int(batch["lengths"][i])
            assert n == len(row["response_mask"])
            assert batch["mask"][i].tolist() == trained(row) + [False] * (width - n)
            for name in ("advantages", "returns", "old_log_probs", "values"):
                expected = np.zeros(width, np.float32)
                expected[:n] = row[name]
                assert np.array_equal(batch[name][i].numpy(), expected)
            ids = batch["input_ids"][i][batch["attention_mask"][i]].tolist()
            assert ids == row["prompt_tokens"] + row["response_tokens"]
            places = batch["position_ids"][i][batch["attention_mask"][i]].tolist()
            assert places == [*range(len(ids))]
            assert batch["reward"][i] == np.float32(row["reward"])
            assert batch["sample_weight"][i] == np.float32(row["sample_weight"])
        seen += batch["rows"].tolist()
    kept = [number for number, row in enumerate(rows) if row["sample_mask"]]
    assert sorted(seen) == kept
    assert (seen == kept) == (shuffle is None)


def test_packed_values(enriched: Path, rows: list[dict[str, Any]]) -> None:
    data = rlpost.load(enriched, batch_tokens=600, layout="packed", shuffle=2)
    seen = []
    for batch in data:
        bounds = batch["cu_seqlens"].tolist()
        assert bounds[-1] <= 600
        for number, begin, end in zip(batch["rows"].tolist(), bounds[:-1], bounds[1:], strict=True):
            row = rows[number]
            prompt = len(row["prompt_tokens"])
            assert batch["input_ids"][begin:end].tolist() == (
                row["prompt_tokens"] + row["response_tokens"]
            )
            assert batch["position_ids"][begin:end].tolist() == [*range(end - begin)]
            assert batch["mask"][begin:end].tolist() == [False] * prompt + trained(row)
            expected = np.array([0.0] * prompt + row["advantages"], np.float32)
            assert np.array_equal(batch["advantages"][begin:end].numpy(), expected)
        seen += batch["rows"].tolist()
    assert sorted(seen) == [number for number, row in enumerate(rows) if row["sample_mask"]]


def prefix_logits(ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Logits [T, V] of a causal model that looks at all tokens since the start of each, [T]."""
    weights = torch.randn(99, 8, generator=torch.Generator().manual_seed(3))
    sums = weights[ids].double().cumsum(0)
    before = torch.where((starts > 0)[:, None], sums[(starts - 1).clamp(min=0)], 0.0)
    return (sums - before) @ weights.T.double()


def row_log_probs(row: dict[str, Any]) -> list[float]:
    """Log-probs of the response tokens, from the prompt and one token after the other."""
    out = []
    for n, token in enumerate(row["response_tokens"]):
        ids = torch.tensor(row["prompt_tokens"] + row["response_tokens"][:n])
        logits = prefix_logits(ids, torch.zeros(len(ids), dtype=torch.int64))[-1]
        out.append(float(logits.log_softmax(-1)[token]))
    return out


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_log_probs_as_the_manual_computes_them_are_those_of_the_file(
    enriched: Path, rows: list[dict[str, Any]], layout: Any, tmp_path: Path
) -> None:
    own = [row_log_probs(row) for row in rows[:40]]
    table = pl.read_parquet(enriched).head(40).with_columns(old_log_probs=pl.Series(own))
    table.write_parquet(tmp_path / "in.parquet")
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn}
    for text in re.findall(r"^def \w+_log_probs.+?^    return .+?$", page("python"), PAGE):
        exec(text, names)  # noqa: S102 - the functions of the page
    count, data = (
        0,
        rlpost.load(tmp_path / "in.parquet", batch_tokens=900, shuffle=1, layout=layout),
    )
    for batch in data:
        ids = batch["input_ids"]
        if layout == "packed":
            starts = torch.repeat_interleave(batch["cu_seqlens"][:-1], batch["cu_seqlens"].diff())
            log_probs = names["packed_log_probs"](prefix_logits(ids, starts.long()), batch)
        else:
            first = (~batch["attention_mask"][:, : batch["prompt_token_ids"].shape[1]]).sum(1)
            logits = [
                prefix_logits(row, row.new_full(row.shape, int(start)))
                for row, start in zip(ids, first, strict=True)
            ]
            log_probs = names["response_log_probs"](torch.stack(logits), batch)
        mask = batch["mask"]
        count += int(mask.sum())
        torch.testing.assert_close(
            log_probs[mask].float(), batch["old_log_probs"][mask], rtol=1e-4, atol=1e-4
        )
    assert count == sum(sum(trained(row)) for row in rows[:40])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of responses of 0 to 12 tokens, some of which a sample mask drops."""
    sizes = np.random.default_rng(1).integers(0, 13, 120)
    table = pl.DataFrame(
        {
            "advantages": [[float(row)] * size for row, size in enumerate(sizes)],
            "response_mask": [[int(i % 3 > 0) for i in range(size)] for size in sizes],
            "sample_mask": [row % 5 != 1 for row in range(len(sizes))],
        }
    )
    path = tmp_path_factory.mktemp("tiny") / "in.parquet"
    table.write_parquet(path, row_group_size=17)
    return path


@settings(max_examples=25, deadline=None)
@given(
    world=st.integers(1, 5),
    seed=st.one_of(st.none(), st.integers(0, 9)),
    most=st.sampled_from([1, 20, 200, 100_000]),
    layout=st.sampled_from(["padded", "packed"]),
    window=st.sampled_from([30, 300, 100_000]),
)
def test_all_ranks_together_train_on_every_row_once(
    tiny: Path, world: int, seed: int | None, most: int, layout: Any, window: int
) -> None:
    table = pl.read_parquet(tiny)
    with mock.patch.object(reading, "WINDOW", window):
        ranks = [
            [*rlpost.load(tiny, batch_tokens=most, layout=layout, shuffle=seed, rank=rank,
                          world=world)]
            for rank in range(world)
        ]  # fmt: skip
    assert len({len(batches) for batches in ranks}) == 1
    rounds = [*zip(*ranks, strict=True)]
    seen = [row for batches in rounds for batch in batches for row in batch["rows"].tolist()]
    kept = [row for row, keep in enumerate(table["sample_mask"]) if keep]
    assert len(kept) - len(seen) < world
    assert len({*seen}) == len(seen)
    assert {*seen} <= {*kept}
    if seed is None and world == 1:
        assert seen == kept
    for batches in rounds:
        rows = [batch["rows"].tolist() for batch in batches]
        masks = table["response_mask"][[row for own in rows for row in own]].to_list()
        trained_on = [sum(mask) for mask in masks]
        assert [batch["totals"] for batch in batches] == [
            {
                "tokens": sum(trained_on),
                "responses": sum(count > 0 for count in trained_on),
                "rows": len(masks),
                "longest": max(map(len, masks)),
            }
        ] * world
        for batch in batches:
            assert int(batch["mask"].sum()) == sum(
                map(sum, table["response_mask"][batch["rows"].numpy()])
            )
            assert batch["mask"].numel() <= most or len(batch["rows"]) == 1


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
            tmp_path / "in.parquet", batch_tokens=99, columns=columns, layout=layout
        )
        assert batch["mask"].flatten().tolist() == [bool(x) for x in expected]
        assert batch["totals"]["tokens"] == int(batch["mask"].sum())
        assert batch["totals"]["rows"] == 4


def test_fewer_responses_than_ranks_are_an_error(enriched: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(enriched)
    rows.with_columns(sample_mask=pl.lit(value=False)).write_parquet(tmp_path / "in.parquet")
    with pytest.raises(DataError, match=r"in.parquet: 0 responses are left"):
        next(iter(rlpost.load(tmp_path / "in.parquet", batch_tokens=400)))
    rows.filter("sample_mask").head(2).write_parquet(tmp_path / "in.parquet")
    with pytest.raises(DataError, match="2 responses are left to train on by 3 ranks"):
        next(iter(rlpost.load(tmp_path / "in.parquet", batch_tokens=400, world=3)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_tokens": 0}, "batch_tokens=0: a whole number from 1"),
        ({"batch_tokens": 9, "shuffle": -1}, "shuffle=-1: a whole number from 0"),
        ({"batch_tokens": 9, "shuffle": True}, "shuffle=True"),
        ({"batch_tokens": 9, "rank": 2, "world": 2}, "rank=2: less than world=2"),
        ({"batch_tokens": 9, "layout": "flat"}, "layout='flat': padded or packed"),
        ({"batch_tokens": 9, "columns_map": "a=b"}, "columns_map='a=b': a dict of role"),
        ({"batch_tokens": 9, "columns": ["rows"]}, "'rows' is in every batch"),
    ],
)
def test_wrong_options(enriched: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as error:
        rlpost.load(enriched, **options)
    assert text in str(error.value)


def test_workers_return_the_same_batches(enriched: Path) -> None:
    data = rlpost.TrainingData(enriched, batch_tokens=2000, shuffle=4)
    alone = [batch["rows"].tolist() for batch in data]
    loader = DataLoader(data, batch_size=None, num_workers=2)
    assert [batch["rows"].tolist() for batch in loader] == alone
    spawned = pickle.loads(pickle.dumps(data))  # noqa: S301 - what a spawned worker gets
    assert [batch["rows"].tolist() for batch in spawned] == alone
