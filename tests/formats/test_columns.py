"""Fields of a dump as canonical columns: types, roles, keys, nulls; errors name the row."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlpost.errors import DataError
from rlpost.formats.base import Format, ReadOptions
from rlpost.formats.columns import Canonical
from rlpost.formats.convert import convert
from rlpost.formats.rows import gathered, packed, tables, values_of

LAYOUT = Format("", "", "", (), bool, {"reward": "reward"})


def table_of(rows):
    """The columns of rows that a layout's code makes."""
    canonical = Canonical("", LAYOUT, ReadOptions())
    parts = tables(((f"row {i}", values) for i, values in enumerate(rows)), "")
    return pa.Table.from_batches(
        [canonical.batch(part, {name: name for name in part.columns}, {}) for part in parts]
    )


def converted(folder, rows, kind="jsonl", **options):
    """The table of rows that are stored as JSON lines or Parquet, and the summary."""
    path = folder / f"in.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ReadOptions(**options)
    summary = convert(path, folder / "o.parquet", kind, given, overwrite=True)
    return pq.read_table(folder / "o.parquet"), summary


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None], pa.int64()),
        ([1, 0.5], pa.float64()),
        ([True, None], pa.bool_()),
        (["a", None, ""], pa.string()),
        ([None, None], pa.null()),
        ([True, 1], pa.large_binary()),
        ([2**63, 1], pa.large_binary()),
        ([{"a": 1}, None], pa.large_binary()),
        ([[[1]], [2]], pa.large_binary()),
        ([["a", 1], None], pa.large_binary()),
        ([[1, 0], None, []], pa.list_(pa.uint8())),
        ([[1, 300], [-(2**40)]], pa.list_(pa.int64())),
        ([[0.5, 1], [1]], pa.list_(pa.float64())),
        ([[1, None], [0.5]], pa.list_(pa.float64())),
        ([["a", None], []], pa.list_(pa.string())),
        ([[], None], pa.list_(pa.null())),
    ],
)
def test_values_are_gathered_in_the_type_of_all(values, kind):
    column = gathered([packed(value) for value in values])
    assert column.type == kind
    assert values_of(column) == values


def test_vectors_keep_their_type():
    column = gathered([np.array([1.5], np.float32), None, np.zeros(0, np.float32)])
    assert (column.type, column.to_pylist()) == (pa.list_(pa.float32()), [[1.5], None, []])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"response_mask": [1, 2]}], "row 0: `response_mask` has 2 at token 1"),
        ([{"response_mask": [1], "values": [1.0, 2.0]}], "row 0: its token lists differ in length"),
        (
            [{"response_mask": [1], "values": [1.0]}, {"response_mask": [1]}],
            "row 1: lacks values, which earlier records have",
        ),
        (
            [{"response_mask": [1]}, {"response_mask": [1], "values": [1.0]}],
            "row 1: has values, which earlier records lack",
        ),
        ([{"values": ["1.0"]}], 'row 0: `values` is a list with "1.0"'),
        ([{"values": [1.0]}, {"values": [[1.0], [1.0]]}], "row 1: `values` is a list of lists"),
        ([{"values": 1.0}], "row 0: `values` is 1.0"),
        ([{"response_token_ids": [1.5]}], "row 0: `response_token_ids` has 1.5 at token 0"),
        ([{"response_token_ids": [2**40]}], "row 0: `response_token_ids` has 1099511627776"),
        (
            [{"response_token_ids": [2**64]}],
            "row 0: `response_token_ids` has 1.8446744073709552e+19",
        ),
        ([{"reward": {"a": 1}}], "row 0: `reward` is an object with the fields a; a number"),
        ([{"response": "a"}, {"response": "\ud83d"}], "row 1: `response` is"),
    ],
)
def test_the_error_for_a_bad_row_names_it(rows, message):
    with pytest.raises(DataError, match="row ") as raised:
        table_of(rows)
    assert message in str(raised.value)


def test_rows_without_tokens_have_empty_lists_and_no_nulls():
    table = table_of([{"response_mask": []}, {"response_mask": [1], "values": [0.5]}, {}])
    assert table["values"].to_pylist() == [[], [0.5], []]
    assert table["response_mask"].null_count == 0


def test_bools_among_numbers_are_numbers():
    table = table_of([{"response_mask": [True, 0], "values": [0.5, True]}, {"response_mask": None}])
    assert table["response_mask"].to_pylist() == [[1, 0], []]
    assert table["values"].to_pylist() == [[0.5, 1.0], []]


def test_null_among_numbers_is_nan():
    (row,) = table_of([{"values": [1.0, None]}])["values"].to_pylist()
    assert row[0] == 1.0
    assert np.isnan(row[1])


KINDS = ("jsonl", "parquet")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("role", "values", "column", "read"),
    [
        ("group", ["3", "4"], "prompt_id", ["3", "4"]),
        ("group", [3, 2**62 + 1], "prompt_id", ["3", str(2**62 + 1)]),
        ("group", [3.0, 4.0], "prompt_id", ["3", "4"]),
        ("reward", [1, None], "reward", [1.0, None]),
        ("reward", [True, False], "reward", [1.0, 0.0]),
        ("reward", [[0.25, 0.5], []], "reward", [0.75, 0.0]),
        ("failure", [None, "Timeout"], "failure", [None, "Timeout"]),
        ("failure", [None, {"type": "Timeout", "message": "x"}], "failure", [None, "Timeout"]),
        ("failure", [False, True], "failure", [False, True]),
        ("hack", [1, 0], "hack", [True, False]),
        ("truncated", [None, 1], "truncated", [None, True]),
        ("truncated", ["length", None], "finish_reason", ["length", None]),
        ("truncated", [{"type": "length"}, None], "finish_reason", ["length", None]),
        ("batch", ["12", "-7"], "step", [12, -7]),
        ("batch", ["12", "b"], "batch", ["12", "b"]),
        ("rollout", ["a", None], "rollout_id", ["a", None]),
        ("prompt", [[{"role": "a"}], None], "prompt", ['[{"role": "a"}]', None]),
        ("turn", [0, 1], "turn", [0.0, 1.0]),
    ],
)
def test_every_role_has_a_type(kind, role, values, column, read, tmp_path):
    rows = [{"x": {"y": value}, "reward": 1.0} for value in values]
    for options in ({"map": {role: "x.y"}}, {"map": {role: "z"}}):
        rows = [{**row, "z": value} for row, value in zip(rows, values, strict=True)]
        table, _ = converted(tmp_path, rows, kind, **options)
        assert table[column].to_pylist() == read


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_may_be_any_json_value(kind, tmp_path):
    chats = [[{"role": "user", "content": x}] for x in "aab"]
    table, _ = converted(tmp_path, [{"chat": x, "reward": 0.0} for x in chats], kind,
                         map={"group": "chat"})  # fmt: skip
    first, second, third = table["prompt_id"].to_pylist()
    assert first == second != third
    mixed = [{"g": x, "reward": 0.0} for x in (3, "3", 3.0, {"a": 1, "b": 2}, {"b": 2, "a": 1})]
    if kind == "jsonl":
        keys = converted(tmp_path, mixed, map={"group": "g"})[0]["prompt_id"].to_pylist()
        assert keys[:3] == ["3"] * 3
        assert keys[3] == keys[4] != "3"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("role", "values", "message"),
    [
        ("reward", [1.0, "high"], '`z` is "high"; a number'),
        ("reward", [[1.0], [[1.0]]], "`z` is a list of lists"),
        ("group", ["a", None], "`z` is null"),
        ("group", [1.0, 0.5], "`z` is 0.5"),
        ("group", [1.0, 2.0**62], "`z` is 4.611686018427388e+18"),
        ("truncated", [0, 3], "`z` is 3; a bool or a finish reason"),
        ("batch", [1, None], "`z` is null"),
        ("batch", [1, 10**30], "`z` is 1000000000000000000000000000000; int64"),
        ("mask", [[1], [2]], "`z` has 2 at token 0"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_row(kind, role, values, message, tmp_path):
    try:
        pa.array(values)
    except (pa.ArrowInvalid, OverflowError):
        kind = "jsonl"  # a column of Parquet has one type
    with pytest.raises(DataError, match=r"in\.") as raised:
        converted(tmp_path, [{"z": value} for value in values], kind, map={role: "z"})
    text = str(raised.value)
    assert f"in.{kind}, {'row 1' if kind == 'parquet' else 'line 2'}: {message}" in text


def test_a_number_may_be_a_list_in_one_row_and_a_bool_in_another(tmp_path):
    rows = [{"z": value} for value in ([0.5, 1], False, True, None)]
    table, _ = converted(tmp_path, rows, map={"reward": "z"})
    assert table["reward"].to_pylist() == [1.5, 0.0, 1.0, None]


def test_unsigned_ids_are_not_rounded(tmp_path):
    ids = pa.array([2**63 + 11, 7], pa.uint64())
    pq.write_table(pa.table({"uid": ids, "reward": [1.0, 0.0]}), tmp_path / "a.parquet")
    convert(tmp_path / "a.parquet", tmp_path / "o.parquet", "parquet")
    keys = pq.read_table(tmp_path / "o.parquet")["prompt_id"].to_pylist()
    assert keys == [str(2**63 + 11), "7"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_a_group_of_responses_is_not_summed(kind, tmp_path):
    rows = [{"seed": s, "tokens": [[1, 2], [3, 4]], "scores": [1.0, 0.0]} for s in (0, 1)]
    with pytest.raises(DataError, match=r"`scores` is a list of 2.*--rows scores"):
        converted(tmp_path, rows, kind, map={"group": "seed"})
    texts = [{"seed": 0, "completions": ["a", "b"], "scores": [1.0, 0.0]}]
    with pytest.raises(DataError, match="2 texts"):
        converted(tmp_path, texts, kind, map={"group": "seed"})
    table, _ = converted(tmp_path, [{"seed": 0, "tags": ["a", "b"], "scores": [1.0, 0.5]}], kind)
    assert table["reward"].to_pylist() == [1.5]


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_of_a_role_that_is_mapped_to_none_is_left_out_and_counted(kind, tmp_path):
    rows = [{"prompt_id": "a", "reward": 1.0, "loss_mask": [1, 0], "x": 1}] * 2
    table, summary = converted(tmp_path, rows, kind, map={"mask": "none"})
    assert table.column_names == ["prompt_id", "reward", "x"]
    assert summary["warnings"] == [
        "2 rows without their `loss_mask`, since its role is mapped to none"
    ]


def test_a_field_that_no_record_has_is_named_and_a_null_one_is_null(tmp_path):
    rows = [{"uid": "a", "ok": None}] * 2
    assert converted(tmp_path, rows, map={"reward": "ok"})[0].num_rows == 2
    for role in ("reward", "difficulty"):
        with pytest.raises(DataError, match="no field 'no'; fields: ok, uid"):
            converted(tmp_path, rows, map={role: "no"})


def test_names_that_are_taken_are_changed_once(tmp_path, monkeypatch):
    monkeypatch.setattr("rlpost.formats.rows.MOST_ROWS", 1)
    record = {"input": "a", "output": "b", "score": 1.0, "step": 1, "reward": 3, "dumped_reward": 4}
    path = tmp_path / "1.jsonl"
    path.write_text(2 * (json.dumps(record) + "\n"))
    convert(path, tmp_path / "o.parquet", "verl")
    table = pq.read_table(tmp_path / "o.parquet")
    assert table["dumped_reward"].to_pylist() == [3.0, 3.0]
    assert table["dumped_reward_"].to_pylist() == [4.0, 4.0]
