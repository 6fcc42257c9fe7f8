"""Masks by the order of a batch's tokens: which of them a rule keeps, found in two passes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rlpost.kernels.segments import spread
from rlpost.kernels.trimming import LEADING, Boundary, Tally, leading_codes, trailing_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rlpost.kernels.arrays import Array
    from rlpost.kernels.trimming import Rule
    from rlpost.pipeline.data import Batch, Column, Responses

    Ordered = dict[str, tuple[Callable[[Batch], Array], Rule]]
    """By name: what is ordered, [T], and the rule."""


def order_parts(ordered: Ordered, reads: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Return the parts of the stages that find the cut of each batch; none if nothing is ordered.

    Args:
        ordered: what to order.
        reads: the token roles of what is ordered.

    Returns:
        By the bits that a stage counts, its parts.
    """
    if not ordered:
        return {}
    return {
        "leading": {
            "reads": reads,
            "map": partial(_map, ordered=ordered),
            "gather": partial(_boundaries, ordered=ordered),
        },
        "trailing": {
            "reads": reads,
            "map": partial(_map, ordered=ordered, trailing=True),
            "gather": partial(_cuts, ordered=ordered),
        },
    }


def kept_in_order(batch: Batch, name: str, values: Array, rule: Rule) -> Array:
    """Return which tokens a rule keeps, [T] bool."""
    return rule.keeps(values, _on_tokens(batch, "batch"), batch.shared[f"order:cuts:{name}"])


def _map(batch: Batch, *, ordered: Ordered, trailing: bool = False) -> dict[str, Array]:
    """Return the codes of the values that are ordered, [T] int64 each."""
    codes = _on_tokens(batch, "batch")
    competes = batch.mask & _on_tokens(batch, "kept")
    mapped: dict[str, Array] = {}
    for name, (values_of, _) in ordered.items():
        values = values_of(batch)
        if trailing:
            bins = batch.shared[f"order:bins:{name}"]
            mapped[name] = trailing_codes(values, codes, competes, bins)
        else:
            mapped[name] = leading_codes(values, codes, competes)
    return mapped


def _boundaries(
    responses: Responses, parts: Iterable[dict[str, Column]], *, ordered: Ordered
) -> Responses:
    """Share the bin of each batch in which its cut is."""
    shared: dict[str, Column] = {}
    for name, tally in _tallies(parts, [*ordered], LEADING).items():
        boundary = ordered[name][1].boundary(tally, int(responses["batch"].max()) + 1)
        shared |= {f"order:{part}:{name}": column for part, column in boundary._asdict().items()}
    return responses.sharing(**shared)


def _cuts(
    responses: Responses, parts: Iterable[dict[str, Column]], *, ordered: Ordered
) -> Responses:
    """Share the cut of each batch."""
    shared: dict[str, Column] = {}
    for name, tally in _tallies(parts, [*ordered], 0).items():
        columns = (responses.shared[f"order:{part}:{name}"] for part in Boundary._fields)
        shared[f"order:cuts:{name}"] = ordered[name][1].cuts(tally, Boundary(*columns))
    return responses.sharing(**shared)


def _tallies(
    parts: Iterable[dict[str, Column]], names: Sequence[str], dropped: int
) -> dict[str, Tally]:
    """Return the counts of the codes of all batches."""
    tallies = dict.fromkeys(names, Tally.empty())
    for part in parts:
        for name, tally in tallies.items():
            tallies[name] = tally.plus(part[name], dropped)
    return tallies


def _on_tokens(batch: Batch, name: str) -> Array:
    """Return a column of responses at their tokens, [T]."""
    return spread(batch.responses[name], batch.offsets)
