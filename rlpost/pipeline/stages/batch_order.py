"""Masks by the order of a batch's tokens: which of them a rule keeps, found in two passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.kernels.segments import spread
from rlpost.kernels.trimming import LEADING, Boundary, Tally, leading_codes, trailing_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rlpost.kernels.arrays import Array
    from rlpost.kernels.trimming import Rule
    from rlpost.pipeline.data import Batch, Column, Responses

    Ordered = dict[str, tuple[Callable[[Batch], Array], Rule]]
    """By name: what is ordered, [T], and the rule."""


def kept_in_order(batch: Batch, name: str, values: Array, rule: Rule) -> Array:
    """Return which tokens a rule keeps, [T] bool."""
    return rule.keeps(values, _on_tokens(batch, "batch"), batch.shared[f"order:cuts:{name}"])


def map_leading(batch: Batch, *, ordered: Ordered) -> dict[str, Array]:
    """Return the codes of the leading bits of the values that are ordered, [T] int64 each."""
    codes, competes = _competitors(batch)
    return {name: leading_codes(x(batch), codes, competes) for name, (x, _) in ordered.items()}


def map_trailing(batch: Batch, *, ordered: Ordered) -> dict[str, Array]:
    """Return the codes of the other bits of values in the bin of their batch's cut."""
    codes, competes = _competitors(batch)
    bins = {name: batch.shared[f"order:bins:{name}"] for name in ordered}
    return {
        name: trailing_codes(x(batch), codes, competes, bins[name])
        for name, (x, _) in ordered.items()
    }


def _competitors(batch: Batch) -> tuple[Array, Array]:
    """Return the batch of each token, and whether it competes, [T] each."""
    return _on_tokens(batch, "batch"), batch.mask & _on_tokens(batch, "kept")


def boundaries(
    responses: Responses, parts: Iterable[dict[str, Column]], *, ordered: Ordered
) -> Responses:
    """Share the bin of each batch in which its cut is."""
    shared: dict[str, Column] = {}
    for name, tally in _tallies(parts, [*ordered], LEADING).items():
        boundary = ordered[name][1].boundary(tally, int(responses["batch"].max()) + 1)
        shared |= {f"order:{part}:{name}": column for part, column in boundary._asdict().items()}
    return responses.sharing(**shared)


def cuts(
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
