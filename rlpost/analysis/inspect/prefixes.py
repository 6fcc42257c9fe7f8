"""The policy segments of rows with token ids, for what several rows of a rollout train."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.counted import numbers_of
from rlpost.analysis.inspect.tokens import lists_of
from rlpost.io.arrow import CellLocation
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
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.selection import TokenIds
    from rlpost.io.parquet.source import RowChunk
    from rlpost.kernels.moments import Mask
    from rlpost.pipeline.data import Responses


class SegmentReader:
    """Keeps a few numbers of each policy segment of the chunks of a pass.

    Args:
        columns: of token ids.
    """

    def __init__(self, columns: TokenIds) -> None:
        self._columns = columns
        self.read = [name for name in columns if name is not None]
        self._parts: list[PolicySegments] = []
        self._rows = 0

    def add(self, chunk: RowChunk) -> None:
        """Add the segments of a chunk; rows whose lists differ in length have none."""
        response, prompt, mask, kept = self._columns
        table, first = chunk.table, self._rows
        self._rows += table.num_rows

        def location(name: str) -> CellLocation:
            return CellLocation("", chunk.first_row, name)

        ids, prompts = (lists_of(table.column(name), location(name)) for name in (response, prompt))
        policy = np.ones(len(ids.values), np.bool_)
        fitting = np.ones(table.num_rows, np.bool_)
        if mask is not None:
            masks = lists_of(table.column(mask), location(mask))
            fitting = masks.lengths == ids.lengths
            policy = masks.values[np.repeat(fitting, masks.lengths)] == 1
        numbers = np.nan_to_num(ids.values[np.repeat(fitting, ids.lengths)])
        before = prefixes_of(np.nan_to_num(prompts.values), prompts.offsets)
        segments = segments_with_prefixes(
            numbers, policy, offsets_of(ids.lengths[fitting]),
            type(before)(*(part[fitting] for part in before)), 0,
        )  # fmt: skip
        rows = np.flatnonzero(fitting)[segments.row]
        if kept is not None:
            trains = numbers_of(table.column(kept), location(kept)) != 0
            segments = PolicySegments(*(part[trains[rows]] for part in segments))
            rows = rows[trains[rows]]
        self._parts.append(segments._replace(row=rows + first))

    def repeated(
        self, table: Responses, trains: Mask, *, grouped: bool
    ) -> tuple[NDArray[np.int64], int]:
        """Return the policy tokens of each row that another one trains too, and of all of them.

        Args:
            table: of the whole input, with `rollout`.
            trains: [N] the rows that have a rollout id.
            grouped: rollout ids are of a prompt group.
        """
        segments = PolicySegments(*map(np.concatenate, zip(*self._parts, strict=True)))
        if ROLLOUT_ORDER not in table:
            table = add_order(table, grouped=grouped)
        rollout = rollout_codes(table, grouped=grouped)
        order = RolloutOrder.of(rollout, table[ROLLOUT_ORDER])
        again = repeated_tokens(segments, order.rollout, order.places(), trains)
        repeated = np.zeros(len(table), np.int64)
        np.add.at(repeated, segments.row, again)
        return repeated, int(segments.size.sum())
