"""Padded token lists: cut to the response, or named as what contradicts it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpost.errors import DataError, UsageError
from rlpost.formats.layout import check_layout, response_lists


@given(
    st.integers(1, 5), st.lists(st.integers(0, 1), max_size=8), st.integers(0, 3), st.integers(0, 2)
)
def test_padded_lists_are_cut_to_the_response(before, rest, after, known):
    mask = [1, *rest]
    values = (np.arange(1, len(mask) + 1) / 4).tolist()
    lists = {
        "response_mask": np.array([0] * before + mask + [0] * after, np.uint8),
        "values": np.array([9.0] * before + values + [9.0] * after),
        "response_token_ids": np.arange(before + len(mask) + after),
    }
    lengths = ((None, None), (before + len(mask), None), (None, len(mask)))[known]
    response = response_lists("here", lists, *lengths)
    end = len(mask) if known else len(mask) - mask[::-1].index(1)
    assert response["response_mask"].tolist() == mask[:end]
    assert response["values"].tolist() == values[:end]
    assert response["response_token_ids"].tolist() == [*range(before, before + end)]
    prompt = response.get("prompt_token_ids")
    assert (None if prompt is None else prompt.tolist()) == (
        [*range(before)] if known == 1 else None
    )


@pytest.mark.parametrize(
    ("values", "lengths", "message"),
    [
        ([0.0] * 4, (), "here: `values` has 4 entries"),
        ([0.0] * 3, (2, None), "length is 2, but"),
        ([0.0] * 3, (4, None), "length is 4, but"),
        ([0.0] * 3, (None, 1), "`response_length` is 1, but the mask"),
    ],
)
def test_what_contradicts_the_mask_is_an_error(values, lengths, message):
    lists = {"response_mask": np.array([0, 1, 1], np.uint8), "values": np.array(values)}
    with pytest.raises(DataError, match=message):
        response_lists("here", lists, *lengths)


def test_an_unknown_layout_is_named():
    with pytest.raises(UsageError, match="did you mean padded"):
        check_layout("paded")
