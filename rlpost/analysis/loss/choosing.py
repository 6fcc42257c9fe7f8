"""Which setting of a sweep to choose: how the gradients of settings differ, and whose they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.errors import UsageError, no_such
from rlpost.io.arrow import CellLocation, key
from rlpost.io.parquet.source import CHUNK_TOKENS
from rlpost.kernels.divergence import effective_sample_size
from rlpost.pipeline.variants import variants_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from rlpost.losses.config import LossConfig
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.loss_totals import LossTotals, TokenSetTotals
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
    several = len(configs) > 1
    if against is None:
        return [0 for _ in configs] if several else []
    if not several:
        raise UsageError("--against has no effect without --sweep")
    swept = [{name: _word(value) for name, value in one.swept.items()} for one in configs]
    chosen = {name: _word(value) for name, value in against.items()}
    for name, value in chosen.items():
        values = dict.fromkeys(one.get(name) for one in swept)
        if name not in swept[0]:
            raise UsageError(no_such(f"--against: {name!r} is not swept", name, swept[0]))
        if value not in values:
            text = f"--against {name}={value}: no setting has this value"
            raise UsageError(no_such(text, value, map(str, values), f"--sweep has {[*values]}"))
    return [swept.index({**one, **chosen}) for one in swept]


def _word(value: Any) -> str:
    """Return a value as text, the same for 0.2, "0.2" and "0.20"."""
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return str(value)


class SettingPlace(NamedTuple):
    """Where the numbers of a setting are."""

    at: int
    """Its index among those of its variant."""
    responses: Responses
    """As the variant sees them."""
    totals: LossTotals
    """Of the variant."""
    whole: TokenSetTotals
    """Those of all tokens."""

    def sum(self, name: str) -> Fraction:
        """Return a sum of the setting over all tokens."""
        return self.whole.sums.total(f"{self.at}.{name}")


def places_of(
    configs: Sequence[LossConfig], responses: Responses, totals: LossTotals
) -> list[SettingPlace]:
    """Return where the numbers of each setting are."""
    places = {}
    for variant, own in zip(variants_of(configs), (totals, *totals.others), strict=True):
        seen, whole = variant.responses(responses), own.total()
        for index, number in enumerate(variant.indices):
            places[number] = SettingPlace(index, seen, own, whole)
    return [places[number] for number in sorted(places)]


def summarise_gradients(
    plan: Plan,
    bases: Sequence[int],
    configs: Sequence[LossConfig],
    places: Sequence[SettingPlace],
) -> list[Json | None]:
    """Return for each setting what its gradient is; None for each if they are not compared.

    The gradient is that of the loss of each update by the log-prob of each policy token: weights
    of the aggregation, importance weights, weights of responses and the KL loss are factors of it.
    """
    if not bases:
        return [None for _ in configs]
    squares = [place.sum("squares") for place in places]
    norms = [math.sqrt(square) for square in squares]
    groups = _groups(plan, places) if "group" in plan.columns else [None for _ in places]
    summaries: list[Json | None] = []
    for index, (base, place) in enumerate(zip(bases, places, strict=True)):
        cosine = 1.0 if norms[index] else None
        if index != base and norms[index]:
            product = float(place.sum("product")) / norms[index]
            cosine = max(-1.0, min(1.0, product / norms[base])) if norms[base] else None
        tokens, size = place.whole.policy_tokens, place.sum("size")
        summaries.append(
            {
                "norm": norms[index],
                "ess": effective_sample_size(tokens, size, squares[index]),
                "against": dict(configs[base].swept),
                "cosine": cosine,
                "groups": groups[index],
            }
        )
    return summaries


def _groups(plan: Plan, places: Sequence[SettingPlace]) -> list[Json | None]:
    """Return for each setting the prompt groups of the largest gradients."""
    responses = places[0].responses  # all variants have the same groups
    present, first = np.unique(responses["group"], return_index=True)
    sizes = [_by_group(place, len(present)) for place in places]
    top = [np.argsort(-own, kind="stable")[:TOP] for own in sizes]
    ids = _ids(plan, {int(first[group]) for groups in top for group in groups})
    steps, one_percent = responses["step"], math.ceil(len(present) / 100)

    def facts(own: NDArray[np.float64], groups: NDArray[np.int64]) -> Json:
        whole = math.fsum(own)
        largest = math.fsum(np.sort(own)[-one_percent:])
        named = [group for group in groups.tolist() if own[group] > 0]
        return {
            "count": len(present),
            "one_percent": {"groups": one_percent, "share": largest / whole if whole else None},
            "top": [
                {
                    "group": ids[int(first[group])],
                    "step": responses.labels["step"][steps[first[group]]],
                    "share": float(own[group]) / whole,
                }
                for group in named
            ],
        }

    return [facts(own, groups) for own, groups in zip(sizes, top, strict=True)]


def _by_group(place: SettingPlace, count: int) -> NDArray[np.float64]:
    """Return Σ |∂L/∂log π| of each prompt group, [count]; the order of responses is no matter."""
    parts = place.totals.responses
    codes = np.concatenate([part.group for part in parts])
    values = np.concatenate([part.sizes[place.at] for part in parts])
    order = np.lexsort((values, codes))
    sums: NDArray[np.float64] = np.bincount(codes[order], values[order], count).astype(np.float64)
    return sums


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
