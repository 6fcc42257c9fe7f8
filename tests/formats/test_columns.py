"""Anybody's JSON and Parquet: fields as canonical columns, their types, names, and errors."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpost.errors import DataError, UsageError
from rlpost.formats.base import ReadOptions
from rlpost.formats.convert import convert

KINDS = ("jsonl", "parquet")


def converted(folder, rows, kind="jsonl", source=None, **options):
    """The table of rows that are stored as JSON lines or Parquet, and the summary."""
    path = folder / f"in.{kind}"
    if kind == "parquet":
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
        pq.write_table(table, path, row_group_size=2)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = convert(path, folder / "o.parquet", source or kind, ReadOptions(**options),
                      overwrite=True)  # fmt: skip
    return pq.read_table(folder / "o.parquet"), summary


@pytest.mark.parametrize(
    ("values", "kind", "read"),
    [
        ([1, 2], pa.int64(), [1, 2]),
        ([1, 0.5, None], pa.float64(), [1.0, 0.5, None]),
        ([True, 1], pa.string(), ["true", "1"]),
        (["a", 1, {"b": None}], pa.string(), ["a", "1", '{"b": null}']),
        ([2**63, 1], pa.string(), ["9223372036854775808", "1"]),
        ([[1], [0.5, None]], pa.list_(pa.float64()), [[1.0], [0.5, None]]),
        ([["a"], [1]], pa.string(), ['["a"]', "[1]"]),
        ([[2**63, None]], pa.string(), ["[9223372036854775808, null]"]),
        ([[[1]], [2]], pa.string(), ["[[1]]", "[2]"]),
    ],
)
def test_a_field_has_one_type_that_holds_all_its_values(values, kind, read, tmp_path):
    table, _ = converted(tmp_path, [{"uid": 7, "reward": 1.0, "x": value} for value in values])
    assert table.schema.field("x").type == kind
    assert table["x"].to_pylist() == read


MASKS, IDS = [[1], [1]], "response_token_ids"


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"response_mask": [[1], [1, 2]]}, "`response_mask` has 2 at token 1"),
        ({"response_mask": MASKS, "values": [[1.0], [1.0, 2.0]]}, "`values` has 2 entries and"),
        ({"response_mask": MASKS, "values": [[1.0], None]}, "lacks values, which earlier records"),
        ({"response_mask": MASKS, "values": [None, [1.0]]}, "has values, which earlier records"),
        ({"values": [[1.0], ["1.0"]]}, '`values` is a list with "1.0"'),
        ({"values": [[1.0], [[1.0], [1.0]]]}, "`values` is a list of lists"),
        ({"values": [[1.0], 1.0]}, "`values` is 1.0"),
        ({"response_mask": MASKS, IDS: [[1], [1.5]]}, f"`{IDS}` has 1.5 at token 0"),
        ({"response_mask": MASKS, IDS: [[1], [2**40]]}, f"`{IDS}` has 1099511627776"),
        ({"response_mask": MASKS, IDS: [[1], [2**64]]}, f"`{IDS}` has 1.8446744073709552e"),
        ({"reward": [1.0, {"a": 1}]}, "`reward` is an object with the fields a; a number"),
        ({"response": ["a", "\ud83d"]}, "`response` is"),
    ],
)  # fmt: skip
def test_the_error_for_a_bad_row_names_it(lists, message, tmp_path):
    rows = [{"uid": "a", "reward": 1.0} | {name: values[row] for name, values in lists.items()
             if values[row] is not None} for row in (0, 1)]  # fmt: skip
    chosen = {IDS: IDS} if IDS in lists else {}
    with pytest.raises(DataError, match=r"in\.jsonl, line 2: ") as raised:
        converted(tmp_path, rows, map=chosen)
    assert message in str(raised.value)


def test_lists_have_numbers_and_no_nulls(tmp_path):
    rows = [{"response_mask": []}, {"response_mask": [True, 0], "values": [0.5, True]},
            {"response_mask": [1, 1], "values": [1.0, None]}, {}]  # fmt: skip
    table, _ = converted(tmp_path, [{"uid": "a", "reward": 1.0, "response_length": 0} | row
                                    for row in rows], map={"response_length": "none"})  # fmt: skip
    assert table["response_mask"].to_pylist()[:3] == [[], [1, 0], [1, 1]]
    assert table["values"].to_pylist()[:2] == [[], [0.5, 1.0]]
    assert math.isnan(table["values"][2].as_py()[1])


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
    rows = [{"x": {"y": value}, "z": value, "reward": 1.0} for value in values]
    for path in ("x.y", "z"):
        table, _ = converted(tmp_path, rows, kind, map={role: path})
        assert table[column].to_pylist() == read


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("role", "values", "message"),
    [
        ("reward", [1.0, "high"], '`z` is "high"; a number'),
        ("reward", [[1.0], [[1.0]]], "`z` is a list of lists"),
        ("group", ["a", None], "`z` is null"),
        ("group", [1.0, 0.5], "`z` is 0.5"),
        ("group", [1.0, 2.0**62], "`z` is 4.611686018427388e+18"),
        ("truncated", [0, 3], "`z` is 3; a bool or a reason"),
        ("batch", [1, None], "`z` is null"),
        ("batch", [1, 10**30], '`z` is "1000000000000000000000000000000"; int64'),
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


def test_values_of_json_may_differ_from_row_to_row(tmp_path):
    keys = (3, "3", 3.0, {"a": 1, "b": 2}, {"b": 2, "a": 1}, [{"role": "user"}], 2**70)
    rewards = ([0.5, 1], False, True, None, 1, 0, 0)
    rows = [{"g": key, "z": reward} for key, reward in zip(keys, rewards, strict=True)]
    table, _ = converted(tmp_path, rows, map={"group": "g", "reward": "z"})
    groups = table["prompt_id"].to_pylist()
    assert groups[:3] == ["3"] * 3
    assert len({*groups[2:]}) == 4
    assert (groups[3], groups[6]) == (groups[4], str(2**70))
    assert table["reward"].to_pylist() == [1.5, 0.0, 1.0, None, 1.0, 0.0, 0.0]


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


RECORD = {
    "uid": 7, "score": [0.25, 0.5], "loss_mask": [1, 0, 1], "old_log_probs": [-0.5, -0.25, -1.0],
    "iteration": 3, "truncated": False, "note": "kept", "mine": 2.0, "a.b": 0.5,
    "task": {"id": "a", "level": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_found_by_name_alias_and_map(kind, tmp_path):
    found = {
        "prompt_id": "7", "reward": 0.75, "response_mask": [1, 0, 1],
        "old_log_probs": [-0.5, -0.25, -1.0], "step": 3, "truncated": False, "note": "kept",
        "mine": 2.0, "a.b": 0.5,
    }  # fmt: skip
    for chosen, changes, gone in (
        ({}, {}, set()),
        ({"reward": "mine"}, {"reward": 2.0, "score": [0.25, 0.5]}, {"mine"}),
        ({"difficulty": "score"}, {"difficulty": 0.75}, set()),
        ({"group": "task.id", "difficulty": "a.b"}, {"prompt_id": "a", "difficulty": 0.5, "uid": 7},
         {"a.b"}),
        ({"old_log_probs": "none", "truncated": "none"}, {}, {"old_log_probs", "truncated"}),
    ):  # fmt: skip
        table, summary = converted(tmp_path, [RECORD, RECORD], kind, map=chosen)
        row = table.to_pylist()[1]
        row.pop("task")
        assert row == {x: y for x, y in {**found, **changes}.items() if x not in gone}
        sources = {role: path for role, path in chosen.items() if path != "none"}
        assert [*sources.values()] == [
            summary["sources"][{"group": "prompt_id"}.get(role, role)] for role in sources
        ]
    bare = {name: value for name, value in RECORD.items() if name != "truncated"}
    table, _ = converted(tmp_path, [RECORD, bare], kind)
    assert table["truncated"].to_pylist() == [False, None]


def test_a_field_of_an_object_that_has_a_role_is_not_kept_twice(tmp_path):
    record = {"out": {"deep": {"lp": [-1.0, -2.0]}, "score": 1}, "task": {"id": "a", "level": 2}}
    chosen = {"group": "task.id", "reward": "out.score", "infer_log_probs": "out.deep.lp"}
    ((row, _),) = [converted(tmp_path, [record], map=chosen)[0].to_pylist() + [None]]  # noqa: RUF005
    assert (row["prompt_id"], row["reward"], row["infer_log_probs"]) == ("a", 1.0, [-1.0, -2.0])
    assert (json.loads(row["task"]), json.loads(row["out"])) == ({"level": 2}, {"deep": {}})


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_of_a_role_that_is_mapped_to_none_is_left_out_and_counted(kind, tmp_path):
    rows = [{"prompt_id": "a", "reward": 1.0, "loss_mask": [1, 0], "x": 1}] * 2
    table, summary = converted(tmp_path, rows, kind, map={"mask": "none"})
    assert table.column_names == ["prompt_id", "reward", "x"]
    assert summary["warnings"] == [
        "2 rows without their `loss_mask`, since its role is mapped to none"
    ]


def test_a_wrong_map_is_answered_with_what_there_is(tmp_path):
    rows = [{"uid": "a", "score": 1.0, "info": {"a": 1.0}}] * 2
    for error, chosen, told in (
        (DataError, {"reward": "scor"}, r"no field 'scor'; .*did you mean score\?"),
        (DataError, {"difficulty": "no"}, "no field 'no'; fields: info, score, uid"),
        (DataError, {"difficulty": "info.b"}, r"no field 'info\.b'"),
        (UsageError, {"rewrd": "score"}, "no role 'rewrd'; did you mean reward"),
    ):
        for kind in KINDS:
            with pytest.raises(error, match=told):
                converted(tmp_path, rows, kind, map=chosen)
    null = [{**row, "score": None} for row in rows]
    assert converted(tmp_path, null, map={"reward": "score"})[0].num_rows == 2
    with pytest.raises(UsageError, match=r"no field has a known name\nfields .*: x \(integer, 1\)"):
        converted(tmp_path, [{"x": 1}])
    with pytest.raises(DataError, match=r"fields: none$"):
        converted(tmp_path, [{}])


def test_names_that_are_taken_are_changed_once(tmp_path, monkeypatch):
    monkeypatch.setattr("rlpost.formats.rows.MOST_ROWS", 1)
    record = {"input": "a", "output": "b", "score": 1.0, "step": 1, "reward": 3, "dumped_reward": 4}
    table, _ = converted(tmp_path, [record] * 2, source="verl")
    assert table["dumped_reward"].to_pylist() == [3.0, 3.0]
    assert table["dumped_reward_"].to_pylist() == [4.0, 4.0]


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
        bits = st.lists(st.integers(0, 1), min_size=length, max_size=length)
        made.append({
            "prompt_id": draw(st.text(max_size=3)), "reward": draw(SINGLE),
            "step": draw(st.integers(-5, 5)), "response_mask": draw(bits),
            **{name: draw(numbers) for name in sorted(lists)},
            **draw(st.dictionaries(st.sampled_from(["x", "y", "z"]), EXTRA)),
        })  # fmt: skip
    return made


@given(made=some_records())
def test_random_records_go_through_jsonl_and_back(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    table, _ = converted(folder, made)
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


def test_columns_of_parquet_keep_their_values_whatever_their_type(tmp_path):
    table = pa.table(
        {
            "grp": pa.array([2**63 + 11, 1, 2], pa.uint64()),
            "parts": pa.array([[0.25, 0.5], [], [1.0]], pa.large_list(pa.float32())),
            "commit": [{"rollout": {"lp": [-1.0, -2.0]}, "mask": [True, False]}] * 3,
            "stop_reason": pa.array(["length", None, "stop"]).dictionary_encode(),
            "iteration": pa.array([1, 1, 2], pa.uint8()),
            "empty": pa.nulls(3),
            "kept": pa.array([1, None, 3], pa.int8()),
            "difficulty": pa.array([0.5, None, math.nan]),
        }
    )
    chosen = {"group": "grp", "reward": "parts", "infer_log_probs": "commit.rollout.lp",
              "mask": "commit.mask"}  # fmt: skip
    rows = converted(tmp_path, table, "parquet", map=chosen)[0].to_pydict()
    expected = {
        "prompt_id": [str(2**63 + 11), "1", "2"], "reward": [0.75, 0.0, 1.0],
        "infer_log_probs": [[-1.0, -2.0]] * 3, "response_mask": [[1, 0]] * 3,
        "finish_reason": ["length", None, "stop"], "step": [1, 1, 2], "kept": [1, None, 3],
    }  # fmt: skip
    assert {name: rows[name] for name in expected} == expected
    assert rows["difficulty"][:2] == [0.5, None]
    assert math.isnan(rows["difficulty"][2])
    assert not {"empty", "grp", "parts"} & rows.keys()
