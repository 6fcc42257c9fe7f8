"""The age of tokens: how many versions the policy that sampled them is behind the one that trains.

The policy that trains at step s has version s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.errors import DataError
from rlpost.kernels.corrections import reduce_responses
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.pipeline.data import Batch, Column, Responses

VERSION = "policy_version"
"""The role: of a response, or of each of its tokens."""
MEAN_AGE = "age"
"""The column of responses with the mean age of their policy tokens."""
_TRAINED = "version:trained"
_NEWEST, _OLDEST, _MEAN = "version:newest", "version:oldest", "version:mean"
_TIP = "--map batch=COLUMN  # names the steps that these versions count"


def map_versions(batch: Batch) -> dict[str, Array]:
    """Return the newest, oldest and mean version of each response's policy tokens, [n]."""
    version, mask, offsets = batch[VERSION], batch.mask, batch.offsets
    return {
        _NEWEST: reduce_responses(version, mask, offsets, level="max"),
        _OLDEST: -reduce_responses(-version, mask, offsets, level="max"),
        _MEAN: reduce_responses(version, mask, offsets, level="geometric"),
    }


def add_ages(responses: Responses) -> Responses:
    """Add the version that each response trains, and `MEAN_AGE`.

    Raises:
        DataError: steps are no integers; or a version is below 0, or newer than its step's.
    """
    steps = responses.labels["step"]
    if not all(isinstance(step, int) for step in steps):
        text = "the age of a token is the step minus its policy version, and steps are no integers"
        raise DataError(text, tip="--map batch=COLUMN  # names a column of integers")
    trained = np.array(steps, np.float64)[responses["step"]]
    counted = responses["valid"] & (responses["tokens"] > 0)
    newest, oldest = responses[_NEWEST], responses[_OLDEST]
    _check(newest, counted & (newest > trained), "is newer than the policy that its step trains")
    _check(oldest, counted & (oldest < 0), "is below 0: a policy token has no version")
    age = np.where(counted, trained - responses[_MEAN], 0.0)
    return responses.with_(**{_TRAINED: trained, MEAN_AGE: age})


def _check(versions: Column, wrong: Column, why: str) -> None:
    if count := np.count_nonzero(wrong):
        row = int(wrong.argmax())
        text = f"row {row} of the input: policy version {versions[row]:g} {why}"
        raise DataError(f"{text}; {count:,} of {len(wrong):,} rows have such a version", tip=_TIP)


def ages(batch: Batch) -> Array:
    """Return the age of each token, [T], in versions."""
    return spread(batch.responses[_TRAINED], batch.offsets) - batch[VERSION]
