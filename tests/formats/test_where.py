"""Conditions on rows: names, rows of Parquet and dumps that match, groups that are cut, errors."""

from __future__ import annotations

import json
import math

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_of_episodes import episode, write_stream

import rlpost
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError, UsageError
from rlpost.formats.where import Where, of_steps
from rlpost.interface.inputs import open_inputs

NUMBER = st.sampled_from([-1, 0, 0.5, 1, 2, 1e-3])
FLOAT = st.sampled_from([None, -1.0, 0.0, -0.0, 0.5, 1.0, 2.0, math.nan, 1e-3])
ROW = st.fixed_dictionaries(
    {
        "reward": FLOAT,
        "small": FLOAT,
        "step": st.sampled_from([None, -1, 0, 1, 2]),
        "domain": st.sampled_from([None, "", "a", "b'", "c"]),
        "ok": st.sampled_from([None, True, False]),
        "prompt_id": st.sampled_from([None, "g", "h"]),
    }
)
TYPES = pa.schema(
    {
        "reward": pa.float64(), "small": pa.float32(), "step": pa.uint64(),
        "domain": pa.dictionary(pa.int32(), pa.string()), "ok": pa.bool_(),
        "prompt_id": pa.string(), "tokens": pa.list_(pa.int32()),
    }
)  # fmt: skip
SIGN = st.sampled_from(["<", "<=", "=", "==", "<>", ">", ">="])
LEAF = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from(["reward", "small", "step"]), SIGN, NUMBER),
    st.builds("{} {} reward".format, NUMBER, SIGN),
    st.builds("domain {} '{}'".format, SIGN, st.sampled_from(["", "a", "b''"])),
    st.builds("step between {} and {}".format, NUMBER, NUMBER),
    st.builds("{} in (0, {})".format, st.sampled_from(["reward", "small", "step"]), NUMBER),
    st.sampled_from(
        ["ok", "not ok", "ok = true", "domain in ('a', 'b''')", "domain like 'a%'",
         "reward is null", "coalesce(reward, 3) > 2", "reward > step", "lower(domain) = 'a'"]
    ),
)  # fmt: skip
CONDITION = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=4,
)


def written(path, rows, size):
    tokens = [{**row, "step": None if row["step"] is None else abs(row["step"]), "tokens": [i]}
              for i, row in enumerate(rows)]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(tokens, TYPES), path, row_group_size=size)
    return pl.read_parquet(path)


def kept(path, text):
    """The rows that match, and the counts."""
    where = Where(text)
    try:
        with open_inputs([path], reporter=SilentReporter(), where=where) as own:
            return pl.concat(map(pl.read_parquet, own.paths)), where.as_json()
    except DataError:
        return None, where.as_json()


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=9), size=st.integers(1, 4), text=CONDITION)
def test_files_give_what_a_filter_afterwards_gives(tmp_path_factory, rows, size, text):
    path = tmp_path_factory.mktemp("where") / "in.parquet"
    table = written(path, rows, size).with_columns(pl.col("reward", "small").fill_nan(None))
    table = table.with_columns(pl.col("domain").cast(pl.String))
    table = table.with_columns(kept=pl.sql_expr(text).fill_null(value=False))
    expected = table.filter("kept")["tokens"].to_list()
    found, counts = kept(path, text)
    assert ([] if found is None else found["tokens"].to_list()) == expected
    assert (counts["rows"], counts["matched"]) == (len(rows), len(expected))
    groups = table.filter(pl.col("prompt_id").is_not_null()).group_by("prompt_id", "step")
    groups = groups.agg(pl.col("kept").any(), all=pl.col("kept").all()).filter("kept")
    if "reward" in text or "small" in text or "ok" in text:  # other names are the same in a group
        assert counts["groups"] == len(groups)
        assert counts["groups_cut"] == len(groups) - groups["all"].sum()


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_the_screen_counts_prompt_groups_that_are_cut(tmp_path, suffix):
    rows = [{"prompt_id": f"g{i // 3}", "step": i // 6, "reward": 1.0 * (i in (0, 4, 5, 6, 7, 8)),
             "response_mask": [1]} for i in range(9)]  # fmt: skip
    path = tmp_path / f"in.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = rlpost.inspect(path, where="reward > 0").where
    assert (where["rows"], where["matched"], where["groups"], where["groups_cut"]) == (9, 6, 3, 2)
    assert "; 2 of 3 prompt groups are cut" in where["line"]
    assert rlpost.inspect(path, where="step = 1").where["groups_cut"] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rewards > 0", "did you mean reward"),
        ("reward", "a bool is needed"),
        ("tokens = 1", "list"),
        ("domain > 1", "`domain` is a text, and a number is needed"),
        ("batches > 1", "batch"),
    ],
)
def test_what_does_not_fit_the_columns_is_an_error(tmp_path, text, message):
    row = {"reward": 1.0, "small": 1.0, "step": 1, "domain": "a", "ok": True}
    written(tmp_path / "in.parquet", [row], 1)
    with pytest.raises(UsageError, match=message) as error:
        rlpost.inspect(tmp_path / "in.parquet", where=text)
    assert f"--where {text}" in str(error.value)


def test_roles_name_their_columns_and_a_mapped_role_comes_first(tmp_path):
    table = pa.table({"uid": ["a", "b"], "score": [1.0, 0.0], "reward": [0.0, 1.0],
                      "finish_reason": ["length", "stop"], "mask": [[1], [1]]})  # fmt: skip
    path = tmp_path / "in.parquet"
    pq.write_table(table, path)
    for where, columns_map in (
        ("group = 'b'", {}),
        ("reward > 0", {}),
        ("reward < 1", {"reward": "score"}),
        ("not truncated", {}),
    ):
        found = rlpost.inspect(path, where=where, columns_map={"mask": "mask", **columns_map})
        assert found.whole("reward")["mean"] == (0 if columns_map else 1)


def test_evidence_and_errors_name_the_rows_of_the_input(tmp_path):
    rewards = [1.0, 0.0, 1.0, None, 1.0]
    table = pa.table({"prompt_id": ["a"] * 5, "reward": rewards, "step": [0, 1, 1, 1, 1]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=2)
    found = rlpost.inspect(tmp_path / "in.parquet", where="step = 1")
    (place,) = (x for finding in found.findings for x in finding.rows[:1] if x.row is not None)
    assert place == (str(tmp_path / "in.parquet"), 3)
    assert found.where["rows"] == 5
    with pytest.raises(DataError, match=r"in\.parquet, row 3: "):
        rlpost.advantages(
            tmp_path / "in.parquet", tmp_path / "o.parquet", rlpost.Recipe(), steps="1:"
        )


def test_partitions_and_folders_stay_what_they_are(tmp_path):
    for step in (3, 4):
        folder = tmp_path / "in" / f"step={step}"
        folder.mkdir(parents=True)
        table = pa.table({"prompt_id": ["a", "a"], "reward": [0.0, 1.0 * step]})
        pq.write_table(table, folder / "a.parquet")
    summary = rlpost.advantages(tmp_path / "in", tmp_path / "out", rlpost.Recipe(), steps="4:")
    assert [*(tmp_path / "out").rglob("*.parquet")] == [tmp_path / "out" / "step=4" / "a.parquet"]
    assert (summary["responses"], summary["steps_read"]["rows"]) == (2, 4)


def test_steps_are_whole_and_their_end_is_not_part_of_them(tmp_path):
    table = pa.table({"prompt_id": ["a"] * 8, "reward": [*map(float, range(8))],
                      "step": [0, 1, 1, 2, 2, 2, 3, 3], "batch": [9] * 8})  # fmt: skip
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=3)
    for steps, expected in (("1:3", [1, 1, 2, 2, 2]), (":1", [0]), ("3:", [3, 3])):
        rlpost.advantages(tmp_path / "in.parquet", out := tmp_path / "o.parquet", rlpost.Recipe(),
                          rlpost.Options(overwrite=True), steps=steps)  # fmt: skip
        assert pq.read_table(out)["step"].to_pylist() == expected
    whole = tmp_path / "whole.parquet"
    rlpost.advantages(tmp_path / "in.parquet", whole, rlpost.Recipe())
    every, own = (pq.read_table(one)["response_advantage"].to_pylist() for one in (whole, out))
    assert any(own)
    assert every[6:] == own


@pytest.mark.parametrize("text", ["3", "3:3", "4:3", ":", "a:b", "1:2:3"])
def test_steps_of_another_form_are_an_error(text):
    with pytest.raises(UsageError, match=f"--steps {text}"):
        of_steps(text, {})


@pytest.mark.parametrize(
    "options",
    [
        {"options": rlpost.Options(skip_existing=True)},
        {"options": rlpost.Options(engine="ray")},
        {"recipe": rlpost.Recipe(estimator="gae", norm_std="running")},
    ],
)
def test_steps_exclude_what_needs_whole_inputs_or_earlier_steps(tmp_path, options):
    table = pa.table({"prompt_id": ["a"] * 2, "reward": [0.0, 1.0], "step": [0, 1],
                      "values": [[0.0], [1.0]], "response_mask": [[1], [1]]})  # fmt: skip
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(UsageError, match="--steps 1:"):
        rlpost.advantages(tmp_path / "in.parquet", tmp_path / "out", steps="1:", **options)


@pytest.mark.parametrize(
    ("where", "message"),
    [("envs = 'a'", "has no 'envs'.*domain"), ("ok", r"has no 'ok'.*failure"),
     ("prompt_token_ids = 1", "a scalar is needed"), ("reward > 'a'", "a text is needed")],
)  # fmt: skip
def test_names_of_a_dump_are_columns_and_roles(tmp_path, where, message):
    write_stream(tmp_path / "a", [[episode(i) for i in range(3)]])
    with pytest.raises(UsageError, match=message):
        rlpost.convert(tmp_path / "a", tmp_path / "o.parquet", where=where)


@pytest.mark.parametrize(
    ("where", "needed"),
    [
        ("not count", "bool"), ("flag and count", "bool"), ("count is true", "bool"),
        ("contains(count, '1')", "text"), ("count in ('3')", "text"), ("count like '1'", "text"),
        ("name + 1 > 2", "number"), ("-name > 2", "number"), ("abs(flag) > 0", "number"),
    ],
)  # fmt: skip
def test_a_part_of_another_kind_than_is_needed_is_an_error(where, needed):
    values = {"count": pl.Series([3], dtype=pl.UInt64), "name": pl.Series(["a"]),
              "flag": pl.Series([True]), "empty": pl.Series([None])}  # fmt: skip
    condition = Where(where)
    with pytest.raises(UsageError, match=rf"` is a \w+, and a {needed} is needed"):
        condition.matching({name: values[name] for name in condition.names})
    for name in condition.names:  # a column without values fits all
        where = where.replace(name, "empty")
    assert not Where(where).matching({"empty": values["empty"]}).any()
    assert Where("-count < 0").matching({"count": values["count"]}).all()


def test_a_column_that_some_rows_of_a_dump_lack_is_null_in_them(tmp_path):
    rows = [{"prompt_id": "a", "reward": 1.0, **({"late": i} if i > 4500 else {})}
            for i in range(5000)]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for where, expected in (("late >= 4999", 1), ("late is null", 4501)):
        out = tmp_path / "o.parquet"
        summary = rlpost.convert(tmp_path / "in.jsonl", out, where=where, overwrite=True)
        assert (summary["responses"], summary["where"]["rows"]) == (expected, 5000)
