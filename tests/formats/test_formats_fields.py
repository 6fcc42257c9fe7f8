"""Fields of a record as roles: dotted paths, numbers, keys, flags, texts, reward functions."""

import math

import pytest

from rlpost.errors import DataError, UsageError
from rlpost.formats import fields
from rlpost.formats.records import Record, Row


def record(**values):
    return Record("dump.jsonl, line 3", values)


def test_a_path_is_a_name_before_it_is_nested():
    both = record(**{"a.b": 1, "a": {"b": 2, "c": {"d": 3}}})
    assert [both.lookup(path) for path in ("a.b", "a.c.d")] == [1, 3]
    for path in ("a.x", "x.y", "a.c.d.e"):
        with pytest.raises(DataError, match=r"dump.jsonl, line 3"):
            both.lookup(path)


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (fields.read_number, [0.25, 0.5], 0.75),
        (fields.read_number, None, None),
        (fields.read_number, 2, 2.0),
        (fields.read_key, 3, "3"),
        (fields.read_key, 3.0, "3"),
        (fields.read_key, "3", "3"),
        (fields.read_step, " 12", 12),
        (fields.read_step, 7.0, 7),
        (fields.read_flag, "length", ("finish_reason", "length")),
        (fields.read_flag, 1, ("truncated", True)),
        (fields.read_flag, None, ("truncated", None)),
        (fields.read_text, [{"role": "user", "content": "2 + 2?", "name": None}], "2 + 2?"),
        (fields.read_text, [{"role": "a"}, {"content": 1}], '[{"role": "a"}, {"content": 1}]'),
        (fields.read_text, "plain", "plain"),
    ],
)  # fmt: skip
def test_values_are_read_by_their_kind(read, value, expected):
    assert read(record(x=value), "x") == expected


@pytest.mark.parametrize(
    ("read", "value", "needed"),
    [
        (fields.read_number, "1", "a number"),
        (fields.read_key, 3.5, "text or an integer"),
        (fields.read_key, None, "text or an integer"),
        (fields.read_step, True, "an integer"),
        (fields.read_step, "1.5", "an integer"),
        (fields.read_flag, 2, "a bool or a finish reason"),
    ],
)
def test_a_value_of_another_kind_is_named_with_its_record(read, value, needed):
    with pytest.raises(DataError, match=rf"line 3: `x` is .*{needed}"):
        read(record(x=value), "x")


@pytest.mark.parametrize(
    ("value", "count"), [(3, 3), (3.0, 3), (3.5, None), (True, None), ("3", None)]
)
def test_counts_are_whole_numbers(value, count):
    assert fields.as_count(value) == count


def test_a_role_is_read_to_its_column():
    one = record(uid=7, step="2", end=False, chat=[{"content": "a"}], r=[1, 2])
    assert fields.read_role("group", one, "uid") == ("prompt_id", "7")
    assert fields.read_role("batch", one, "step") == ("step", 2)
    assert fields.read_role("truncated", one, "end") == ("truncated", False)
    assert fields.read_role("prompt", one, "chat") == ("prompt", '[{"content": "a"}]')
    assert fields.read_role("reward", one, "r") == ("reward", 3.0)
    with pytest.raises(UsageError, match=r"--map rewrd=.*reward"):
        fields.read_role("rewrd", one, "r")


def test_a_map_replaces_what_the_format_read():
    row = Row(record(cut=1, s=0.5), {"finish_reason": "stop", "reward": 1.0})
    changed = fields.apply_map(row, {"truncated": "cut", "reward": "s"})
    assert changed.values == {"truncated": True, "reward": 0.5}


def test_rewards_of_functions_are_summed_without_null_and_nan():
    assert fields.sum_rewards("line 1", {"a": 0.5, "b": None, "c": math.nan, "d": 2}) == 2.5
    assert fields.sum_rewards("line 1", {"a": None, "b": math.nan}) is None
    with pytest.raises(DataError, match=r"line 1: the reward `a` is 'x'"):
        fields.sum_rewards("line 1", {"a": "x"})


def test_reasons_for_missing_roles_leave_out_those_that_are_there():
    reasons = fields.no_token_roles("TRL", but=("response_length",))
    assert "response_length" not in reasons
    assert "TRL writes" in reasons["old_log_probs"]
