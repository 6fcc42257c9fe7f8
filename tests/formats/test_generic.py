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
from text_dumps import converted, refusal

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


def test_batches_may_be_names_and_flags_finish_reasons(tmp_path):
    made = [{**RECORD, "iteration": text, "truncated": "length"} for text in ("12", "b")]
    table = converted(
        writers.write_lines(tmp_path / "a.jsonl", made), tmp_path / "o.parquet", "jsonl"
    )
    assert table["batch"].to_pylist() == ["12", "b"]
    assert table["finish_reason"].to_pylist() == ["length"] * 2
    table = converted(
        writers.write_lines(tmp_path / "b.jsonl", made[:1]), tmp_path / "p.parquet", "jsonl"
    )
    assert table["step"].to_pylist() == [12]


def test_a_json_array_and_messages_as_prompt(tmp_path):
    chat = [{"role": "user", "content": "ä"}]
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{**RECORD, "prompt": chat}] * 3))
    table = converted(path, tmp_path / "o.parquet", "jsonl")
    assert table.num_rows == 3
    assert json.loads(table["prompt"][2].as_py()) == chat


def test_layouts_and_blocks_of_records(tmp_path):
    record = {
        "reward": 1.0,
        "response_mask": [0, 0, 1, 1, 0],
        "old_log_probs": [9.0, 9.0, -1.0, -2.0, 9.0],
    }
    path = writers.write_lines(tmp_path / "a.jsonl", [record] * 6)
    options = ReadOptions(layout="padded", group_size=3)
    convert(path, tmp_path / "o.parquet", "jsonl", options)
    table = pq.read_table(tmp_path / "o.parquet")
    assert table["old_log_probs"].to_pylist() == [[-1.0, -2.0]] * 6
    assert table["prompt_id"].to_pylist() == ["0", "0", "0", "1", "1", "1"]
    without = writers.write_lines(tmp_path / "b.jsonl", [{"reward": 1.0}])
    with pytest.raises(UsageError, match="needs a mask"):
        convert(without, tmp_path / "p.parquet", "jsonl", options)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"score": 1.0}, "`uid` is null"),
        ({**RECORD, "uid": None}, "`uid` is null"),
        ({**RECORD, "score": "high"}, '`score` is "high"'),
        ({**RECORD, "score": [[1.0]]}, "`score` is"),
        ({**RECORD, "loss_mask": [1, 2, 1]}, "`loss_mask` has 2 at token 1"),
        ({**RECORD, "loss_mask": [1]}, "differ in length"),
        ({**RECORD, "old_log_probs": {"a": 1}}, "`old_log_probs` is an object"),
        ({**RECORD, "truncated": 3}, "`truncated` is 3"),
        ({**RECORD, "iteration": None}, "`iteration` is null"),
        ([1, 2], "a JSON object is needed"),
    ],
)
def test_a_bad_record_of_ones_own_is_named(record, said, tmp_path):
    path = writers.write_lines(tmp_path / "a.jsonl", [RECORD, record])
    told = refusal(path, tmp_path, "jsonl")
    assert "a.jsonl, line 2" in told
    assert said in told


def test_text_that_utf8_has_not_is_refused_with_its_line(tmp_path):
    verl = {"input": "\ud83d", "output": "a", "score": 1.0, "step": 1}
    path = writers.write_lines(tmp_path / "1.jsonl", [verl])
    assert "line 1: `prompt` is" in refusal(path, tmp_path, "verl")


def test_a_wrong_map_is_answered_with_what_there_is(tmp_path):
    path = writers.write_lines(tmp_path / "a.jsonl", [RECORD])
    with pytest.raises(DataError, match=r"no field 'scor'; .*did you mean score\?"):
        convert(path, tmp_path / "o.parquet", "jsonl", ReadOptions(map={"reward": "scor"}))
    with pytest.raises(UsageError, match="no role 'rewrd'; did you mean reward"):
        convert(path, tmp_path / "o.parquet", "jsonl", ReadOptions(map={"rewrd": "score"}))
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


def test_parquet_layouts_and_blocks(tmp_path):
    table = pa.table(
        {
            "reward": [1.0] * 4,
            "mask": [[0, 1, 1, 0]] * 4,
            "values": [[9.0, 1.0, 2.0, 9.0]] * 4,
            "truncated": pa.array([0, 1, 0, None], pa.int64()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    options = ReadOptions(map={"mask": "mask"}, layout="padded", group_size=2)
    convert(tmp_path / "a.parquet", tmp_path / "o.parquet", "parquet", options)
    got = pq.read_table(tmp_path / "o.parquet")
    assert got["values"].to_pylist() == [[1.0, 2.0]] * 4
    assert got["response_mask"].to_pylist() == [[1, 1]] * 4
    assert got["prompt_id"].to_pylist() == ["0", "0", "1", "1"]
    assert got["truncated"].to_pylist() == [False, True, False, None]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"old_log_probs": [[[1.0]], [[2.0]]]}, "`old_log_probs` is a list of lists"),
        ({"old_log_probs": [[1.0], [2.0, 3.0]]}, "row 1: its token lists differ in length"),
        ({"response_mask": [[1], [3]]}, "row 1: `response_mask` has 3"),
        ({"reward": ["a", "b"]}, 'row 0: `reward` is "a"'),
        ({"prompt_id": ["a", None]}, "row 1: `prompt_id` is null"),
        ({"finish_reason": [[1], [2]]}, "row 0: `finish_reason` is a list of 1"),
        ({"response_length": ["a", "b"]}, 'row 0: `response_length` is "a"'),
    ],
)
def test_a_bad_parquet_column_is_named(column, said, tmp_path):
    good = {"prompt_id": ["a", "a"], "reward": [0.0, 1.0], "response_mask": [[1], [1]]}
    pq.write_table(pa.table(good | column), tmp_path / "a.parquet")
    told = refusal(tmp_path / "a.parquet", tmp_path, "parquet")
    assert "a.parquet" in told
    assert said in told


def test_a_path_that_leads_nowhere_is_named(tmp_path):
    table = pa.table({"reward": [1.0], "info": [{"a": 1.0}]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"no field 'info\.b'"):
        convert(
            tmp_path / "a.parquet", tmp_path / "o.parquet", "parquet",
            ReadOptions(map={"difficulty": "info.b"}),
        )  # fmt: skip


@given(made=some_records())
def test_random_tables_go_through_parquet_and_back(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    plain = [{name: x for name, x in one.items() if name not in ("x", "y", "z")} for one in made]
    pq.write_table(pa.Table.from_pylist(plain), folder / "a.parquet", row_group_size=3)
    table = converted(folder / "a.parquet", folder / "o.parquet", "parquet")
    assert table.to_pylist() == [
        {name: record[name] for name in table.column_names} for record in plain
    ]
