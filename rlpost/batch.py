"""The two shapes of data: Batch, tokens of some responses; Responses, a row for each of all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlpost.kernels.segments import count_true, lengths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Responses:
    """One row per response of the whole input, in input order, on the CPU.

    `columns` are [N]: numbers float64, codes int64, flags bool. The columns every input has:
    `reward` (as dumped), `tokens` (mask = 1), `length` (all), `batch`, `group`, `domain` (codes),
    `valid` (false where a number was not finite and the policy is to leave such rows out).
    """

    columns: Mapping[str, Tensor]
    labels: Mapping[str, list[str | int]] = field(default_factory=dict)
    """What the codes of `batch` and `domain` stand for."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What stages leave for the summary, besides columns."""
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    """Numbers that batches need besides those of their own rows."""

    def __len__(self) -> int:
        return int(self.columns["reward"].numel())

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def with_(self, **columns: Tensor) -> Responses:
        """The same rows with these columns added or replaced."""
        return replace(self, columns={**self.columns, **columns})

    def noting(self, **notes: Any) -> Responses:
        """The same rows with these notes added."""
        return replace(self, notes={**self.notes, **notes})

    def sharing(self, **shared: Tensor) -> Responses:
        """The same rows with these numbers for all batches added."""
        return replace(self, shared={**self.shared, **shared})

    def count(self, name: str) -> int:
        """How many codes a code column has."""
        if name in self.labels:
            return len(self.labels[name])
        return int(self[name].max()) + 1 if len(self) else 0

    def rows(self, start: int, stop: int) -> Responses:
        """A window of consecutive rows, sharing memory."""
        return replace(
            self, columns={key: value[start:stop] for key, value in self.columns.items()}
        )


@dataclass(frozen=True)
class Batch:
    """The tokens of consecutive responses, ragged, on the device that computes.

    `tokens` columns are [T]; `responses` columns are [n], the window of Responses that they
    belong to, once it is known.
    """

    offsets: Tensor
    mask: Tensor
    """[T] bool: the policy produced the token."""
    tokens: Mapping[str, Tensor]
    responses: Mapping[str, Tensor] = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    full: bool = False
    """Known to have no observation: the mask is true throughout."""

    def only(self, values: Tensor) -> Tensor:
        """The values where the policy produced the token, 0 elsewhere."""
        return values if self.full else torch.where(self.mask, values, 0.0)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each response, [n] int64."""
        return lengths(self.offsets)

    @property
    def policy_tokens(self) -> Tensor:
        """Tokens of each response that the policy produced, [n] int64."""
        return self.lengths if self.full else count_true(self.mask, self.offsets)

    def __getitem__(self, name: str) -> Tensor:
        return self.tokens[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tokens

    def with_(self, **tokens: Tensor) -> Batch:
        """The same responses with these token columns added or replaced."""
        return replace(self, tokens={**self.tokens, **tokens})

    def beside(self, responses: Responses, start: int) -> Batch:
        """This batch with its rows of the Responses table, which begin at `start`."""
        window = responses.rows(start, start + self.offsets.numel() - 1)
        device = self.offsets.device
        columns = {key: value.to(device) for key, value in window.columns.items()}
        shared = {key: value.to(device) for key, value in responses.shared.items()}
        return replace(self, responses=columns, shared=shared)


def joined(parts: Iterable[Mapping[str, Tensor]], rows: int) -> dict[str, Tensor]:
    """The columns of consecutive pieces, [rows] each, joined as they come.

    Were they kept apart until the last is there, their little tensors would lie scattered among
    the blocks that pieces leave behind, and memory would grow with the input.
    """
    columns: dict[str, Tensor] = {}
    first = 0
    for part in parts:
        for name, value in part.items():
            column = columns.setdefault(name, value.new_empty(rows, *value.shape[1:]))
            column[first : first + len(value)] = value
        first += max(map(len, part.values()), default=0)
    assert not columns or first == rows, f"{first} of {rows} rows came"
    return columns
