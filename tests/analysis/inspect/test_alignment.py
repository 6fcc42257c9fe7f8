"""Masks and offsets of columns."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest


def test_masks_equal_a_plain_computation(sample, facts):
    masks = [np.array(mask) for mask in pl.read_parquet(sample)["response_mask"].to_list()]
    found = facts.masks
    every = sum(len(mask) for mask in masks)
    assert found.observation_share == pytest.approx(1 - sum(x.sum() for x in masks) / every)
    assert found.with_observations == sum(not mask.all() for mask in masks)
    assert found.trailing == sum(not mask[-1] for mask in masks)
    assert found.leading == sum(not mask[0] for mask in masks)
    turns = ["".join(map(str, mask)).strip("0") for mask in masks]
    assert found.gaps == sum("0" in turn for turn in turns)
