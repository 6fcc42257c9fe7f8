"""Integer codes of rows in numpy: without gaps, of tuples; ordinals and extremes by code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Codes = NDArray[np.int64]

_MOST_GAPS = 4  # with more possible codes per row than this, sorting is faster than counting


def dense_codes(codes: Codes, count: int) -> tuple[Codes, Codes]:
    """Return the codes that occur, ascending, and the index of each row's code in them, [N].

    Args:
        codes: [N] in [0, count).
        count: the number of possible codes.
    """
    if count > _MOST_GAPS * max(len(codes), 1):
        return np.unique(codes, return_inverse=True)
    occurs = np.zeros(count, np.bool_)
    occurs[codes] = True
    if occurs.all():
        return np.arange(count), codes
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[codes]


def joint_codes(*codes: Codes) -> Codes:
    """Return one code for each tuple of codes that occurs, from 0 without gaps, [N].

    Codes are in the order of the tuples.

    Args:
        codes: [N] each, from 0; at least one. Of M possible codes, N * M is below 2^63.
    """
    joint = np.zeros(len(codes[0]), np.int64)
    count = 1
    for own in codes:
        width = int(own.max(initial=-1)) + 1
        occurring, joint = dense_codes(joint * width + own, count * width)
        count = len(occurring)
    return joint


def last_rows(codes: Codes) -> Codes:
    """Return the last row with each code, [codes]; 0 for codes without rows.

    Args:
        codes: [N], from 0.
    """
    rows = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    rows[codes] = np.arange(len(codes))
    return rows


def ordinals_of(codes: Codes) -> Codes:
    """Return the number of earlier rows with the same code, of each row, [N]."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(codes) else order
    counts = np.diff(np.append(starts, len(codes)))
    ordinals = np.empty(len(codes), dtype=np.int64)
    ordinals[order] = np.arange(len(codes)) - np.repeat(starts, counts)
    return ordinals


def keyed_extremes(values: NDArray[Any], keys: Codes, count: int) -> tuple[Any, Any]:
    """Return the least and the greatest value of each key, [count] each; inf and -inf for none.

    Args:
        values: [N]; a key with a NaN has NaN.
        keys: [N] in [0, count).
        count: the number of keys.
    """
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    with np.errstate(invalid="ignore"):
        np.minimum.at(low, keys, values)
        np.maximum.at(high, keys, values)
    return low, high
