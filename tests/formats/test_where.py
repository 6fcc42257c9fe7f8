"""Conditions on rows: names, rows of Parquet and dumps that match, groups that are cut, errors."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.errors import DataError, UsageError
from rlpost.formats.where import of_steps


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
    [
        ("envs = 'a'", "has no 'envs'.*domain"), ("oks", "has no 'oks'.*ok"),
        ("batches > 1", "batch"), ("prompt_token_ids = 1", "a scalar is needed"),
        ("reward", "a bool is needed"), ("reward > 'a'", "a text is needed"),
        ("domain > 1", "`domain` is a text, and a number is needed"),
    ],
)  # fmt: skip
def test_names_are_columns_and_roles_of_dumps_and_parquet(tmp_path, where, message):
    row = {"prompt_id": "a", "reward": 1.0, "step": 1, "domain": "a", "ok": True,
           "prompt_token_ids": [1]}  # fmt: skip
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    rlpost.convert(tmp_path / "in.jsonl", tmp_path / "in.parquet")
    with pytest.raises(UsageError, match=message):
        rlpost.convert(tmp_path / "in.jsonl", tmp_path / "o.parquet", where=where)
    with pytest.raises(UsageError, match=message) as error:
        rlpost.inspect(tmp_path / "in.parquet", where=where)
    assert f"--where {where}" in str(error.value)


def test_a_column_that_some_rows_of_a_dump_lack_is_null_in_them(tmp_path):
    rows = [{"prompt_id": "a", "reward": 1.0, **({"late": i} if i > 4500 else {})}
            for i in range(5000)]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for where, expected in (("late >= 4999", 1), ("late is null", 4501)):
        out = tmp_path / "o.parquet"
        summary = rlpost.convert(tmp_path / "in.jsonl", out, where=where, overwrite=True)
        assert (summary["responses"], summary["where"]["rows"]) == (expected, 5000)


@pytest.mark.parametrize(("value", "rows"), [("a", 4), ("7", 4), ("b", 0)])
def test_partitions_of_a_folder_have_one_type(value, rows, tmp_path):
    for folder in ("a", "7"):
        (tmp_path / f"domain={folder}").mkdir()
        table = pa.table({"prompt_id": ["p", "p"] * 2, "reward": [0.0, 1.0] * 2})
        pq.write_table(table, tmp_path / f"domain={folder}" / "x.parquet")
    if not rows:
        with pytest.raises(DataError, match="0 of 8 rows match"):
            rlpost.inspect(tmp_path, where=f"domain = '{value}'")
    else:
        assert rlpost.inspect(tmp_path, where=f"domain = '{value}'").responses == rows
