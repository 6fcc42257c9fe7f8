"""The table of all responses, put together from the pieces of the first pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from rlpost.batch import Responses, concatenated
from rlpost.kernels.rewards import component_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlpost.recipe import Recipe

Label = str | int


class Collector:
    """Takes the row columns and measurements of piece after piece, in input order."""

    def __init__(self) -> None:
        self._numbers: list[Mapping[str, Tensor]] = []
        self._keys: dict[str, list[pa.Array]] = {}

    def add(self, rows: Mapping[str, Tensor | pa.Array], measured: Mapping[str, Tensor]) -> None:
        """Take the next piece: its keys and numbers, and what stages measured on it."""
        numbers = {name: value for name, value in rows.items() if isinstance(value, Tensor)}
        self._numbers.append({**numbers, **{name: value.cpu() for name, value in measured.items()}})
        for name, value in rows.items():
            if not isinstance(value, Tensor):
                self._keys.setdefault(name, []).append(value)

    def finish(self, recipe: Recipe) -> Responses:
        """The table, with codes in place of keys; it must have at least one row."""
        columns = concatenated(self._numbers)
        weights = recipe.component_weight
        if weights:
            components = torch.stack([columns[f"component:{name}"] for name in weights], dim=1)
            scale = torch.tensor(list(weights.values()), dtype=torch.float64)
            columns["reward"] = component_sum(components, scale)
        count = columns["reward"].numel()
        one = torch.zeros(count, dtype=torch.int64)
        codes: dict[str, Tensor] = {}
        labels: dict[str, list[Label]] = {}
        for name, chunks in self._keys.items():
            codes[name], dictionary = _encoded(chunks)
            if name in ("batch", "domain"):  # there may be millions of groups
                labels[name] = dictionary.to_pylist()
        step, steps = _in_order(codes.get("batch", one), labels.get("batch", ["all"]))
        domain, domains = codes.get("domain", one), labels.get("domain", ["all"])
        batch, batches = _batches(recipe.numerics.batch, step, steps, domain, domains)
        own = codes.get("group", torch.arange(count))
        finite = torch.ones(count, dtype=torch.bool)
        skip = recipe.numerics.missing_components == "skip"
        for name, column in columns.items():  # with `--nonfinite error` none of them gets here
            if column.is_floating_point() and not (skip and name.startswith("component:")):
                finite &= torch.isfinite(column).view(count, -1).all(1)
        columns |= {
            "reward": torch.where(finite, columns["reward"], 0.0),
            "valid": finite,
            "kept": finite.clone(),
            "step": step,
            "batch": batch,
            "domain": domain,
            "group": _joined(batch, len(batches), own),
        }
        cells, columns["cell"] = torch.unique(step * len(domains) + domain, return_inverse=True)
        ids = {"rollout", "traj_id", "state_id"}
        columns |= {name: code for name, code in codes.items() if name in ids}
        labels = {"step": steps, "batch": batches, "domain": domains, "cell": cells.tolist()}
        return Responses(columns, labels)


def _encoded(chunks: list[pa.Array]) -> tuple[Tensor, pa.Array]:
    """Codes in order of first appearance, [N] int64, and what they stand for."""
    types = {chunk.type for chunk in chunks}
    if len(types) > 1:  # one file's ids are numbers, another's strings
        chunks = [chunk.cast(pa.string()) for chunk in chunks]
    encoded: Any = pc.dictionary_encode(pa.chunked_array(chunks)).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0)
    indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return torch.from_numpy(indices), encoded.dictionary


def _in_order(codes: Tensor, labels: list[Label]) -> tuple[Tensor, list[Label]]:
    """Batches in the order of their numbers; names that are no numbers keep the input's order."""
    try:
        order = sorted(range(len(labels)), key=lambda place: int(labels[place]))
    except ValueError:
        return codes, labels
    rank = torch.empty(len(labels), dtype=torch.int64)
    rank[torch.tensor(order, dtype=torch.int64)] = torch.arange(len(labels))
    return rank[codes], [labels[place] for place in order]


def _batches(
    scope: str, step: Tensor, steps: list[Label], domain: Tensor, domains: list[Label]
) -> tuple[Tensor, list[Label]]:
    """What counts as one batch, by the recipe's numerics."""
    if scope == "all":
        return torch.zeros_like(step), ["all"]
    if scope == "step":
        return step, steps
    both, codes = torch.unique(step * len(domains) + domain, return_inverse=True)
    names = [
        f"{steps[code // len(domains)]}/{domains[code % len(domains)]}" for code in both.tolist()
    ]
    return codes, [*names]


def _joined(batch: Tensor, batches: int, group: Tensor) -> Tensor:
    """Codes of (batch, group), from 0 without gaps."""
    if batches == 1:
        return group
    groups = int(group.max()) + 1 if group.numel() else 1
    both: tuple[Tensor, Tensor] = torch.unique(batch * groups + group, return_inverse=True)
    return both[1]
