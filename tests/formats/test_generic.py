"""Anybody's JSONL and Parquet: aliases, --map, layouts, types, and errors that name the record."""

from __future__ import annotations

import json
import math
from typing import Any

import format_writers_text as writers
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_dumps import converted

from rlpost.errors import DataError, UsageError
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert

RECORD = {
    "uid": 7,
    "score": [0.25, 0.5],
    "loss_mask": [1, 0, 1],
    "old_log_probs": [-0.5, -0.25, -1.0],
    "iteration": 3,
    "truncated": False,
    "note": "kept",
}


def test_aliases_are_found_lists_summed_and_the_rest_kept(tmp_path):
    path = writers.write_lines(tmp_path / "a.jsonl", [RECORD, {**RECORD, "truncated": True}])
    table = converted(path, tmp_path / "o.parquet", "jsonl")
    assert table.to_pylist()[0] == {
        "prompt_id": "7", "reward": 0.75, "response_mask": [1, 0, 1],
        "old_log_probs": [-0.5, -0.25, -1.0], "step": 3, "truncated": False, "note": "kept",
    }  # fmt: skip
    assert table["truncated"].to_pylist() == [False, True]


def test_a_field_serves_two_roles_and_an_optional_one_may_be_missing(tmp_path):
    bare = {name: value for name, value in RECORD.items() if name != "truncated"}
    path = writers.write_lines(tmp_path / "a.jsonl", [RECORD, bare])
    table = converted(path, tmp_path / "o.parquet", "jsonl", difficulty="score")
    assert table["difficulty"].to_pylist() == table["reward"].to_pylist() == [0.75, 0.75]
    assert table["truncated"].to_pylist() == [False, None]


@pytest.mark.parametrize(
    ("values", "kind", "read"),
    [
        ([1, 2], pa.int64(), [1, 2]),
        ([1, 0.5, None], pa.float64(), [1.0, 0.5, None]),
        ([True, None], pa.bool_(), [True, None]),
        ([True, 1], pa.string(), ["true", "1"]),
        (["a", 1, {"b": None}], pa.string(), ["a", "1", '{"b": null}']),
        ([2**63, 1], pa.string(), ["9223372036854775808", "1"]),
        ([[1], [0.5, None]], pa.list_(pa.float64()), [[1.0], [0.5, None]]),
        ([[], ["a"]], pa.list_(pa.string()), [[], ["a"]]),
        ([["a"], [1]], pa.string(), ['["a"]', "[1]"]),
        ([["a", 1]], pa.string(), ['["a", 1]']),
        ([[2**63, None]], pa.string(), ["[9223372036854775808, null]"]),
        ([[[1]], [2]], pa.string(), ["[[1]]", "[2]"]),
        ([[1], 2], pa.string(), ["[1]", "2"]),
    ],
)
def test_a_field_has_one_type_that_holds_all_its_values(values, kind, read, tmp_path):
    path = writers.write_lines(tmp_path / "a.jsonl", [{**RECORD, "x": value} for value in values])
    table = converted(path, tmp_path / "o.parquet", "jsonl")
    assert table.schema.field("x").type == kind
    assert table["x"].to_pylist() == read


def test_dotted_paths_lead_into_objects(tmp_path):
    record = {"task": {"id": "a", "level": 2}, "out": {"deep": {"lp": [-1.0, -2.0]}, "score": 1},
              "a.b": 0.5}  # fmt: skip
    path = writers.write_lines(tmp_path / "a.jsonl", [record, record])
    chosen = {"group": "task.id", "reward": "out.score", "infer_log_probs": "out.deep.lp",
              "difficulty": "a.b"}  # fmt: skip
    table = converted(path, tmp_path / "o.parquet", "jsonl", **chosen)
    row = table.to_pylist()[1]
    assert row["prompt_id"] == "a"
    assert row["reward"] == 1.0
    assert row["infer_log_probs"] == [-1.0, -2.0]
    assert row["difficulty"] == 0.5
    assert json.loads(row["task"]) == {"level": 2}
    assert json.loads(row["out"]) == {"deep": {}}


def test_the_map_beats_names_and_none_leaves_out(tmp_path):
    record = {**RECORD, "reward": 1.0, "mine": 2.0}
    path = writers.write_lines(tmp_path / "a.jsonl", [record])
    table = converted(
        path, tmp_path / "o.parquet", "jsonl", reward="mine", old_log_probs="none", truncated="none"
    )
    assert table["reward"].to_pylist() == [2.0]
    assert not {"old_log_probs", "truncated", "mine"} & {*table.column_names}


def test_a_wrong_map_is_answered_with_what_there_is(tmp_path):
    path = writers.write_lines(tmp_path / "a.jsonl", [RECORD])
    with pytest.raises(DataError, match=r"no field 'scor'; .*did you mean score\?"):
        convert(path, tmp_path / "o.parquet", "jsonl", ReadOptions(map={"reward": "scor"}))
    with pytest.raises(UsageError, match="no role 'rewrd'; did you mean reward"):
        convert(path, tmp_path / "o.parquet", "jsonl", ReadOptions(map={"rewrd": "score"}))
    with pytest.raises(UsageError, match="needs a mask"):
        convert(path, tmp_path / "o.parquet", "jsonl", ReadOptions({"mask": "none"}, "padded"))
    nothing = writers.write_lines(tmp_path / "b.jsonl", [{"x": 1}])
    with pytest.raises(UsageError, match=r"no field has a known name\nfields .*: x \(integer, 1\)"):
        convert(nothing, tmp_path / "o.parquet", "jsonl")


SINGLE = st.floats(-100, 100, width=32)


EXTRA = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | SINGLE | st.text(max_size=5)


@st.composite
def some_records(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Records with a mask, some of the lists, and fields of any kind that may be missing."""
    lists = draw(st.sets(st.sampled_from(["old_log_probs", "values", "token_rewards"])))
    made = []
    for _ in range(draw(st.integers(1, 8))):
        length = draw(st.integers(1, 5))
        numbers = st.lists(SINGLE, min_size=length, max_size=length)
        made.append(
            {
                "prompt_id": draw(st.text(max_size=3)),
                "reward": draw(SINGLE),
                "step": draw(st.integers(-5, 5)),
                "response_mask": draw(
                    st.lists(st.integers(0, 1), min_size=length, max_size=length)
                ),
                **{name: draw(numbers) for name in sorted(lists)},
                **draw(st.dictionaries(st.sampled_from(["x", "y", "z"]), EXTRA)),
            }
        )
    return made


@given(made=some_records())
def test_random_records_go_through_jsonl_and_back(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    path = writers.write_lines(folder / "a.jsonl", made)
    table = converted(path, folder / "o.parquet")  # found by its contents, too
    for record, row in zip(made, table.to_pylist(), strict=True):
        for name, value in record.items():
            if name not in ("x", "y", "z"):
                assert row[name] == value
        for name in ("x", "y", "z"):
            value, got = record.get(name), row.get(name)
            kind = table.schema.field(name).type if name in table.column_names else None
            if kind == pa.string() and value is not None and not isinstance(value, str):
                got = json.loads(got)
            assert got == value


def test_parquet_columns_are_found_nested_and_renamed(tmp_path):
    table = pa.table(
        {
            "grp": pa.array([1, 1, 2], pa.int16()),
            "parts": pa.array([[0.25, 0.5], [], [1.0]], pa.large_list(pa.float32())),
            "commit": pa.array(
                [{"rollout": {"lp": [-1.0, -2.0]}, "mask": [True, False]}] * 3,
                pa.struct(
                    {
                        "rollout": pa.struct({"lp": pa.list_(pa.float64())}),
                        "mask": pa.list_(pa.bool_()),
                    }
                ),
            ),
            "stop_reason": pa.array(["length", None, "stop"]).dictionary_encode(),
            "iteration": pa.array([1, 1, 2], pa.uint8()),
            "empty": pa.nulls(3),
            "kept": pa.array([1, None, 3], pa.int8()),
            "difficulty": pa.array([0.5, None, math.nan]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    chosen = {"group": "grp", "reward": "parts", "infer_log_probs": "commit.rollout.lp",
              "mask": "commit.mask"}  # fmt: skip
    got = converted(tmp_path / "a.parquet", tmp_path / "o.parquet", "parquet", **chosen)
    assert got["prompt_id"].to_pylist() == ["1", "1", "2"]
    assert got["reward"].to_pylist() == [0.75, 0.0, 1.0]
    assert got["infer_log_probs"].to_pylist() == [[-1.0, -2.0]] * 3
    assert got["response_mask"].to_pylist() == [[1, 0]] * 3
    assert got["finish_reason"].to_pylist() == ["length", None, "stop"]
    assert got["step"].to_pylist() == [1, 1, 2]
    assert got["kept"].to_pylist() == [1, None, 3]
    assert got["difficulty"].to_pylist()[:2] == [0.5, None]
    assert math.isnan(got["difficulty"][2].as_py())
    assert not {"empty", "grp", "parts"} & {*got.column_names}


def test_a_path_that_leads_nowhere_is_named(tmp_path):
    table = pa.table({"reward": [1.0], "info": [{"a": 1.0}]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"no field 'info\.b'"):
        convert(
            tmp_path / "a.parquet", tmp_path / "o.parquet", "parquet",
            ReadOptions(map={"difficulty": "info.b"}),
        )  # fmt: skip
