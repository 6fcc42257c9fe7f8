"""What every function here asks of its tensors, and how it says what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from rlpost.errors import DataError, UsageError
from rlpost.kernels.segments import compact_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch import Tensor


FLOATS = (torch.float32, torch.float64)


class Ragged(NamedTuple):
    """Where responses begin, and which of their tokens the policy produced."""

    offsets: Tensor
    """[N+1] int64."""
    mask: Tensor
    """[T] bool."""


def ragged(offsets: Tensor, mask: Tensor | None, tokens: Tensor) -> Ragged:
    """Offsets and mask of these tokens, checked and in the types of the kernels.

    Args:
        offsets: [N+1] whole numbers from 0 up to T, ascending.
        mask: [T] of any type, 0 on observations; None for all ones.
        tokens: [T], any tensor of the tokens.

    Raises:
        UsageError: they do not fit together.
    """
    size = tokens.numel()
    if tokens.dim() != 1 or offsets.dim() != 1 or offsets.is_floating_point():
        raise UsageError(
            f"tokens of shape {tuple(tokens.shape)} and {offsets.dtype} offsets of shape "
            f"{tuple(offsets.shape)}: [T] numbers and [N+1] whole numbers are needed; "
            "rlpost.functional.padded takes [B, T]"
        )
    offsets = offsets.to(tokens.device, torch.int64)
    ends = (0, 0) if not offsets.numel() else (int(offsets[0]), int(offsets[-1]))
    if not offsets.numel() or ends != (0, size) or bool((offsets.diff() < 0).any()):
        raise UsageError(
            f"offsets of {offsets.numel()} numbers from {ends[0]} to {ends[1]}: they must ascend "
            f"from 0 to the number of tokens, {size}"
        )
    if mask is None:
        return Ragged(offsets, torch.ones(size, dtype=torch.bool, device=tokens.device))
    if mask.shape != tokens.shape:
        raise UsageError(f"mask of shape {tuple(mask.shape)} for tokens of {tuple(tokens.shape)}")
    return Ragged(offsets, mask.to(tokens.device) != 0)


def floats(**tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the widest of their types.

    Raises:
        UsageError: one is neither float32 nor float64, or shapes differ.
    """
    (first, shape), *_ = ((name, one.shape) for name, one in tensors.items())
    for name, one in tensors.items():
        if one.dtype not in FLOATS:
            raise UsageError(
                f"{name} is {one.dtype}: float32 or float64 is needed, {name}.float() gives it"
            )
        if one.shape != shape:
            raise UsageError(
                f"{name} of shape {tuple(one.shape)} beside {first} of {tuple(shape)}: "
                "they must be the same"
            )
    widest = torch.float64 if any(x.dtype == torch.float64 for x in tensors.values()) else FLOATS[0]
    return tuple(one.to(widest) for one in tensors.values())


def per_response(name: str, numbers: Tensor, count: int) -> Tensor:
    """One number per response, [N]; raises UsageError where there are not N of them."""
    if numbers.shape != (count,):
        raise UsageError(
            f"{name} of shape {tuple(numbers.shape)}: one number for each of {count} responses "
            "is needed"
        )
    return numbers


def finite(name: str, numbers: Tensor) -> Tensor:
    """The numbers in float64, out of the graph; raises DataError where one is NaN or infinite."""
    found = numbers.detach().to(torch.float64)
    bad = int((~torch.isfinite(found)).sum())
    if bad:
        raise DataError(
            f"{name}: {bad} of {found.numel()} numbers are NaN or infinite; leave those responses "
            "out, or give them a number"
        )
    return found


def codes_of(groups: Tensor | Sequence[Hashable], rewards: Tensor) -> tuple[Tensor, int]:
    """Codes of groups from 0 without gaps, [N], and how many groups there are.

    Raises:
        UsageError: there is not one id for each reward.
    """
    if isinstance(groups, torch.Tensor):
        labels, codes = torch.unique(groups.to(rewards.device), return_inverse=True)
        count = labels.numel()
    else:
        places: dict[Hashable, int] = {}
        found = [places.setdefault(name, len(places)) for name in groups]
        codes, count = torch.tensor(found, dtype=torch.int64, device=rewards.device), len(places)
    if rewards.dim() != 1 or codes.shape != rewards.shape:
        raise UsageError(
            f"groups of shape {tuple(codes.shape)} for rewards of {tuple(rewards.shape)}: "
            "one id and one reward for each response are needed, [N]"
        )
    return codes, count


def on_policy_tokens(
    function: Callable[..., tuple[Tensor, ...]], where: Ragged, *columns: Tensor
) -> tuple[Tensor, ...]:
    """Run a function on the policy's tokens alone, and put 0 on the others.

    Args:
        function: takes columns of M tokens and offsets [N+1]; gives tensors of [M].
        where: the responses.
        columns: [T] each; what stands on observations is never looked at.
    """
    chosen = where.mask.nonzero().squeeze(1)
    found = function(
        *(column[chosen] for column in columns), compact_offsets(where.mask, where.offsets)
    )
    size = where.mask.numel()
    return tuple(one.new_zeros(size).index_copy(0, chosen, one) for one in found)
