"""What a run writes: the input's columns as they were, the new ones, and how it was made."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import rollout, run, save, strict_json
from strategies import Layout, arrow, ragged

from rlpost import Recipe, enrich
from rlpost.recipe.recipe import EXTRA, WRITTEN

FLOATS = pa.list_(pa.field("element", pa.float32()))
TYPES = {
    "advantages": FLOATS,
    "returns": FLOATS,
    "raw_advantages": FLOATS,
    "token_level_rewards": FLOATS,
    "kl": FLOATS,
    "final_response_mask": pa.list_(pa.field("element", pa.uint8())),
    "response_advantage": pa.float32(),
    "response_level_rewards": pa.float32(),
    "sample_mask": pa.bool_(),
    "sample_weight": pa.float32(),
    "is_weight": FLOATS,
    "group_mean": pa.float32(),
    "group_std": pa.float32(),
    "group_size": pa.int32(),
    "group_pass_rate": pa.float32(),
}
USUAL = ["advantages", "returns", "response_level_rewards"]


@pytest.fixture
def process(tmp_path):
    """Runs a table through a file, and gives the output as a table."""

    def work(table: pa.Table, *words: object, rows: int = 5) -> pa.Table:
        source, target = save(table, tmp_path / "in.parquet", rows), tmp_path / "out.parquet"
        ran = run("advantages", source, target, "-q", "--overwrite", *words)
        assert ran == (0, "", "")
        return pq.read_table(target)

    return work


# The input's columns


def foreign() -> pa.Table:
    """A rollout with columns of every other kind, nulls among them, and metadata of its own."""
    n = 12
    struct = pa.struct([("role", pa.string()), ("parts", pa.list_(pa.struct([("n", pa.int8())])))])
    columns = {
        "chat": pa.array([[{"role": "user", "parts": [{"n": i}, None]}, None] for i in range(n)],
                         pa.list_(struct)),
        "prompt": pa.array([None if i == 3 else f"text {i} ü\0" for i in range(n)]),
        "answer": pa.array(["x" * i for i in range(n)], pa.large_string()),
        "kind": pa.array(["a", "b", None] * 4).dictionary_encode(),
        "extra": pa.array([[("k", 1.5)]] * n, pa.map_(pa.string(), pa.float64())),
        "when": pa.array([dt.datetime(2025, 1, 1 + i) for i in range(n)],  # noqa: DTZ001
                         pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal(i) / 4 for i in range(n)], pa.decimal128(9, 2)),
        "image": pa.array([bytes([i]) for i in range(n)], pa.binary()),
        "half": pa.array(np.arange(n, dtype=np.float16) / np.float16(2)),
        "ids": ragged([[i, i + 1] for i in range(n)], "fixed_size_list", pa.int32()),
        "nothing": pa.nulls(n),
        "a.b": pa.array(range(n)),
        "": pa.array([True, None] * 6),
    }  # fmt: skip
    table = rollout(n)
    for name, array in columns.items():
        field = pa.field(name, array.type, metadata={"unit": name})
        table = table.append_column(field, array)
    return table.replace_schema_metadata({"origin": "step 3", "rlpost.x": "kept"})


@pytest.mark.parametrize("rows", [1, 5, 100])
def test_the_inputs_columns_stay_as_they_were(process, tmp_path, rows):
    out = process(foreign(), rows=rows)
    before = pq.read_table(tmp_path / "in.parquet")
    assert out.column_names == [*before.column_names, *USUAL]
    kept = out.select(before.column_names)
    assert kept.equals(before)
    for field in before.schema:
        assert kept.schema.field(field.name).equals(field, check_metadata=True)
    assert before.schema.metadata.items() <= out.schema.metadata.items()
    groups = [
        pq.ParquetFile(tmp_path / name).num_row_groups for name in ("in.parquet", "out.parquet")
    ]
    assert groups[0] == groups[1]


def test_the_new_columns_of_a_foreign_file_are_the_same(process):
    assert process(foreign()).select(USUAL) == process(rollout()).select(USUAL)


def test_row_groups_without_rows_do_no_harm(tmp_path):
    table = rollout()
    with pq.ParquetWriter(tmp_path / "in.parquet", table.schema) as writer:
        for first, rows in ((0, 0), (0, 5), (5, 0), (5, 7), (12, 0)):
            writer.write_table(table.slice(first, rows))
    assert run("advantages", tmp_path / "in.parquet", tmp_path / "out.parquet", "-q").code == 0
    made, _ = enrich(table)
    assert pq.read_table(tmp_path / "out.parquet").equals(made)


def test_a_table_in_memory_gets_the_same_as_a_file(process):
    made, summary = enrich(rollout())
    assert process(rollout()).equals(made)
    assert summary["responses"] == 12
    frame, _ = enrich(pl.from_arrow(rollout()))
    assert frame.select(USUAL).equals(pl.from_arrow(made.select(USUAL)))


# The new columns

EVERY = {*WRITTEN, *EXTRA}
ALL_ON = ["--kl-coef", "0.1", "--whiten-advantages", "--length-weight", "--drop-zero-variance"]


@pytest.mark.parametrize("name", sorted(EVERY))
@pytest.mark.parametrize("words", [["--length-weight"], ALL_ON], ids=["plain", "all on"])
def test_every_column_can_be_written_and_has_its_type(process, name, words):
    table, weighed = rollout(), []
    if name == "is_weight":
        table = table.append_column("infer_log_probs", table["old_log_probs"])
        weighed = ["--is-weight", "token"]
    if name == "response_advantage":  # KL would give each token its own
        words = [word for word in words if word not in ("--kl-coef", "0.1")]
    out = process(table, "--emit", name, *words, *weighed)
    assert out.column_names == [*table.column_names, name]
    assert out.schema.field(name).type == TYPES[name]
    assert out[name].null_count == 0
    if pa.types.is_list(TYPES[name]):
        assert str(out.schema.field(name).type).startswith("list<element: ")
        lengths = [len(mask) for mask in rollout()["response_mask"].to_pylist()]
        assert [len(values) for values in out[name].to_pylist()] == lengths


def test_what_is_written_by_default_follows_from_the_recipe(process):
    assert process(rollout()).column_names[5:] == USUAL
    masked = process(rollout(), "--drop-zero-variance", "--length-weight")
    assert masked.column_names[5:] == [*USUAL, "sample_mask", "sample_weight"]


def test_emitted_columns_come_in_the_order_in_which_they_are_named(process):
    out = process(rollout(), "--emit", "returns, advantages")
    assert out.column_names[5:] == ["returns", "advantages"]


def test_group_columns_hold_the_statistics_of_raw_rewards(process):
    table = rollout(6, 2).set_column(1, "reward", pa.array([0, 1, 1, 1, 0, 0], pa.float32()))
    names = ["group_mean", "group_std", "group_size", "group_pass_rate"]
    out = process(table, "--emit", ",".join(names)).select(names).to_pydict()
    assert out["group_mean"] == [0.5, 0.5, 1, 1, 0, 0]
    assert out["group_std"] == pytest.approx([math.sqrt(0.5)] * 2 + [0] * 4)
    assert out["group_size"] == [2] * 6
    assert out["group_pass_rate"] == [0.5, 0.5, 1, 1, 0, 0]


def test_only_the_keys_stay_where_nothing_else_is_wanted(process):
    keys = {"step": [1] * 12, "domain": ["math"] * 12, "traj_id": ["t"] * 12}
    table = rollout()
    for name, values in keys.items():
        table = table.append_column(name, [values])
    out = process(table, "--emit-only", "--emit", "advantages")
    assert set(out.column_names) == {"prompt_id", *keys, "advantages"}
    for name in ("prompt_id", *keys):
        assert out[name].equals(table[name])
    assert out["advantages"].equals(process(table)["advantages"])


def test_columns_of_the_same_name_are_replaced_where_asked(process):
    table = rollout().add_column(0, "returns", [["old"] * 12])
    out = process(table, "--replace")
    assert out.column_names == [*rollout().column_names, *USUAL]
    assert out.select(USUAL).equals(process(rollout()).select(USUAL))


def test_an_output_can_be_processed_again(process, tmp_path):
    once = process(rollout())
    again = tmp_path / "again.parquet"
    ran = run("advantages", tmp_path / "out.parquet", again, "-q", "--replace")
    assert ran.code == 0
    assert pq.read_table(again).equals(once)


def test_advantages_are_zero_on_observations_and_follow_the_formula(process):
    out = process(rollout()).to_pylist()
    for row in out:
        group = [other["reward"] for other in out if other["prompt_id"] == row["prompt_id"]]
        mean = sum(group) / 4
        std = math.sqrt(sum((reward - mean) ** 2 for reward in group) / 3)
        advantage = (row["reward"] - mean) / (std + 1e-6)
        assert row["advantages"] == pytest.approx([m * advantage for m in row["response_mask"]])
        assert row["returns"] == row["advantages"]


LAYOUTS = [
    Layout(lists, floats, masks)
    for lists in ("list", "large_list", "fixed_size_list")
    for floats, masks in [
        (pa.float32(), pa.bool_()),
        (pa.float16(), pa.int64()),
        (pa.float64(), pa.float32()),
    ]
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("key", [pa.string(), pa.large_string(), pa.int16(), pa.float64()], ids=str)
def test_every_type_of_column_gives_the_same(process, layout, key):
    def table(layout, key):
        values = [[-(1 + (i + t) % 7) / 4 for t in range(3)] for i in range(8)]
        masks = [[1, i % 2, 1] for i in range(8)]
        return pa.table(
            {
                "prompt_id": pa.array([i % 3 for i in range(8)]).cast(key),
                "reward": arrow([i * 5 % 8 / 8 for i in range(8)], layout.floats),
                "response_mask": ragged(masks, layout.lists, layout.masks),
                "old_log_probs": ragged(values, layout.lists, layout.floats),
                "ref_log_probs": ragged(values[::-1], layout.lists, layout.floats),
            }
        )

    words = ["--kl-coef", "0.5", "--whiten-advantages"]
    plain = process(table(Layout(), pa.int64()), *words)
    assert process(table(layout, key), *words).select(USUAL).equals(plain.select(USUAL))


def test_a_reward_of_several_parts_is_their_sum(process):
    parts = [[reward / 2, reward / 2] for reward in rollout()["reward"].to_pylist()]
    table = rollout().set_column(1, "reward", pa.array(parts, pa.list_(pa.float32())))
    assert process(table).select(USUAL).equals(process(rollout()).select(USUAL))


def test_without_a_mask_every_token_counts_and_that_is_said(tmp_path):
    source = save(rollout().drop_columns(["response_mask"]), tmp_path / "in.parquet")
    ran = run("advantages", source, tmp_path / "out.parquet")
    assert ran.code == 0
    assert "no mask column: every token counts as a policy token" in " ".join(ran.err.split())


def test_responses_with_numbers_that_are_not_finite_can_be_left_out(process):
    rewards, old = rollout()["reward"].to_pylist(), rollout()["old_log_probs"].to_pylist()
    rewards[9], old[2][0] = math.nan, None
    table = rollout().set_column(1, "reward", pa.array(rewards, pa.float32()))
    table = table.set_column(3, "old_log_probs", pa.array(old, pa.list_(pa.float32())))
    out = process(table, "--nonfinite", "mask").to_pylist()
    assert [i for i, row in enumerate(out) if not row["sample_mask"]] == [2, 9]
    assert {x for i in (2, 9) for x in (*out[i]["advantages"], *out[i]["returns"])} == {0.0}
    assert all(math.isfinite(x) for row in out for x in row["advantages"])


def test_what_is_wrong_among_the_observations_does_not_matter(process):
    masks, old = rollout()["response_mask"].to_pylist(), rollout()["old_log_probs"].to_pylist()
    row = next(i for i, mask in enumerate(masks) if 0 in mask)
    old[row][masks[row].index(0)] = math.nan
    table = rollout().set_column(3, "old_log_probs", pa.array(old, pa.list_(pa.float32())))
    assert process(table, "--kl-coef", "1").select(USUAL) == process(
        rollout(), "--kl-coef", "1"
    ).select(USUAL)


# How it was made


@pytest.mark.parametrize("words", [[], ["--numerics", "log_ratio_clamp=inf"], ALL_ON], ids=str)
def test_a_file_says_how_it_was_made(process, words):
    metadata = process(rollout(), *words).schema.metadata
    recipe = Recipe.model_validate_json(metadata[b"rlpost.recipe"])
    summary = strict_json(metadata[b"rlpost.summary"].decode())
    assert metadata[b"rlpost.version"].decode() == "0.1.0"
    assert summary["schema_version"] == 1
    assert summary["responses"] == 12
    assert recipe.kl_coef == (0.1 if words is ALL_ON else 0.0)
    assert enrich(rollout(), recipe)[0].equals(process(rollout(), *words))


def test_the_summary_stays_json_where_nothing_can_be_measured(process):
    table = rollout()
    none = [[0] * len(mask) for mask in table["response_mask"].to_pylist()]
    table = table.set_column(2, "response_mask", pa.array(none, pa.list_(pa.uint8())))
    assert strict_json(process(table).schema.metadata[b"rlpost.summary"].decode())["warnings"]


STATEFUL = {
    "running": "--norm-mean running --norm-std running --estimator raw",
    "kl": "--kl-coef 0.3 --kl-target 0.01 --kl-horizon 5",
    "early kl": "--kl-coef 0.3 --kl-target 0.01 --kl-horizon 5 --numerics kl_credit=response",
    "both": "--norm-mean running --estimator raw --kl-coef 0.3 --kl-target 0.01 --kl-horizon 5",
}


@pytest.mark.parametrize("words", STATEFUL.values(), ids=STATEFUL)
def test_statistics_and_coefficients_go_on_where_the_last_call_ended(tmp_path, words):
    table = rollout().append_column("step", [[1] * 5 + [2] * 7])
    table = table.append_column("domain", [["math", "code", "math"] * 4])
    state = tmp_path / "state.json"
    parts = []
    for first, rows in ((0, 5), (5, 7)):
        source = save(table.slice(first, rows), tmp_path / f"{first}.parquet")
        target = tmp_path / f"out{first}.parquet"
        assert run("advantages", source, target, "--state", state, "-q", *words.split()).code == 0
        assert run("verify", target).code == 0
        parts.append(pq.read_table(target))
    once = tmp_path / "once.parquet"
    other = tmp_path / "other.json"
    source = save(table, tmp_path / "in.parquet")
    assert run("advantages", source, once, "--state", other, "-q", *words.split()).code == 0
    assert pa.concat_tables(parts).equals(pq.read_table(once))
    assert state.read_text() == other.read_text()
    found = strict_json(state.read_text())
    assert set(found["running"]) == ({"math", "code"} if "running" in words else set())
    assert ("kl_coef" in found) == ("--kl-target" in words)


def test_a_second_run_writes_the_same_bytes(tmp_path):
    source = save(foreign(), tmp_path / "in.parquet")
    for target in ("a.parquet", "b.parquet"):
        assert run("advantages", source, tmp_path / target, "-q", *ALL_ON).code == 0
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_other_tools_read_the_output(process, tmp_path):
    out = process(foreign())
    path = tmp_path / "out.parquet"
    frame = pl.read_parquet(path, columns=["prompt_id", *USUAL])
    assert (
        frame.to_arrow()
        .cast(out.select(["prompt_id", *USUAL]).schema)
        .equals(out.select(["prompt_id", *USUAL]))
    )
    with duckdb.connect() as connection:
        rows = connection.execute(f"select advantages, returns, price from '{path}'").fetchall()  # noqa: S608
        keys = connection.execute(f"select key from parquet_kv_metadata('{path}')").fetchall()  # noqa: S608
    assert rows == list(
        zip(*(out[name].to_pylist() for name in ("advantages", "returns", "price")), strict=True)
    )
    assert {(b"rlpost.recipe",), (b"origin",)} <= set(keys)
