"""Checks of tensor arguments: shapes, dtypes, names, finite numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

import torch

from rlpost.errors import DataError, UsageError
from rlpost.kernels.host import all_true, with_host_copy
from rlpost.kernels.segments import compact_offsets, positions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch import Tensor


FLOATS = (torch.float32, torch.float64)


class Ragged(NamedTuple):
    """Offsets of responses, and the mask of their policy tokens."""

    offsets: Tensor
    """[N+1] int64."""
    mask: Tensor
    """[T] bool."""


def ragged(offsets: Tensor, mask: Tensor | None, tokens: Tensor) -> Ragged:
    """Check offsets and mask, and return them in the dtypes of the kernels.

    Args:
        offsets: [N+1] integers, ascending from 0 to T.
        mask: [T] of any dtype, 0 on observation tokens; None if there are none.
        tokens: [T], any tensor of the tokens.

    Raises:
        UsageError: the shapes or values do not match.
    """
    size = tokens.numel()
    if tokens.dim() != 1 or offsets.dim() != 1 or offsets.is_floating_point():
        raise UsageError(
            f"tokens of shape {tuple(tokens.shape)} and {offsets.dtype} offsets of shape "
            f"{tuple(offsets.shape)}: [T] numbers and [N+1] integers are needed; "
            "rlpost.functional.padded has functions of [B, T]"
        )
    host = offsets.to("cpu", torch.int64)  # the only wait for offsets on a GPU
    ends = (0, 0) if not host.numel() else (int(host[0]), int(host[-1]))
    if not host.numel() or ends != (0, size) or bool((host.diff() < 0).any()):
        raise UsageError(
            f"offsets of {offsets.numel()} numbers from {ends[0]} to {ends[1]}: they must ascend "
            f"from 0 to the number of tokens, {size}"
        )
    on_device = with_host_copy(offsets.to(tokens.device, torch.int64), host)
    return Ragged(on_device, mask_of(tokens, mask))


def mask_of(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mask as bool; all true for None.

    Raises:
        UsageError: the mask does not have the shape of the values.
    """
    if mask is None:
        if values.dim() == 1:
            return all_true(values.numel(), values.device)
        return torch.ones_like(values, dtype=torch.bool)
    if mask.shape != values.shape:
        raise UsageError(
            f"mask of shape {tuple(mask.shape)} for values of shape {tuple(values.shape)}: "
            "they must be the same"
        )
    return mask.to(values.device) != 0


def floats(**tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in the widest of their dtypes.

    Raises:
        UsageError: a tensor is neither float32 nor float64, or shapes differ.
    """
    check_tensors(**tensors)
    (first, shape), *_ = ((name, tensor.shape) for name, tensor in tensors.items())
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            raise UsageError(
                f"{name} is {tensor.dtype}: float32 or float64 is needed, such as {name}.float()"
            )
        if tensor.shape != shape:
            raise UsageError(
                f"{name} of shape {tuple(tensor.shape)} and {first} of shape {tuple(shape)}: "
                "they must be the same"
            )
    widest = torch.float64 if any(x.dtype == torch.float64 for x in tensors.values()) else FLOATS[0]
    return tuple(tensor.to(widest) for tensor in tensors.values())


def check_tensors(**tensors: object) -> None:
    """Check that arguments are tensors.

    Raises:
        UsageError: one is None or something else.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            came = "None" if tensor is None else type(tensor).__name__
            raise UsageError(f"{name} is {came}: a tensor is needed")


def per_response(name: str, numbers: Tensor, count: int) -> Tensor:
    """Return the numbers [N].

    Raises:
        UsageError: they are no tensor with one number for each response.
    """
    check_tensors(**{name: numbers})
    if numbers.shape != (count,):
        raise UsageError(
            f"{name} of shape {tuple(numbers.shape)}: ({count},) is needed, one number for each "
            "response"
        )
    return numbers


def one_of(name: str, value: str, values: Sequence[str]) -> None:
    """Check that a value is one of several.

    Raises:
        UsageError: it is not.
    """
    if value not in values:
        raise UsageError(f"{name} {value!r} is none of {', '.join(values)}")


def numbers(**options: object) -> None:
    """Check that options are numbers; None is the default of its option.

    Raises:
        UsageError: an option is a bool, NaN, or no number at all; also in a sequence of numbers.
    """
    for name, value in options.items():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            number = isinstance(one, Real) and not isinstance(one, bool) and not math.isnan(one)
            if not number and one is not None:
                raise UsageError(f"{name}={value!r}: a number is needed")


def finite_tokens(mask: Tensor, offsets: Tensor | None = None, **columns: Tensor) -> None:
    """Check that columns are finite wherever the mask is true.

    Args:
        mask: bool, of the columns' shape.
        offsets: [N+1] of the responses, for the error; None for tensors of any shape.
        columns: float tensors.

    Raises:
        DataError: a number is NaN or infinite, such as the log-prob of a token that the policy
            cannot sample; the first is named.
    """
    fine = [(torch.isfinite(column) | ~mask).all() for column in columns.values()]
    if not fine or bool(torch.stack(fine).all()):  # one wait for a GPU
        return
    for name, column in columns.items():
        bad = (~torch.isfinite(column) & mask).nonzero()
        if not len(bad):
            continue
        index = bad[0].tolist()
        where = f"index {index[0] if len(index) == 1 else tuple(index)}"
        if offsets is not None:
            row = int(torch.searchsorted(offsets, index[0], right=True)) - 1
            where = f"token {index[0] - int(offsets[row])} of response {row}"
        more = f" (and at {len(bad) - 1:,} more)" if len(bad) > 1 else ""
        raise DataError(
            f"{name}: is {float(column[tuple(index)])} at {where}{more}; finite numbers are needed "
            "where the mask is not 0: mask the response, or set a number"
        )


def finite(name: str, numbers: Tensor) -> Tensor:
    """Return the numbers in float64, detached from the graph.

    Raises:
        DataError: a number is NaN or infinite.
    """
    values = numbers.detach().to(torch.float64)
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        raise DataError(
            f"{name}: {bad} of {values.numel()} numbers are NaN or infinite; leave those responses "
            "out, or set a number"
        )
    return values


def codes_of(groups: Tensor | Sequence[Hashable], rewards: Tensor) -> tuple[Tensor, int]:
    """Return codes of the groups, from 0 without gaps, [N], and the number of groups.

    Raises:
        UsageError: there is not one id for each reward.
    """
    if isinstance(groups, torch.Tensor):
        labels, codes = torch.unique(groups.to(rewards.device), return_inverse=True)
        count = labels.numel()
    else:
        seen: dict[Hashable, int] = {}
        indices = [seen.setdefault(name, len(seen)) for name in groups]
        codes, count = torch.tensor(indices, dtype=torch.int64, device=rewards.device), len(seen)
    if rewards.dim() != 1 or codes.shape != rewards.shape:
        raise UsageError(
            f"groups of shape {tuple(codes.shape)} for rewards of shape {tuple(rewards.shape)}: "
            "one id and one reward for each response are needed, [N]"
        )
    return codes, count


def step_totals(
    totals: Mapping[str, int],
    own: Mapping[str, Tensor],
    checked: Sequence[str],
    *,
    masked: bool = True,
) -> dict[str, Tensor]:
    """Return the totals of a step as tensors beside those of a part of it.

    Args:
        totals: of the step.
        own: of the part.
        checked: totals that must be at least those of the part.
        masked: the part has a mask; else the error asks for one.

    Raises:
        UsageError: one is missing or no whole number, they contradict each other, or are less than
            those of the part.
    """
    needed = (
        f"a dict with {', '.join(own)} of the whole step is needed, such as batch['totals'] of "
        "rlpost.load"
    )
    if not isinstance(totals, Mapping):
        raise UsageError(f"totals={totals!r}: {needed}")
    numbers = {name: _count(totals.get(name)) for name in own}
    for name, number in numbers.items():
        if number is None:
            came = f"{name!r} is {totals[name]!r}" if name in totals else f"{name!r} is missing"
            raise UsageError(f"totals: {came}; {needed}, with whole numbers from 0")
    tokens, responses, rows, longest = (number or 0 for number in numbers.values())
    if not (responses <= tokens <= responses * longest and responses <= rows):
        raise UsageError(
            f"totals: {tokens} tokens, {responses} responses, {rows} rows and a longest of "
            f"{longest} contradict each other; {needed}"
        )
    parts = torch.stack([own[name] for name in checked]).tolist()  # one wait for a GPU
    for name, part in zip(checked, parts, strict=True):
        if (numbers[name] or 0) < part:
            raise UsageError(
                f"totals: {name!r} is {numbers[name]}, but the responses here have {part}; "
                f"{needed}, over all of its micro-batches and ranks"
                + ("" if masked else "; there is no mask=: pass that of the batch")
            )
    return {name: torch.tensor(numbers[name], device=one.device) for name, one in own.items()}


def _count(value: object) -> int | None:
    """Return a whole number from 0, also one of numpy or a tensor; None if it is none."""
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return number if number >= 0 else None


def on_policy_tokens(
    function: Callable[..., tuple[Tensor, ...]], responses: Ragged, *columns: Tensor
) -> tuple[Tensor, ...]:
    """Apply a function to the policy tokens, and return its results with 0 on the others.

    Args:
        function: of columns [M] of policy tokens and their offsets [N+1]; returns tensors [M].
        responses: offsets and mask.
        columns: [T] each; values of observation tokens are not used.
    """
    policy = positions_of(responses.mask)
    offsets = compact_offsets(responses.mask, responses.offsets)
    results = function(*(column[policy] for column in columns), offsets)
    size = responses.mask.numel()
    return tuple(result.new_zeros(size).index_copy(0, policy, result) for result in results)
