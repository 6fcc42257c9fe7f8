"""Fields of a record as roles: dotted paths, numbers, keys, flags, texts, reward functions."""

import math

import pytest

from rlpost.errors import DataError
from rlpost.formats import fields
from rlpost.formats.records import Record


def record(**values):
    return Record("dump.jsonl, line 3", values)


def test_a_path_is_a_name_before_it_is_nested():
    both = record(**{"a.b": 1, "a": {"b": 2, "c": {"d": 3}}})
    paths = ("a.b", "a.c.d", "a.x", "a.c.d.e")
    assert [both.lookup(path) for path in paths] == [1, 3, None, None]
    with pytest.raises(DataError, match=r"dump.jsonl, line 3: no field `x.y`"):
        both.lookup("x.y")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"role": "user", "content": "2 + 2?", "name": None}], "2 + 2?"),
        ([{"role": "a"}, {"content": 1}], '[{"role": "a"}, {"content": 1}]'),
        ("plain", "plain"),
    ],
)
def test_messages_are_read_as_text(value, expected):
    assert fields.read_text(record(x=value), "x") == expected


def test_rewards_of_functions_are_summed_without_null_and_nan():
    assert fields.sum_rewards(record(a=0.5, b=None, c=math.nan, d=2), "abcd") == 2.5
    assert fields.sum_rewards(record(a=None, b=math.nan), "ab") is None
    with pytest.raises(DataError, match=r'line 3: `a` is "x"; a number'):
        fields.sum_rewards(record(a="x"), "a")
