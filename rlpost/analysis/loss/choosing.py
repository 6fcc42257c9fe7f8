"""Which setting of a sweep to choose: how the gradients of settings differ, and whose they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import UsageError, no_such
from rlpost.io.arrow import CellLocation, key
from rlpost.io.parquet.source import CHUNK_TOKENS
from rlpost.kernels.divergence import effective_sample_size

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rlpost.losses.config import LossConfig
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.loss_totals import LossTotals
    from rlpost.pipeline.plan import Plan

Json = dict[str, Any]
TOP = 3
"""How many of the prompt groups that make up the most of a gradient are named."""


def bases_of(configs: Sequence[LossConfig], against: Mapping[str, Any] | None = None) -> list[int]:
    """Return the index of the setting with which each setting is compared; [] for one setting.

    Args:
        configs: the settings.
        against: values of swept options: a setting is compared with the one that differs from it
            in these alone. None: with the first setting.

    Raises:
        UsageError: an option is not swept, or not with this value.
    """
    swept = [{name: _word(value) for name, value in one.swept.items()} for one in configs]
    if against is not None and len(configs) == 1:
        raise UsageError("--against has no effect without --sweep")
    chosen = {name: _word(value) for name, value in (against or swept[0]).items()}
    for name, value in chosen.items():
        values = dict.fromkeys(one.get(name) for one in swept)
        if name not in swept[0]:
            raise UsageError(no_such(f"--against: {name!r} is not swept", name, swept[0]))
        if value not in values:
            text = f"--against {name}={value}: no setting has this value"
            raise UsageError(no_such(text, value, map(str, values), f"--sweep has {[*values]}"))
    return [swept.index({**one, **chosen}) for one in swept] if len(configs) > 1 else []


def _word(value: Any) -> str:
    """Return a value as text, the same for 0.2, "0.2" and "0.20"."""
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return str(value)


def summarise_gradients(
    plan: Plan,
    bases: Sequence[int],
    configs: Sequence[LossConfig],
    responses: Responses,
    totals: LossTotals,
) -> list[Json | None]:
    """Return for each setting what its gradient is; None for each if they are not compared.

    The gradient is that of the loss of each update by the log-prob of each policy token: weights
    of the aggregation, importance weights, weights of responses and the KL loss are factors of it.
    """
    if not bases:
        return [None for _ in configs]
    whole = totals.total()
    sums, tokens = whole.sums, whole.policy_tokens
    squares = [sums.total(f"{index}.squares") for index in range(len(configs))]
    groups = _groups(plan, responses, totals)
    norms = [math.sqrt(square) for square in squares]
    cosines = [1.0 if norm else None for norm in norms]
    for index, base in enumerate(bases):
        if index != base and norms[index] and norms[base]:
            cosine = float(sums.total(f"{index}.product")) / norms[index] / norms[base]
            cosines[index] = max(-1.0, min(1.0, cosine))
    return [
        {
            "norm": norms[index],
            "ess": effective_sample_size(tokens, sums.total(f"{index}.size"), squares[index]),
            "against": dict(configs[base].swept),
            "cosine": cosines[index] if norms[base] else None,
            "groups": groups[index] if groups else None,
        }
        for index, base in enumerate(bases)
    ]


def _groups(plan: Plan, responses: Responses, totals: LossTotals) -> list[Json]:
    """Return for each setting the prompt groups of the largest gradients; [] without groups."""
    if "group" not in plan.columns:
        return []
    codes = np.concatenate([part.group for part in totals.responses])
    sizes = np.concatenate([part.sizes for part in totals.responses], axis=1)
    present, first = np.unique(responses["group"], return_index=True)
    own = [_by_group(codes, values, len(present)) for values in sizes]
    top = [np.argsort(-of_groups, kind="stable")[:TOP] for of_groups in own]
    ids = _ids(plan, {int(first[group]) for groups in top for group in groups})
    steps, labels = responses["step"], responses.labels["step"]
    summaries = []
    for of_groups, groups in zip(own, top, strict=True):
        whole = math.fsum(of_groups)
        one_percent = math.ceil(len(present) / 100)
        largest = math.fsum(np.sort(of_groups)[-one_percent:])
        summaries.append(
            {
                "count": len(present),
                "one_percent": {
                    "groups": one_percent,
                    "share": largest / whole if whole else None,
                },
                "top": [
                    {
                        "group": ids[int(first[group])],
                        "step": labels[steps[first[group]]],
                        "share": float(of_groups[group]) / whole,
                    }
                    for group in groups
                    if of_groups[group] > 0
                ],
            }
        )
    return summaries


def _by_group(codes: np.ndarray[Any, Any], values: np.ndarray[Any, Any], count: int) -> Any:
    """Return the sums of values by group, [count]; the order of the responses does not matter."""
    order = np.lexsort((values, codes))
    return np.bincount(codes[order], values[order], count)


def _ids(plan: Plan, rows: Collection[int]) -> dict[int, Any]:
    """Return the prompt of each of some rows of the input."""
    source, column, ids = plan.source, plan.columns.column("group"), dict[int, Any]()
    for chunk in source.read([column], CHUNK_TOKENS, ""):
        start = source.first_rows[chunk.file] + chunk.first_row
        inside = [row for row in rows if start <= row < start + chunk.table.num_rows]
        if inside:
            location = CellLocation(str(source.name), chunk.first_row, column)
            keys = key(chunk.table.column(column), location)
            ids |= {row: keys[row - start].as_py() for row in inside}
    return ids
