"""The policy segments of rows with token ids, for what several rows of a rollout train."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.counted import numbers_of
from rlpost.analysis.inspect.tokens import lists_of
from rlpost.kernels.prefixes import (
    PolicySegments,
    prefixes_of,
    repeated_tokens,
    segments_with_prefixes,
)
from rlpost.kernels.rollouts import RolloutOrder
from rlpost.kernels.segments import offsets_of
from rlpost.pipeline.rollout_order import ROLLOUT_ORDER, add_order, rollout_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.selection import TokenIds
    from rlpost.io.arrow import CellLocation
    from rlpost.kernels.moments import Mask
    from rlpost.pipeline.data import Responses


def segments_of(
    cells: Callable[[str], tuple[pa.Array, CellLocation]], columns: TokenIds, first: int
) -> PolicySegments:
    """Return a few numbers of each policy segment of a chunk.

    Rows whose lists differ in length have none.

    Args:
        cells: returns a column of the chunk.
        columns: of token ids.
        first: the number of the chunk's first row.
    """
    ids, prompts = lists_of(*cells(columns.response)), lists_of(*cells(columns.prompt))
    policy, fitting = np.ones(len(ids.values), np.bool_), np.ones(len(ids.lengths), np.bool_)
    if columns.mask is not None:
        masks = lists_of(*cells(columns.mask))
        fitting = masks.lengths == ids.lengths
        policy = masks.values[np.repeat(fitting, masks.lengths)] == 1
    numbers = np.nan_to_num(ids.values[np.repeat(fitting, ids.lengths)])
    before = prefixes_of(np.nan_to_num(prompts.values), prompts.offsets)
    segments = segments_with_prefixes(
        numbers, policy, offsets_of(ids.lengths[fitting]),
        type(before)(*(part[fitting] for part in before)), 0,
    )  # fmt: skip
    rows = np.flatnonzero(fitting)[segments.row]
    if columns.kept is not None:
        trains = numbers_of(*cells(columns.kept)) != 0
        segments = PolicySegments(*(part[trains[rows]] for part in segments))
        rows = rows[trains[rows]]
    return segments._replace(row=rows + first)


def repeated_in(
    parts: Sequence[PolicySegments], table: Responses, trains: Mask, *, grouped: bool
) -> tuple[NDArray[np.int64], int]:
    """Return the policy tokens of each row that another one trains too, and of all of them.

    Args:
        parts: the segments of all chunks.
        table: of the whole input, with `rollout`.
        trains: [N] the rows that have a rollout id.
        grouped: rollout ids are of a prompt group.
    """
    segments = PolicySegments(*map(np.concatenate, zip(*parts, strict=True)))
    if ROLLOUT_ORDER not in table:
        table = add_order(table, grouped=grouped)
    rollout = rollout_codes(table, grouped=grouped)
    order = RolloutOrder.of(rollout, table[ROLLOUT_ORDER])
    again = repeated_tokens(segments, order.rollout, order.places(), trains)
    repeated = np.zeros(len(table), np.int64)
    np.add.at(repeated, segments.row, again)
    return repeated, int(segments.size.sum())
