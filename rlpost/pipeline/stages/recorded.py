"""Stages that read what a trainer recorded, in place of the stages that compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels.segments import segment_sum
from rlpost.pipeline.stages.responses import some_left
from rlpost.pipeline.stages.rewards import reward_column
from rlpost.recipe.roles import RECORDED

if TYPE_CHECKING:
    from rlpost.estimators import Estimator
    from rlpost.kernels.arrays import Array
    from rlpost.pipeline.data import Batch, Responses


def role_of(name: str) -> str:
    """Return the role of a recorded column, by the name of the written one."""
    return f"{RECORDED}{name}"


ADVANTAGES = role_of("advantages")
"""Recorded ones, which are compared alone: a number that is missing is no error."""


def use_sample_mask(responses: Responses) -> Responses:
    """Set `kept` and `sample_mask` by the recorded mask.

    Raises:
        DataError: no response is left.
    """
    flag = responses[role_of("sample_mask")] != 0
    kept = responses["valid"] & flag
    left = some_left(responses, kept, {"sample_mask": flag}, "correct the column")
    return left.with_(kept=kept, sample_mask=kept)


def use_rewards(responses: Responses) -> Responses:
    """Set `rewards` to the recorded ones."""
    return responses.with_(
        rewards=np.where(responses["valid"], responses[role_of("response_level_rewards")], 0.0)
    )


def sum_token_rewards(batch: Batch) -> dict[str, Array]:
    """Return the sum of the recorded token rewards of each response."""
    return {"recorded_sum": segment_sum(batch[role_of("token_level_rewards")], batch.offsets)}


def use_sums(responses: Responses, *, estimator: Estimator) -> Responses:
    """Set the rewards that an estimator reads to the sums of recorded token rewards."""
    sums = np.where(responses["valid"], responses["recorded_sum"], 0.0)
    return responses.with_(**{"rewards": sums, "shaped": sums, reward_column(estimator): sums})


def without_rewards(responses: Responses) -> Responses:
    """Set `rewards` to 0: the recorded token rewards have them."""
    return responses.with_(rewards=np.zeros_like(responses["reward"]))


def add_token_rewards(batch: Batch) -> Batch:
    """Add the recorded token rewards as `token_level_rewards`."""
    return batch.with_(token_level_rewards=batch[role_of("token_level_rewards")])


def add_advantages(batch: Batch) -> Batch:
    """Add the recorded raw advantages as `advantages` and `returns`."""
    recorded = batch.only(batch[role_of("raw_advantages")])
    return batch.with_(advantages=recorded, returns=recorded)
