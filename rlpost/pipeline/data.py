"""The table of all responses, put together from the pieces of the first pass.

The two shapes of data: Batch, tokens of some responses; Responses, a row for each of all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from rlpost.io.arrow import to_numpy
from rlpost.kernels.moments import dense_codes
from rlpost.kernels.rewards import component_sum
from rlpost.kernels.segments import count_true, lengths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rlpost.recipe.recipe import Recipe


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


Label = str | int


class Collector:
    """Takes the row columns and measurements of piece after piece, in input order."""

    def __init__(self) -> None:
        self._numbers: list[dict[str, Tensor]] = []
        self._keys: dict[str, list[pa.DictionaryArray]] = {}

    def add(self, rows: Mapping[str, Tensor | pa.Array], measured: Mapping[str, Tensor]) -> None:
        """Take the next piece: its keys and numbers, and what stages measured on it."""
        numbers = {name: value for name, value in rows.items() if isinstance(value, Tensor)}
        self._numbers.append({**numbers, **{name: value.cpu() for name, value in measured.items()}})
        for name, value in rows.items():
            if not isinstance(value, Tensor):
                self._keys.setdefault(name, []).append(value.dictionary_encode())

    def finish(self, recipe: Recipe) -> Responses:
        """The table, with codes in place of keys; it must have at least one row, and is given once.

        What was collected is let go of as the table grows: there may be many millions of rows.
        """
        parts, self._numbers = self._numbers, []
        columns = {name: torch.cat([part.pop(name) for part in parts]) for name in [*parts[0]]}
        if torch.equal(columns["tokens"], columns["length"]):
            columns["tokens"] = columns["length"]
        weights = recipe.component_weight
        if weights:
            components = torch.stack([columns[f"component:{name}"] for name in weights], dim=1)
            scale = torch.tensor(list(weights.values()), dtype=torch.float64)
            columns["reward"] = component_sum(components, scale)
        count = columns["tokens"].numel()
        columns.setdefault("reward", torch.zeros(count, dtype=torch.float64))  # a loss needs none
        one = torch.zeros(1, dtype=torch.int64).expand(count)
        codes: dict[str, Tensor] = {}
        labels: dict[str, list[Label]] = {}
        for name in list(self._keys):
            codes[name], dictionary = _encoded(self._keys.pop(name))
            if name in ("batch", "domain"):  # there may be millions of groups
                labels[name] = dictionary.to_pylist()
        step, steps = _in_order(codes.get("batch", one), labels.get("batch", ["all"]))
        domain, domains = codes.get("domain", one), labels.get("domain", ["all"])
        batch, batches = _batches(recipe.numerics.batch, step, steps, domain, domains)
        own = codes.get("group", torch.arange(count))
        finite = _finite(columns, count, skip=recipe.numerics.missing_components == "skip")
        columns |= {
            "reward": torch.where(finite, columns["reward"], 0.0),
            "valid": finite,
            "kept": finite.clone(),
            "step": step,
            "batch": batch,
            "domain": domain,
            "group": _joined(batch, len(batches), own),
        }
        cells, columns["cell"] = _cells(step, len(steps), domain, len(domains))
        ids = {"rollout", "traj_id", "state_id"}
        columns |= {name: code for name, code in codes.items() if name in ids}
        labels = {"step": steps, "batch": batches, "domain": domains, "cell": cells.tolist()}
        return Responses(columns, labels)


def _finite(columns: Mapping[str, Tensor], count: int, *, skip: bool) -> Tensor:
    """Whether all numbers of each row are finite; with `--nonfinite error` all are by now.

    Args:
        columns: [count] or [count, k] each.
        count: rows.
        skip: leave components of the reward out.
    """
    finite = torch.ones(count, dtype=torch.bool)
    for name, column in columns.items():
        if column.is_floating_point() and not (skip and name.startswith("component:")):
            finite &= torch.isfinite(column).view(count, -1).all(1)
    return finite


def _encoded(chunks: list[pa.DictionaryArray]) -> tuple[Tensor, pa.Array]:
    """Codes in order of first appearance, [N] int64, and what they stand for."""
    if len({chunk.type for chunk in chunks}) > 1:  # one file's ids are numbers, another's strings
        chunks = [_as_strings(chunk) for chunk in chunks]
    unified = pa.chunked_array(chunks).unify_dictionaries()
    indices = np.empty(len(unified), dtype=np.int64)
    at = 0
    for chunk in unified.chunks:
        indices[at : at + len(chunk)] = to_numpy(chunk.indices)
        at += len(chunk)
    return torch.from_numpy(indices), unified.chunk(0).dictionary


def _as_strings(chunk: pa.DictionaryArray) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.string()))


def _in_order(codes: Tensor, labels: list[Label]) -> tuple[Tensor, list[Label]]:
    """Batches in order: their codes, and what these stand for."""
    order = ordered(labels)
    if order == [*range(len(labels))]:
        return codes, labels
    rank = torch.empty(len(labels), dtype=torch.int64)
    rank[torch.tensor(order, dtype=torch.int64)] = torch.arange(len(labels))
    return rank[codes], [labels[place] for place in order]


def ordered(labels: Sequence[Label]) -> list[int]:
    """The places of batches' labels in the order of the batches.

    It is that of their numbers; names that are no numbers keep the input's order.
    """
    try:
        return sorted(range(len(labels)), key=lambda place: int(labels[place]))
    except ValueError:
        return list(range(len(labels)))


def _batches(
    scope: str, step: Tensor, steps: list[Label], domain: Tensor, domains: list[Label]
) -> tuple[Tensor, list[Label]]:
    """What counts as one batch, by the recipe's numerics."""
    if scope == "all":
        return torch.zeros_like(step), ["all"]
    if scope == "step":
        return step, steps
    both, codes = _cells(step, len(steps), domain, len(domains))
    names = [
        f"{steps[code // len(domains)]}/{domains[code % len(domains)]}" for code in both.tolist()
    ]
    return codes, [*names]


def _cells(step: Tensor, steps: int, domain: Tensor, domains: int) -> tuple[Tensor, Tensor]:
    """The pairs of step and domain that occur, as one number each, and the place of each row's."""
    both = step if domains == 1 else step * domains + domain
    return dense_codes(both, steps * domains)


def _joined(batch: Tensor, batches: int, group: Tensor) -> Tensor:
    """Codes of (batch, group), from 0 without gaps."""
    if batches == 1:
        return group
    groups = int(group.max()) + 1 if group.numel() else 1
    return dense_codes(batch * groups + group, batches * groups)[1]
