"""`rlpost.load`: the values of batches, workers, ranks, restarts."""

from __future__ import annotations

import json
import pickle
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import rlpost
from rlpost import functional
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.manual import page

PAGE = re.DOTALL | re.MULTILINE
SAMPLE = Path("sample_data/calculator.parquet")


@pytest.fixture(scope="module")
def enriched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an enriched file with observation tokens, masked responses, several row groups."""
    folder = tmp_path_factory.mktemp("enriched")
    rows = pl.read_parquet(SAMPLE).head(200)
    rows.write_parquet(folder / "rows.parquet", row_group_size=23)
    recipe = rlpost.Recipe(drop_truncated=True, difficulty_weight=True)
    rlpost.advantages(folder / "rows.parquet", folder / "out.parquet", recipe)
    return folder / "out.parquet"


@pytest.fixture(scope="module")
def rows(enriched: Path) -> list[dict[str, Any]]:
    """Return the file's rows."""
    return pl.read_parquet(enriched).to_dicts()


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


def test_names_of_token_ids(enriched: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    table = pl.read_parquet(enriched).rename({"response_tokens": "ids"})
    table.with_columns(output_tokens=pl.lit(7)).write_parquet(tmp_path / "ids.parquet")
    batch = next(iter(rlpost.load(tmp_path / "ids.parquet", batch_size=2)))
    assert not {"input_ids", "response_token_ids", "prompt_token_ids"} & {*batch}
    names = {"response_token_ids": "ids"}
    batch = next(iter(rlpost.load(tmp_path / "ids.parquet", batch_size=2, columns_map=names)))
    expected = [rows[number]["response_tokens"] for number in batch["rows"].tolist()]
    ids, lengths = batch["response_token_ids"].tolist(), batch["lengths"].tolist()
    assert [own[:n] for own, n in zip(ids, lengths, strict=True)] == expected
    assert batch["prompt_token_ids"].dtype == torch.int64
    with pytest.raises(DataError, match="columns_map: no column 'idz'; did you mean ids"):
        rlpost.load(
            tmp_path / "ids.parquet", batch_size=2, columns_map={"response_token_ids": "idz"}
        )


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


def test_columns_by_name_and_texts(enriched: Path, rows: list[dict[str, Any]]) -> None:
    data = rlpost.load(enriched, batch_size=8, columns=["advantages", "response", "difficulty"])
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
        tmp_path / "out.parquet", batch_size=4, columns=["response", "response_advantage"]
    )
    assert batch["response"] == [*"wxyz"]
    assert batch["response_advantage"].sign().tolist() == [1, -1, 0, 0]
    assert "mask" not in batch


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


def test_some_windows_are_in_memory_and_none_is_in_the_pool_of_pyarrow(tmp_path: Path) -> None:
    tokens, rows, window = 1000, 1200, 100_000
    values = np.random.default_rng(0).normal(size=rows * tokens).astype(np.float32)
    lists = pa.ListArray.from_arrays(np.arange(0, rows * tokens + 1, tokens, np.int32), values)
    pq.write_table(pa.table({"advantages": lists}), tmp_path / "in.parquet", row_group_size=50)
    pool, own = pa.default_memory_pool(), pa.system_memory_pool()
    before, most = own.bytes_allocated(), 0
    for batch in rlpost.load(tmp_path / "in.parquet", batch_size=7, shuffle=1, window=window):
        most = max(most, own.bytes_allocated() - before)
        assert np.array_equal(batch["advantages"], values.reshape(rows, tokens)[batch["rows"]])
        time.sleep(0.002)  # as a step does, while the next window is read
    assert window < most / 4 < 5 * window, most / 4 / window
    assert pa.default_memory_pool().backend_name == pool.backend_name


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


def test_a_file_that_is_written_again_during_a_loop_is_named(
    enriched: Path, tmp_path: Path
) -> None:
    shutil.copy(enriched, tmp_path / "in.parquet")
    batches = iter(rlpost.load(tmp_path / "in.parquet", batch_size=4, window=50))
    next(batches)
    size = (tmp_path / "in.parquet").stat().st_size
    (tmp_path / "in.parquet").write_bytes(b"PAR1" * (size // 4))
    with pytest.raises(ReadWriteError, match=r"in.parquet: cannot be read .*written again"):
        list(batches)


def test_a_file_without_a_response_to_train_on_is_named(enriched: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(enriched).with_columns(sample_mask=pl.lit(value=False))
    rows.write_parquet(tmp_path / "in.parquet")
    with pytest.raises(DataError, match=r"in.parquet: no response is left .*drop_masked=False"):
        len(rlpost.load(tmp_path / "in.parquet", batch_size=4))


def test_columns_of_an_input_without_advantages() -> None:
    with pytest.raises(DataError, match="`rlpost advantages` writes it: load the output"):
        rlpost.load(SAMPLE, batch_size=4, columns=["advantages"])
    with pytest.raises(UsageError, match="no option 'batchsize'; did you mean batch_size"):
        rlpost.load(SAMPLE, batchsize=4)  # type: ignore[call-arg]


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
    data = rlpost.load(tmp_path, batch_size=16, steps=steps, shuffle=1, accumulate=2)
    batches = [*data]
    found = torch.cat([batch["rollout_step"] for batch in batches]).tolist()
    kept = rows.filter(pl.col("step").is_in([*steps]), sample_mask=True)
    assert sorted(found) == sorted(kept["step"])
    assert [batch["step"] for batch in batches] == [n // 2 for n in range(len(batches))]
    assert batches[0]["totals"]["rows"] == 32
    other = rlpost.load(tmp_path, batch_size=16, steps=[2], shuffle=1, accumulate=2)
    with pytest.raises(UsageError, match="other options: steps was"):
        other.load_state_dict(json.loads(json.dumps(batches[0]["state"])))


def test_the_line_that_describes_it(enriched: Path, rows: list[dict[str, Any]]) -> None:
    tokens = sum(len(row["response_mask"]) for row in rows)
    assert repr(rlpost.load(enriched, batch_size=16, shuffle=4)) == (
        f"TrainingData: {enriched} (200 responses, {tokens:,} tokens), padded, batch_size=16, "
        "shuffle=4, accumulate=1, rank 0 of 1, epoch 0"
    )


def test_integers_and_bools_stay_what_they_are(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {"response_mask": [[1], [1]], "id": [2**40, 2**40 + 1], "ok": [True, False]}
    )
    table.write_parquet(tmp_path / "in.parquet")
    (batch,) = rlpost.load(tmp_path / "in.parquet", batch_size=2, columns=["id", "ok"])
    with pytest.raises(DataError, match="has no advantages; rlpost advantages writes them"):
        rlpost.load(tmp_path / "in.parquet", batch_size=2)
    with pytest.raises(UsageError, match="no column of prompt groups"):
        rlpost.load(tmp_path / "in.parquet", batch_size=2, columns=["id"], keep_groups=True)
    assert batch["id"].tolist() == [2**40, 2**40 + 1]
    assert batch["ok"].tolist() == [True, False]


def test_files_with_other_columns_are_an_error(enriched: Path, tmp_path: Path) -> None:
    pl.read_parquet(enriched).drop("sample_mask").write_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match="has no `sample_mask`, which other files have"):
        rlpost.load([enriched, tmp_path / "other.parquet"], batch_size=4)


def test_masks_that_a_file_lacks_are_a_warning(tmp_path: Path) -> None:
    recipe = rlpost.Recipe(drop_truncated=True, emit=("advantages",))
    rlpost.advantages(SAMPLE, tmp_path / "out.parquet", recipe)
    with pytest.warns(UserWarning, match="write sample_mask with --emit") as caught:
        rlpost.load(tmp_path / "out.parquet", batch_size=4)
    assert [one.filename for one in caught] == [__file__]


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
        ({"batch_size": 4, "keep_groups": "yes"}, "keep_groups='yes': True or False"),
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
    with pytest.raises(UsageError, match=f"epoch={epoch!r}: a whole number from 0 is needed"):
        data.load_state_dict({**data.state_dict(), "epoch": epoch})


def test_lists_of_other_lengths_are_an_error_that_names_the_row(tmp_path: Path) -> None:
    table = pl.DataFrame({"response_mask": [[1, 1], [1]], "advantages": [[1.0, 2.0], [1.0, 2.0]]})
    table.write_parquet(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="row 1: `advantages` has 2 values but `response_mask`"):
        next(iter(rlpost.load(tmp_path / "bad.parquet", batch_size=2)))
