"""Rows of a dump as columns: types, empty lists and nulls."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rlpost.errors import DataError
from rlpost.formats.base import ReadOptions
from rlpost.formats.records import Record, Row
from rlpost.formats.rows import OtherFields, record_batches


def table_of(rows, **types):
    numbered = [Row(Record(f"row {i}", {}), values) for i, values in enumerate(rows)]
    return pa.Table.from_batches(record_batches(numbered, ReadOptions(), types))


def test_keys_are_text_and_equal_integers_of_any_type_are_one_key():
    table = table_of([{"prompt_id": 3}, {"prompt_id": 3.0}, {"prompt_id": "3"}])
    assert table["prompt_id"].to_pylist() == ["3"] * 3


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
        ([{"values": ["1.0"]}], "row 0: `values` is not a list of numbers"),
        ([{"values": [[1.0], [1.0, 2.0]]}], "row 0: `values` is a list of lists"),
        ([{"values": 1.0}], "row 0: `values` is 1.0"),
        ([{"response_token_ids": [1.5]}], "row 0: `response_token_ids` has 1.5 at token 0"),
        ([{"response_token_ids": [2**40]}], "row 0: `response_token_ids` has 1099511627776"),
        ([{"step": 1}, {"step": "x"}], "row 1: `step` is 'x'; int64 is needed"),
        ([{"reward": {"a": 1}}], "row 0: `reward` is {'a': 1}; double is needed"),
    ],
)
def test_the_error_for_a_bad_row_names_it(rows, message):
    with pytest.raises(DataError, match="row ") as raised:
        table_of(rows)
    assert message in str(raised.value)


def test_rows_without_tokens_have_empty_lists_and_no_nulls():
    table = table_of([{"response_mask": []}, {"response_mask": [1], "values": [0.5]}])
    assert table["values"].to_pylist() == [[], [0.5]]
    assert table["response_mask"].null_count == 0


def test_null_among_numbers_is_nan():
    (row,) = table_of([{"values": [1.0, None]}])["values"].to_pylist()
    assert row[0] == 1.0
    assert np.isnan(row[1])


def test_names_and_missing_columns_of_a_record_with_thousands_of_fields():
    names = [f"field_{i}" for i in range(20_000)]
    others = OtherFields(dict.fromkeys([*names, "reward", "dumped_reward"], pa.float64()))
    assert [*others.columns][:2] == names[:2]
    assert others.columns["reward"] == "dumped_reward"
    assert others.columns["dumped_reward"] == "dumped_reward_"
    first = pa.record_batch({"field_7": pa.array([1.0, 2.0])})
    (full,) = others.add_missing_columns([first])
    assert full.schema.names[0] == "field_7"
    assert {*full.schema.names} == {*others.columns.values()}
    assert full.column("field_7").to_pylist() == [1.0, 2.0]
    assert full.column("dumped_reward_").null_count == len(first)
