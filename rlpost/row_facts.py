"""What a summary says of responses beyond sums: groups, coefficients; adds up over parts."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from rlpost.groups import group_statistics
from rlpost.kernels.segments import offsets_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.batch import Responses
    from rlpost.plan import Job

Json = dict[str, Any]
_MOST_SIZES = 100  # of groups, that are counted each


@dataclass(frozen=True)
class GroupFacts:
    """How many groups there are of each size, how many of one row or of equal rewards.

    Facts of sets of whole groups add up with `+`.
    """

    sizes: Counter[int] = field(default_factory=Counter)
    """Size -> groups of that size; rows that are left out of statistics do not count."""
    zero_variance: int = 0
    """Groups of several rows with equal rewards."""

    def __add__(self, other: GroupFacts) -> GroupFacts:
        return GroupFacts(self.sizes + other.sizes, self.zero_variance + other.zero_variance)

    def summary(self, columns: list[str]) -> Json:
        """What the summary says.

        Args:
            columns: which tell groups apart.
        """
        if not self.sizes:
            return {"count": 0, "single": 0, "zero_variance": 0, "size": None, "sizes": {}}
        return {
            "count": self.sizes.total(),
            "by": columns,
            "single": self.sizes[1],
            "zero_variance": self.zero_variance,
            "size": {"min": min(self.sizes), "median": self._median(), "max": max(self.sizes)},
            "sizes": dict(sorted(self.sizes.items())[:_MOST_SIZES]),
        }

    def _median(self) -> float:
        """The middle size, or the mean of the two in the middle."""
        total, ascending = self.sizes.total(), sorted(self.sizes)
        upto = list(accumulate(self.sizes[size] for size in ascending))
        low, high = (
            ascending[bisect_right(upto, place)] for place in ((total - 1) // 2, total // 2)
        )
        return (low + high) / 2


@dataclass(frozen=True)
class RowFacts:
    """What a summary says of some responses, besides what is counted by step and domain."""

    labels: Mapping[str, list[str | int]]
    """What the codes of steps, domains and cells stand for."""
    groups: GroupFacts | None
    """None where the input has no groups."""
    empty: int
    """Responses without a policy token."""
    coefficients: list[Json] | None = None
    """β of each batch, where it adapts."""
    unwhitened: int = 0
    """Responses that have the only token that counts in their batch, where that is whitened."""


def row_facts(job: Job, responses: Responses) -> RowFacts:
    """The facts of these responses."""
    return RowFacts(
        labels=responses.labels,
        groups=_groups(responses) if "group" in job.columns else None,
        empty=int((responses["tokens"] == 0).sum()),
        coefficients=_coefficients(job, responses),
        unwhitened=int(responses.columns.get("unwhitened", torch.zeros(0)).sum()),
    )


def _groups(responses: Responses) -> GroupFacts:
    rows = responses["valid"]
    moments, constant = group_statistics(responses, responses["reward"], rows=rows)
    first = _first_of_each(responses["group"][rows])
    size, equal = moments.number[rows][first].to(torch.int64), constant[rows][first]
    values, counts = torch.unique(size, return_counts=True)
    sizes = Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    return GroupFacts(sizes, int((equal & (size > 1)).sum()))


def _first_of_each(codes: torch.Tensor) -> torch.Tensor:
    """The position of one row of each code that occurs."""
    order = torch.argsort(codes, stable=True)
    counts = torch.unique_consecutive(codes[order], return_counts=True)[1]
    return order[offsets_of(counts)[:-1]]


def _coefficients(job: Job, responses: Responses) -> list[Json] | None:
    if job.shape.recipe.kl_target is None or "beta" not in responses:
        return None
    first = _first_of_each(responses["batch"])
    labels = responses.labels["batch"]
    betas = zip(responses["batch"][first].tolist(), responses["beta"][first].tolist(), strict=True)
    return [{"batch": labels[code], "coefficient": beta} for code, beta in betas]
