"""Estimators by agent role: the rows of each role have their own estimator and statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rlpost.errors import DataError, no_such
from rlpost.pipeline.data import AGENT_ROLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rlpost.pipeline.data import Column, Responses

    Reduce = Callable[[Responses], Responses]


def reduce_by_role(
    responses: Responses, *, parts: Mapping[str, Sequence[Reduce]], others: Sequence[Reduce]
) -> Responses:
    """Return the table after reducing the rows of each agent role alone.

    A column that only some roles have is 0 for the rows of the others; `raw_credit`, the credit
    before whitening and clipping, is then the credit.

    Args:
        responses: of the whole input.
        parts: by agent role, what reduces its rows, in order.
        others: reduces the rows of each other agent role.

    Raises:
        DataError: no row of the input has one of the agent roles. The driver checks the parts of a
            run (with `part` in the notes) together.
    """
    codes, labels = responses[AGENT_ROLE], responses.labels[AGENT_ROLE]
    if not responses.notes.get("part"):
        check_roles(parts, map(str, labels))
    columns: dict[str, Column] = {}
    lacking = np.zeros(len(responses), np.bool_)
    for code, label in enumerate(labels):
        rows = np.flatnonzero(codes == code)
        if not len(rows):
            continue
        before = {name: column[rows] for name, column in responses.columns.items()}
        if "unit" in before:  # codes of units that have rows of this role, without gaps
            before["unit"] = np.unique(before["unit"], return_inverse=True)[1].reshape(-1)
        own = replace(responses, columns=before)
        for reduce in parts.get(str(label), others):
            own = reduce(own)
        lacking[rows] = "raw_credit" not in own
        for name, values in own.columns.items():
            if values is not before.get(name):
                if name not in columns:
                    shape = (len(responses), *values.shape[1:])
                    columns[name] = responses.columns.get(
                        name, np.zeros(shape, values.dtype)
                    ).copy()
                columns[name][rows] = values
        responses = replace(responses, notes=own.notes)
    if "raw_credit" in columns:
        columns["raw_credit"] = np.where(lacking, columns["credit"], columns["raw_credit"])
    return responses.with_(**columns)


def check_roles(named: Iterable[str], roles: Iterable[str]) -> None:
    """Raise DataError if an agent role of --estimator-for is none of the input's.

    Args:
        named: agent roles that have an estimator.
        roles: those of the rows.
    """
    every = sorted({*roles})
    for role in named:
        if role not in every:
            text = f"--estimator-for: no row has the agent role {role!r}"
            raise DataError(no_such(text, role, every, f"there are {', '.join(every)}"))
