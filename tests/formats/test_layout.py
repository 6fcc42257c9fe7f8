"""Padded token lists: cut to the response, or named as what contradicts it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpost.errors import DataError
from rlpost.formats.layout import of_responses, ragged
from rlpost.io.arrow import CellLocation

BITS = st.lists(st.integers(0, 1), max_size=8)
PLACE = CellLocation("a.jsonl", 0, "x")


def cut(layout, lists, **columns):
    """The lists of responses, of lists by column."""
    given = {name: ragged(pa.array(rows), PLACE, mask=name == "response_mask")
             for name, rows in lists.items()}  # fmt: skip
    arrays = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
    found = of_responses(layout, given, arrays, PLACE)
    rows = len(next(iter(found.values())).valid)
    return {name: [column.row(i).tolist() for i in range(rows)] for name, column in found.items()}


@given(
    st.lists(st.tuples(st.integers(1, 5), BITS, st.integers(0, 3)), min_size=1, max_size=4),
    st.booleans(),
)
def test_padded_lists_are_cut_to_the_response(shapes, known):
    masks = [[1, *rest] for _, rest, _ in shapes]
    values = [(np.arange(1, len(mask) + 1) / 4).tolist() for mask in masks]
    lists = {
        "response_mask": [[0] * before + mask + [0] * after
                          for mask, (before, _, after) in zip(masks, shapes, strict=True)],
        "values": [[9.0] * before + value + [9.0] * after
                   for value, (before, _, after) in zip(values, shapes, strict=True)],
        "response_token_ids": [[*range(before + len(mask) + after)]
                               for mask, (before, _, after) in zip(masks, shapes, strict=True)],
    }  # fmt: skip
    whole = [before + len(mask) for mask, (before, *_) in zip(masks, shapes, strict=True)]
    response = cut("padded", lists, **({"sequence_length": whole} if known else {}))
    ends = [len(mask) if known else len(mask) - mask[::-1].index(1) for mask in masks]
    assert response["response_mask"] == [x[:end] for x, end in zip(masks, ends, strict=True)]
    assert response["values"] == [x[:end] for x, end in zip(values, ends, strict=True)]
    assert response["response_token_ids"] == [
        [*range(before, before + end)] for end, (before, *_) in zip(ends, shapes, strict=True)
    ]
    prompts = [[*range(before)] for before, *_ in shapes] if known else None
    assert response.get("prompt_token_ids") == prompts


@given(st.lists(st.tuples(st.integers(0, 3), BITS, st.booleans()), min_size=1, max_size=4))
def test_ids_of_prompt_and_response_are_cut_and_a_mask_that_is_missing_is_of_ones(shapes):
    masks = [mask for _, mask, _ in shapes]
    lists = {
        "sequence_token_ids": [[*range(prompt + len(mask))] for prompt, mask, _ in shapes],
        "response_mask": [mask if has else None for _, mask, has in shapes],
    }
    response = cut("tail", lists, response_length=[len(mask) for mask in masks])
    assert response["prompt_token_ids"] == [[*range(prompt)] for prompt, *_ in shapes]
    assert response["response_mask"] == [x if has else [1] * len(x) for _, x, has in shapes]
    assert [*map(len, response["response_token_ids"])] == [*map(len, masks)]


@pytest.mark.parametrize(
    ("values", "columns", "message"),
    [
        ([0.0] * 4, {}, "row 0: `x` has 4 entries"),
        ([0.0] * 3, {"sequence_length": [2]}, "length is 2, but"),
        ([0.0] * 3, {"sequence_length": [4]}, "length is 4, but"),
    ],
)
def test_what_contradicts_the_mask_is_an_error(values, columns, message):
    with pytest.raises(DataError, match=message):
        cut("padded", {"response_mask": [[0, 1, 1]], "values": [values]}, **columns)
