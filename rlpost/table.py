"""The table of all responses, put together from the pieces of the first pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from rlpost.batch import Responses
from rlpost.kernels.moments import dense
from rlpost.kernels.rewards import component_sum
from rlpost.parquet.bridge import to_numpy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.recipe import Recipe

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
    return dense(both, steps * domains)


def _joined(batch: Tensor, batches: int, group: Tensor) -> Tensor:
    """Codes of (batch, group), from 0 without gaps."""
    if batches == 1:
        return group
    groups = int(group.max()) + 1 if group.numel() else 1
    return dense(batch * groups + group, batches * groups)[1]
