"""Masks by the order of a batch's tokens: which of them a rule keeps, found in two passes.

With micro-batches, the tokens of each are ordered on their own, as a trainer does that computes the
loss of one after another. They are dealt in the order of the rows, so that masks depend on it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rlpost.kernels.layouts import Dealt, Split, StepLayout
from rlpost.kernels.segments import spread
from rlpost.kernels.trimming import LEADING, Boundary, Tally, leading_codes, trailing_codes
from rlpost.pipeline.stages.trained_once import ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rlpost.kernels.arrays import Array
    from rlpost.kernels.trimming import Rule
    from rlpost.pipeline.data import Batch, Column, Responses
    from rlpost.recipe.recipe import Recipe

    Ordered = dict[str, tuple[Callable[[Batch], Array], Rule]]
    """By name: what is ordered, [T], and the rule."""

_UNIT = "order:unit"
"""The column of responses with the codes of the batches, or micro-batches, that are ordered."""


def order_parts(ordered: Ordered, recipe: Recipe, reads: frozenset[str]) -> list[dict[str, Any]]:
    """Return the parts of the stages that find the cut of each batch; none if nothing is ordered.

    Args:
        ordered: what to order.
        recipe: has the micro-batches.
        reads: the token roles of what is ordered.
    """
    if not ordered:
        return []
    leading = {
        "map": partial(_map, ordered=ordered),
        "gather": partial(_boundaries, ordered=ordered),
    }
    trailing = {
        "map": partial(_map, ordered=ordered, trailing=True),
        "gather": partial(_cuts, ordered=ordered),
    }
    return [
        {"reduce": partial(_deal, recipe=recipe)},
        *({"reads": reads, **part} for part in (leading, trailing)),
    ]


def kept_in_order(batch: Batch, name: str, values: Array, rule: Rule) -> Array:
    """Return which tokens a rule keeps, [T] bool."""
    return rule.keeps(values, _on_tokens(batch, _UNIT), batch.shared[f"order:cuts:{name}"])


def _deal(responses: Responses, *, recipe: Recipe) -> Responses:
    """Add the batch or the micro-batch of each response."""
    if recipe.micro_batch is None and recipe.micro_batch_tokens is None:
        return responses.with_(**{_UNIT: responses["batch"]})
    split = Split(micro=recipe.micro_batch, micro_tokens=recipe.micro_batch_tokens)
    dealt = Dealt.of(StepLayout(split), responses["batch"], responses["length"])
    return responses.with_(**{_UNIT: dealt.micro})


def _map(batch: Batch, *, ordered: Ordered, trailing: bool = False) -> dict[str, Array]:
    """Return the codes of the values that are ordered, [T] int64 each."""
    unit = _on_tokens(batch, _UNIT)
    competes = batch.mask & _on_tokens(batch, "kept")
    competes = competes & batch[ONCE] if ONCE in batch else competes
    mapped: dict[str, Array] = {}
    for name, (values_of, _) in ordered.items():
        values = values_of(batch)
        if trailing:
            bins = batch.shared[f"order:bins:{name}"]
            mapped[name] = trailing_codes(values, unit, competes, bins)
        else:
            mapped[name] = leading_codes(values, unit, competes)
    return mapped


def _boundaries(
    responses: Responses, parts: Iterable[dict[str, Column]], *, ordered: Ordered
) -> Responses:
    """Share the bin of each batch in which its cut is."""
    shared: dict[str, Column] = {}
    for name, tally in _tallies(parts, [*ordered], LEADING).items():
        boundary = ordered[name][1].boundary(tally, int(responses[_UNIT].max()) + 1)
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
