"""Seeded random rollouts for comparisons: as a table for rlpost, as padded tensors for frameworks.

Rewards are multiples of 1/8, so that sums and means of equal rewards are exact in float32, which
some frameworks compute in. All other numbers are random. Groups of 1 to 5 responses are shuffled.
One group has equal rewards, one only zeros, and one of 4 has rewards that differ by 4e-6 alone, for
which ε of a standard deviation matters. Frameworks read neither `rollout_id`, by which two rows of
a group are one rollout, nor `failure`: presets that ignore them must set so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rlpost import Options, Recipe, enrich, functional

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.random import Generator
    from torch import Tensor

_GROUPS = (1, 2, 3, 4, 5, 3, 2, 4)
_EQUAL, _ZEROS, _CLOSE = 5, 6, 7
_LONGEST = 12
_SWITCHES = 0.3  # of a token to the other kind
_NOTHING = 0.2  # rewards that are 0


@dataclass(frozen=True, eq=False)
class PeerRollouts:
    """Responses with ragged tokens."""

    columns: Mapping[str, Any]
    """A list of arrays for each column of tokens, an array for each column of responses."""

    def __len__(self) -> int:
        """Return the number of responses."""
        return len(self.columns["reward"])

    @property
    def lengths(self) -> list[int]:
        """Tokens of each response."""
        return [len(row) for row in self.columns["response_mask"]]

    def with_(self, **columns: Any) -> PeerRollouts:
        """Return the rollouts with columns added or replaced; None removes one."""
        both = {**self.columns, **columns}
        return PeerRollouts({name: x for name, x in both.items() if x is not None})

    def table(self) -> pa.Table:
        """Return the rollouts as rlpost reads them."""
        arrays = {
            name: pa.array([list(row) for row in x]) if isinstance(x, list) else pa.array(x)
            for name, x in self.columns.items()
        }
        return pa.table(arrays)

    def padded(self, name: str, *, dtype: torch.dtype = torch.float64, fill: float = 0) -> Tensor:
        """Return a column of tokens as a framework has it, [N, T]."""
        rows = self.columns[name]
        out = torch.full((len(rows), max(self.lengths)), fill, dtype=dtype)
        for i, row in enumerate(rows):
            out[i, : len(row)] = torch.as_tensor(np.asarray(row), dtype=dtype)
        return out

    def of_responses(self, name: str) -> Tensor:
        """Return a column of responses, [N] float64."""
        return torch.as_tensor(np.asarray(self.columns[name]), dtype=torch.float64)

    @property
    def mask(self) -> Tensor:
        """The mask of policy tokens, [N, T] int64."""
        return self.padded("response_mask", dtype=torch.int64)

    @property
    def real(self) -> Tensor:
        """True on tokens, false on padding, [N, T] bool."""
        return torch.arange(max(self.lengths)) < torch.tensor(self.lengths)[:, None]

    def ragged(self, column: pa.ChunkedArray) -> Tensor:
        """Return a written column of tokens as a padded tensor, [N, T] float64."""
        return PeerRollouts({**self.columns, "written": column.to_pylist()}).padded("written")

    def flat(self, name: str) -> Tensor:
        """Return a column of tokens as rlpost.functional has it, [T] float64."""
        return torch.from_numpy(np.concatenate(self.columns[name])).double()

    def enriched(self, *emit: str, **options: Any) -> pa.Table:
        """Return the rollouts with the columns of a recipe for a framework without a preset.

        Each row is a response of its own, and none has failed, unless options say otherwise.
        """
        recipe = Recipe(emit=emit, **{"unit": "row", "failures": "keep", **options})
        return enrich(self.table(), recipe, Options(device="cpu"))[0]

    def policy_loss(self, **options: Any) -> tuple[Tensor, Tensor]:
        """Return rlpost's loss of the rollouts as one batch, and its gradient, [N, T]."""
        new = self.flat("log_probs").requires_grad_()
        columns = (self.flat(name) for name in ("old_log_probs", "advantages"))
        mask = torch.from_numpy(np.concatenate(self.columns["response_mask"]))
        others = {name: self.flat(name) for name in ("infer_log_probs", "ref_log_probs")}
        offsets = torch.tensor([0, *np.cumsum(self.lengths)])
        loss = functional.policy_loss(new, *columns, offsets, mask, **others, **options).loss
        (gradient,) = torch.autograd.grad(loss, new)
        rows = self.with_(gradient=[*gradient.split(self.lengths)])
        return loss.detach(), rows.padded("gradient")


def _mask(rng: Generator, length: int, *, turns: bool) -> np.ndarray:
    """Return runs of policy and observation tokens; all policy tokens without turns."""
    mask = np.ones(length, dtype=np.int64)
    if turns:
        switches = np.cumsum(rng.random(length) < _SWITCHES)
        mask = 1 - switches % 2
    return mask


@cache
def rollouts(
    seed: int,
    *,
    turns: bool = False,
    empty: bool = False,
    single: bool = True,
    process: bool = False,
    apart: float = 1.0,
    steps: int = 1,
) -> PeerRollouts:
    """Return random rollouts, the same for the same arguments.

    Args:
        seed: of the generator.
        turns: with observations, inside and at the end of responses.
        empty: two responses have no policy token.
        single: one group has a single response.
        process: with process rewards, on observations too.
        apart: mean of -log π, and factor of its distances from the reference and the engine. With
            60, some log-ratios exceed ±40.
        steps: number of batches, each with all groups; `step` is the column.
    """
    rng = np.random.default_rng(seed)
    sizes = _GROUPS if single else tuple(max(size, 2) for size in _GROUPS)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    groups = np.concatenate([rng.permutation(groups) for _ in range(steps)])
    number = len(groups)
    lengths = rng.integers(1, _LONGEST + 1, number)
    masks = [_mask(rng, length, turns=turns) for length in lengths]
    if empty:
        for i in rng.choice(number, 2, replace=False):
            masks[i] = np.zeros_like(masks[i])

    def tokens(scale: float = 1.0) -> list[np.ndarray]:
        return [rng.normal(0.0, scale, length) for length in lengths]

    places = [int((groups[:i] == group).sum()) for i, group in enumerate(groups)]
    added = {"token_rewards": tokens(0.2)} if process else {}
    old = [-rng.exponential(apart, length) for length in lengths]
    return PeerRollouts(
        {
            "prompt_id": np.array([f"p{group}" for group in groups]),
            "reward": _rewards(rng, groups),
            "response_mask": masks,
            "old_log_probs": old,
            "ref_log_probs": _moved(old, tokens(0.5 * apart)),
            "infer_log_probs": _moved(old, tokens(0.3 * apart)),
            "log_probs": _moved(old, tokens(0.4)),
            "values": tokens(),
            "sum_pi_squared": [rng.uniform(0.0, 1.0, length) for length in lengths],
            "reward_baseline": rng.integers(-8, 9, number) / 8,
            "right": _rewards(rng, groups),
            "form": _rewards(rng, groups),
            "step": np.repeat(np.arange(steps), number // steps),
            "rollout_id": np.array([f"{groups[i]}-{place // 2}" for i, place in enumerate(places)]),
            "failure": np.arange(number) % 3 == 0,
            **added,
        }
    )


def _moved(log_probs: list[np.ndarray], by: list[np.ndarray]) -> list[np.ndarray]:
    """Return other log-probs, none above 0."""
    return [np.minimum(a + b, 0.0) for a, b in zip(log_probs, by, strict=True)]


def _rewards(rng: Generator, groups: np.ndarray) -> np.ndarray:
    rewards = rng.integers(-16, 17, len(groups)) / 8
    rewards[rng.random(len(groups)) < _NOTHING] = 0.0
    rewards[groups == _EQUAL] = 1.125
    rewards[groups == _ZEROS] = 0.0
    close = groups == _CLOSE
    rewards[close] = 0.5 + rng.integers(0, 4, close.sum()) * 2.0**-18
    return rewards


def mini_batch(seed: int, *, equal: bool = False, **options: Any) -> PeerRollouts:
    """Return rollouts with observations and advantages: of each token, or equal in a response."""
    data, rng = rollouts(seed, turns=True, **options), np.random.default_rng(seed)
    of_responses = rng.normal(size=len(data))
    sizes = enumerate(data.lengths)
    return data.with_(
        advantages=[np.full(n, of_responses[i]) if equal else rng.normal(size=n) for i, n in sizes]
    )


def cases(framework: str, *columns: Any) -> list[Any]:
    """Return parameters for all combinations; ids begin with the framework, which they need."""
    missing = pytest.mark.skipif(
        find_spec(framework) is None, reason=f"`python -m tests.peers {framework}` runs this"
    )
    rows = product(*columns)
    return [pytest.param(*x, id="-".join(map(str, (framework, *x))), marks=missing) for x in rows]


def assert_same_loss(found: tuple[Tensor, Tensor], loss: Tensor, log_probs: Tensor) -> None:
    """Compare a loss and its gradient with those of a framework."""
    (gradient,) = torch.autograd.grad(loss, log_probs)
    torch.testing.assert_close(found[0], loss.detach(), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(found[1], gradient, rtol=1e-5, atol=1e-8)
    assert gradient.any()
