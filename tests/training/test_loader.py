"""`rlpost.load`: the values of batches, workers, ranks, restarts."""

from __future__ import annotations

import json
import pickle
import random
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
import torch
from torch.utils.data import DataLoader

import rlpost
from rlpost import functional
from rlpost.errors import UsageError
from rlpost.manual import page

if TYPE_CHECKING:
    from pathlib import Path

PAGE = re.DOTALL | re.MULTILINE


def trained(row: dict[str, Any]) -> list[bool]:
    """Return the mask that a batch has for a row."""
    return [bool(m) and row["sample_mask"] for m in row["response_mask"]]


@pytest.mark.parametrize("shuffle", [None, 5])
def test_padded_values(enriched: Path, rows: list[dict[str, Any]], shuffle: int | None) -> None:
    seen = []
    for batch in rlpost.load(enriched, batch_size=16, shuffle=shuffle, window=2000):
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
    data = rlpost.load(
        enriched, batch_tokens=600, layout="packed", shuffle=2, drop_masked=False, window=2000
    )
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
    assert sorted(seen) == [*range(len(rows))]


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
    for text in re.findall(r"^def \w+_log_probs.+?^    return .+?$", page("training"), PAGE):
        exec(text, names)  # noqa: S102 - the functions of the page
    count, data = 0, rlpost.load(tmp_path / "in.parquet", batch_size=7, shuffle=1, layout=layout)
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


@pytest.mark.parametrize("loss", ["ppo", "gspo"])
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_losses_of_micro_batches_add_up_to_that_of_the_step(
    enriched: Path, loss: str, aggregation: str
) -> None:
    parts = []
    for rank in (0, 1):
        data = rlpost.load(
            enriched, batch_size=12, shuffle=1, rank=rank, world_size=2, accumulate=3,
            columns=["advantages", "old_log_probs", "log_probs"], last="keep", layout="packed",
        )  # fmt: skip
        parts += [batch for batch in data if batch["step"] == 1]
    assert len(parts) == 6
    assert len({json.dumps(part["totals"]) for part in parts}) == 1

    def value(batch: dict[str, Any], **more: Any) -> float:
        names = ("log_probs", "old_log_probs", "advantages")
        result = functional.policy_loss(
            *(batch[name] for name in names), batch["cu_seqlens"], batch["mask"], loss=loss,
            aggregation=aggregation, **more,
        )  # fmt: skip
        return float(result.loss)

    whole = {
        name: torch.cat([part[name] for part in parts])
        for name in ("log_probs", "old_log_probs", "advantages", "mask")
    }
    lengths = torch.cat([part["lengths"] for part in parts])
    whole["cu_seqlens"] = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    shares = [value(part, totals=part["totals"]) for part in parts]
    assert sum(shares) == pytest.approx(value(whole), rel=1e-5)
    if aggregation == "token-mean":  # whose mean over batches is another number
        assert sum(map(value, parts)) / 6 != pytest.approx(value(whole), rel=1e-5)


def test_workers_return_the_same_batches(enriched: Path) -> None:
    data = rlpost.TrainingData(enriched, batch_size=16, shuffle=4, window=2000)
    alone = [batch["rows"].tolist() for batch in data]
    loader = DataLoader(data, batch_size=None, num_workers=2)
    assert [batch["rows"].tolist() for batch in loader] == alone
    spawned = pickle.loads(pickle.dumps(data))  # noqa: S301 - what a spawned worker gets
    assert [batch["rows"].tolist() for batch in spawned] == alone


def test_persistent_workers_see_the_epoch_and_the_state(enriched: Path) -> None:
    data = rlpost.TrainingData(enriched, batch_size=16, shuffle=4, window=2000)
    loader = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=True)
    first = [*loader]
    data.set_epoch(1)
    second = [batch["rows"].tolist() for batch in loader]
    assert second != [batch["rows"].tolist() for batch in first]
    with pytest.raises(UsageError, match="keep the `state` of the last batch"):
        data.state_dict()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_holds_for_one_loop_of_workers(enriched: Path, *, persistent: bool) -> None:
    data = rlpost.TrainingData(enriched, batch_size=16, shuffle=4)
    states = [batch["state"] for batch in data]
    data.load_state_dict(states[2])
    for workers in (1, 2):  # the second loader has the seed of the first, and no first loop
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(
            data, batch_size=None, num_workers=workers, persistent_workers=persistent,
            generator=generator,
        )  # fmt: skip
        loops = [[batch["state"] for batch in loader] for _ in range(2)]
        assert loops == [states[3:] if workers == 1 else states, states]


def test_a_state_goes_on_and_a_wrong_one_is_an_error(enriched: Path, tmp_path: Path) -> None:
    data = rlpost.load(enriched, batch_size=16, shuffle=4)
    batches = [batch["rows"].tolist() for batch in data]
    iterator = iter(data)
    next(iterator)
    state = json.loads(json.dumps(data.state_dict()))
    other = rlpost.load(enriched, batch_size=16, shuffle=4)
    other.load_state_dict(state)
    assert [batch["rows"].tolist() for batch in other] == batches[1:]
    assert len(data) == len(batches)
    with pytest.raises(UsageError, match="other options: batch_size was 16 and is 8"):
        rlpost.load(enriched, batch_size=8, shuffle=4).load_state_dict(state)
    pl.read_parquet(enriched).head(50).write_parquet(tmp_path / "some.parquet")
    with pytest.raises(UsageError, match="other files"):
        rlpost.load(tmp_path / "some.parquet", batch_size=16, shuffle=4).load_state_dict(state)
    with pytest.raises(UsageError, match="not the state of a loader"):
        data.load_state_dict({})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_within_a_step_begins_the_step_again(enriched: Path, workers: int) -> None:
    def made() -> rlpost.TrainingData:
        return rlpost.load(enriched, batch_size=16, shuffle=4, accumulate=3)

    every, data = [*made()], made()
    for number, batch in enumerate(DataLoader(data, batch_size=None, num_workers=workers)):
        state = batch["state"] if workers else data.state_dict()
        other = made()
        other.load_state_dict(json.loads(json.dumps(state)))
        begin = number + 1 if batch["step_end"] else number // 3 * 3
        rest = [one["rows"].tolist() for one in other]
        assert rest == [one["rows"].tolist() for one in every[begin:]]
    assert len(every) % 3  # the last step is shorter, and over


def test_a_look_at_a_batch_takes_none_from_the_next_loop(enriched: Path) -> None:
    data = rlpost.load(enriched, batch_size=16, shuffle=4)
    first = next(iter(data))["rows"].tolist()
    batches = [batch["rows"].tolist() for batch in data]
    assert batches[0] == first
    assert len(batches) == len(data)
    data.load_state_dict(rlpost.load(enriched, batch_size=16, shuffle=4)._state(0, 3))
    data.set_epoch(0)  # as a loop over epochs does after it resumes
    assert [batch["rows"].tolist() for batch in data] == batches[3:]
    assert len([*data]) == len(batches)


def test_a_data_loader_leaves_batches_as_they_are(enriched: Path) -> None:
    data = rlpost.load(enriched, batch_size=16)
    batches = [batch["rows"].tolist() for batch in data]
    assert [batch["rows"].tolist() for batch in DataLoader(data)] == batches
    with pytest.raises(UsageError, match="pass batch_size=None to DataLoader"):
        next(iter(DataLoader(data, batch_size=4)))


def test_the_line_that_describes_it(enriched: Path, rows: list[dict[str, Any]]) -> None:
    tokens = sum(len(row["response_mask"]) for row in rows)
    assert repr(rlpost.load(enriched, batch_size=16, shuffle=4)) == (
        f"TrainingData: {enriched} (200 responses, {tokens:,} tokens), padded, batch_size=16, "
        "shuffle=4, accumulate=1, rank 0 of 1, epoch 0"
    )


RANK = """
import json, sys
from torch.utils.data import DataLoader
import rlpost
path, out, rank, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
data = rlpost.TrainingData(path, batch_size=3, shuffle=seed, rank=rank, world_size=2, window=2000)
with open(out, "a+") as log:
    log.seek(0)
    lines = [line for line in log.read().splitlines(keepends=True) if line.endswith("\\n")]
    if lines:
        data.load_state_dict(json.loads(lines[-1])["state"])
    for batch in DataLoader(data, batch_size=None, num_workers=2):
        log.write(json.dumps({"rows": batch["rows"].tolist(), "state": batch["state"]}) + "\\n")
        log.flush()
        import time
        time.sleep(0.02)
"""


def test_killed_ranks_with_workers_train_on_every_row_once(
    enriched: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Two ranks with two workers each, SIGKILLed at random moments and started again."""
    chance, kills, seen = random.Random(1), 0, []  # noqa: S311 - moments of kills
    for rank in (0, 1):
        most = kills + 1
        log = tmp_path / f"rank{rank}.jsonl"
        arguments = [sys.executable, "-c", RANK, str(enriched), str(log), str(rank), "7"]
        while True:
            process = subprocess.Popen(arguments)
            before = log.stat().st_size if log.exists() else 0
            stop = before + chance.randrange(2000, 6000)
            while process.poll() is None and kills < most:
                if log.exists() and log.stat().st_size > stop:
                    process.kill()
                    kills += 1
                time.sleep(0.005)
            if process.wait() == 0:
                break
        for line in log.read_text().splitlines():
            seen += json.loads(line)["rows"]
    assert kills == 2
    assert sorted(seen) == [number for number, row in enumerate(rows) if row["sample_mask"]]
