"""The order of a rollout's rows in the table of responses, which is made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels.codes import joint_codes
from rlpost.kernels.rollouts import RolloutOrder, rollout_ranks
from rlpost.pipeline.data import AGENT_ROLE

if TYPE_CHECKING:
    from rlpost.kernels.moments import Integers
    from rlpost.pipeline.data import Responses

ROLLOUT_ORDER = "rollout_order"
"""The column of Responses with the rank of each row among the rows of rollouts."""
PLACE = ("turn", "branch", AGENT_ROLE)
"""The roles of where a row is in its rollout."""


def add_order(responses: Responses, *, grouped: bool) -> Responses:
    """Add the order of the rows of each rollout; those of equal turns are by what they contain.

    Args:
        responses: of the whole input.
        grouped: rollout ids are of a prompt group; else of a batch.
    """
    turn, branch, agent = (responses.columns.get(name) for name in PLACE)
    ties = (responses[name] for name in ("tokens", "length", "reward"))
    rollout = rollout_codes(responses, grouped=grouped)
    ranks = rollout_ranks(rollout, turn, branch, agent, *ties)
    return responses.with_(**{ROLLOUT_ORDER: ranks})


def rollout_codes(responses: Responses, *, grouped: bool) -> Integers:
    """Return the code of each row's rollout, [N]; `grouped` as in `add_order`."""
    if "unit" in responses:
        return responses["unit"]
    return joint_codes(responses["group" if grouped else "batch"], responses["rollout"])


def order_of(responses: Responses) -> RolloutOrder:
    """Return the order of the rows of units; the table may be a part of the whole input's."""
    return RolloutOrder.of(joint_codes(responses["unit"]), responses[ROLLOUT_ORDER])


def repeated_turns(responses: Responses, *, grouped: bool) -> Integers:
    """Return the rows that have the turn of an earlier row of their rollout, with that row, [2, K].

    Rows in other branches, and of other agents, have turns of their own. Rows that are left out
    have none.
    """
    order = RolloutOrder.of(rollout_codes(responses, grouped=grouped), responses[ROLLOUT_ORDER])
    rows = order.order[responses["valid"][order.order]]
    before, after = rows[:-1], rows[1:]
    same = order.rollout[before] == order.rollout[after]
    for name in PLACE:
        if name in responses:
            same &= responses[name][before] == responses[name][after]
    pairs: Integers = np.sort(np.stack([before[same], after[same]]), axis=0)
    return pairs[:, np.argsort(pairs[1], kind="stable")]
