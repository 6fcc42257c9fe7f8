"""Layouts of token lists: each returns the response, or names what contradicts it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpost.errors import DataError, UsageError
from rlpost.formats import layout


@st.composite
def responses(draw):
    """A prompt's length, a response's mask that begins with 1, and padding behind."""
    mask = [1, *draw(st.lists(st.integers(0, 1), max_size=8))]
    return draw(st.integers(1, 5)), np.array(mask, np.uint8), draw(st.integers(0, 3))


def cut(name, mask, values, length=None):
    lists = {"response_mask": mask, "values": values}
    response = layout.response_lists(name, "here", lists, length)
    return response["response_mask"].tolist(), response["values"].tolist()


@given(responses())
def test_every_layout_returns_the_response(case):
    before, mask, after = case
    values = np.arange(1, len(mask) + 1) / 4
    expected = mask.tolist(), values.tolist()
    full = np.concatenate([np.zeros(before), mask, np.zeros(after)]).astype(np.uint8)
    padded = np.concatenate([np.full(before, 9.0), values, np.full(after, 9.0)])
    length = before + len(mask)
    assert cut("response", mask, values) == expected
    assert cut("padded", full, padded, length) == expected
    assert cut("shifted", full, padded[1:], length) == expected
    ids = np.arange(len(full))
    shifted = {"response_mask": full[1:], "values": padded[1:], "response_token_ids": ids}
    response = layout.response_lists("shifted", "here", shifted, length)
    assert (response["response_mask"].tolist(), response["values"].tolist()) == expected
    assert response["response_token_ids"].tolist() == [*range(before, length)]
    whole = {"response_mask": full, "values": padded}
    for name, lists in (("padded", whole), ("shifted", shifted)):
        response = layout.response_lists(name, "here", lists, response=len(mask))
        assert response["values"].tolist() == values.tolist()
    response = layout.response_lists("padded", "here", {**whole, "response_token_ids": ids}, length)
    assert response["prompt_token_ids"].tolist() == [*range(before)]
    assert cut("left-padded", np.append(np.zeros(before, np.uint8), mask),
               np.append(np.full(before, 9.0), values), len(mask)) == expected  # fmt: skip
    sparse = np.where(mask == 1, values, 0)
    assert cut("compact", full, values[mask == 1], length) == (mask.tolist(), sparse.tolist())


@given(responses())
def test_lists_of_another_length_are_an_error_for_every_layout(case):
    _, mask, _ = case
    for name in ("response", "padded", "left-padded"):
        with pytest.raises(DataError, match=r"here: `values` has .* entries"):
            cut(name, mask, np.zeros(len(mask) + 1))
    with pytest.raises(DataError, match="here: `values` has"):
        cut("compact", mask, np.zeros(int(mask.sum()) + 1))
    with pytest.raises(DataError, match="here: "):
        cut("shifted", mask, np.zeros(len(mask) + 1))
    with pytest.raises(DataError, match="so none is shifted against the mask"):
        cut("shifted", mask, np.zeros(len(mask)))
    with pytest.raises(DataError, match="no list is compact"):
        layout.response_lists("compact", "here", {"response_mask": mask})


def test_lengths_that_contradict_the_mask_are_an_error():
    mask = np.array([0, 1, 1], np.uint8)
    for length in (2, 4):
        with pytest.raises(DataError, match=f"length is {length}, but"):
            cut("padded", mask, np.zeros(3), length)
    with pytest.raises(DataError, match="length is 1, but"):
        cut("left-padded", mask, np.zeros(3), 1)
    with pytest.raises(DataError, match="mask is 1 at token 0"):
        cut("shifted", np.array([1, 1], np.uint8), np.zeros(1))
    for name, lists in (("padded", {}), ("shifted", {"values": np.zeros(2)})):
        with pytest.raises(DataError, match="`response_length` is 1, but the mask"):
            layout.response_lists(name, "here", {"response_mask": mask, **lists}, response=1)
    with pytest.raises(
        DataError, match="the mask ends with 0, but a left-padded response ends the list"
    ):
        cut("left-padded", np.array([0, 1, 0], np.uint8), np.zeros(3))
    with pytest.raises(UsageError, match="did you mean padded"):
        layout.check_layout("paded")
