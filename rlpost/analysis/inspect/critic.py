"""Values of a critic against returns: losses, explained variance, calibration, λ of the targets.

The return of a token is the sum of the rewards from it to the end of its row (γ = 1, λ = 1): the
reward, and the token rewards of policy tokens. So no value is part of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from rlpost.analysis.inspect.columns import Block
from rlpost.analysis.inspect.positions import add_by_position, sums_by_position
from rlpost.analysis.inspect.token_model import (
    Calibration,
    CriticFacts,
    LambdaTarget,
    PositionError,
    StepError,
    TokenError,
    ValueLossFacts,
)
from rlpost.analysis.segments import segment_sums
from rlpost.kernels.moments import (
    TokenMoments,
    exact_means,
    exact_sums,
    keyed_moments,
    pooled_moments,
    token_moments,
)
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.values import explained_variance, huber, value_loss

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.positions import PositionSums
    from rlpost.analysis.inspect.selection import ColumnSelection, PassResult
    from rlpost.analysis.inspect.statistics import BinnedSums, TokenTotals

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


DECILES = 10
LAMBDAS = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)
_SMALLEST = 1e-30  # of λᵗ
_MOMENTS = ("return", "error")


class LossFormula(NamedTuple):
    """A value loss of released frameworks, with their default."""

    frameworks: str
    clip: float
    delta: float = math.inf


LOSSES = (
    LossFormula("verl 0.9.1, areal 1.0.4", 0.5),
    LossFormula("areal 1.0.4, huber", 0.5, 10.0),
    LossFormula("xtuner", 0.2),
)


def critic_rows(
    block: Block, rewards: Floats, totals: TokenTotals, bins: BinnedSums
) -> dict[str, Floats]:
    """Add a chunk to totals; return sums of each response, [n] each, NaN if a number is not finite.

    Args:
        block: with `values`, and `token_rewards` and `new_values` if there are columns.
        rewards: [n].
        totals: get sums over tokens, exactly.
        bins: get values and returns by value.
    """
    roles = [name for name in ("values", "token_rewards", "new_values") if name in block.values]
    policy = Block(block.offsets, block.mask, {name: block.values[name] for name in roles}).policy()
    offsets, columns = policy.offsets, {name: policy.values[name] for name in roles}
    good = np.isfinite(rewards) & (np.diff(offsets) > 0)
    for one in columns.values():
        good &= np.isfinite(segment_sums(one.astype(np.float64), offsets))
    if not good.all():
        kept = np.repeat(good, np.diff(offsets))
        columns = {name: one[kept] for name, one in columns.items()}
        offsets = np.concatenate([[0], np.diff(offsets)[good].cumsum()])
    numbers = {name: one.astype(np.float64) for name, one in columns.items()}
    rows = _sums(numbers, rewards[good], offsets, totals, bins)
    placed = {name: np.full(len(good), np.nan) for name in _NAMES}
    for name, own in rows.items():
        placed[name][good] = own
    return placed


_NAMES = [
    "critic:tokens",
    *(f"critic:{name}:{part}" for name in _MOMENTS for part in ("total", "squares")),
    *("critic:first:value", "critic:last:value", "critic:last:return"),
    *(f"critic:target:{lam}" for lam in LAMBDAS),
]


def critic_names(selection: ColumnSelection) -> list[str]:
    """Return the columns of `critic_rows`; none without values and rewards."""
    found = selection.critic_and_entropy and {"values", "reward"} <= selection.contents
    return _NAMES if found else []


def _sums(
    columns: dict[str, Floats], rewards: Floats, offsets: Integers, totals: TokenTotals,
    bins: BinnedSums,
) -> dict[str, Floats]:  # fmt: skip
    if not len(rewards):
        return {}
    values, lengths = columns["values"], np.diff(offsets)
    first, last = offsets[:-1], offsets[1:] - 1
    process = columns.get("token_rewards", np.zeros(1))
    returns = np.repeat(rewards, lengths)
    if "token_rewards" in columns:
        returns += reverse_scan(process, offsets, 1.0)
    error = returns - values
    bins.add(values, value=values, returns=returns)
    by_position = {"value": values, "returns": returns, "squares": error**2}
    add_by_position("critic.position", by_position, offsets, totals)
    rows = {"critic:tokens": lengths.astype(np.float64)}
    for name, numbers in zip(_MOMENTS, (returns, error), strict=True):
        moments = token_moments(numbers, None, offsets)
        rows[f"critic:{name}:total"], rows[f"critic:{name}:squares"] = moments[1:]
    rows["critic:first:value"], rows["critic:last:value"] = values[first], values[last]
    rows["critic:last:return"] = returns[last]
    _add_losses(columns, returns, offsets, totals)
    rows["critic:target:1.0"] = returns[first]
    ahead = np.append(values[1:], 0.0)
    ahead[last] = 0.0
    delta = ahead - values
    delta += process if "token_rewards" in columns else 0.0
    delta[last] += rewards
    at = np.arange(len(values)) - np.repeat(first, lengths)
    for lam in LAMBDAS[:-1]:
        powers = np.power(lam, np.arange(int(lengths.max())))
        powers[powers < _SMALLEST] = 0.0
        rows[f"critic:target:{lam}"] = values[first] + segment_sums(powers[at] * delta, offsets)
    return rows


def _add_losses(
    columns: dict[str, Floats], returns: Floats, offsets: Integers, totals: TokenTotals
) -> None:
    """Add the losses of the values after an update, or of the only ones that there are."""
    old = columns["values"]
    new = columns.get("new_values", old)
    for delta in {one.delta: None for one in LOSSES}:
        plain = huber(new - returns, delta)
        totals.add_exact(f"critic.plain.{delta}", segment_sums(plain, offsets))
    for one in LOSSES if "new_values" in columns else ():
        loss, _, clipped = value_loss(new, old, returns, clip=one.clip, delta=one.delta)
        totals.add_exact(f"critic.clipped.{one.frameworks}", segment_sums(loss, offsets))
        totals.add(f"critic.share.{one.frameworks}", np.count_nonzero(clipped))


def critic_facts(reading: PassResult) -> CriticFacts | None:
    """Return the statistics of the critic; None without values and rewards that are finite."""
    if "critic:tokens" not in reading.rows:
        return None
    rows = reading.rows.filter(pl.col("critic:tokens").is_finite())
    if not len(rows):
        return None
    whole = np.zeros(len(rows), np.int64)
    returns, error = (_moments(rows, name, whole, 1) for name in _MOMENTS)
    count, responses = np.array([int(returns.number[0])]), np.array([len(rows)])

    def mean(name: str) -> float:
        return float(exact_means(rows[name].to_numpy(), whole, responses)[0])

    def end(value: str, target: str) -> TokenError:
        squares = (rows[target] - rows[value]).to_numpy() ** 2
        rmse = math.sqrt(exact_means(squares, whole, responses)[0])
        return TokenError(len(rows), mean(value), mean(target), rmse)

    value = float(returns.mean[0] - error.mean[0])
    groups, lambdas = _lambdas(rows)
    return CriticFacts(
        tokens=int(count[0]),
        responses=len(rows),
        value=value,
        returns=float(returns.mean[0]),
        explained_variance=explained_variance(float(error.std[0]) ** 2, float(returns.std[0]) ** 2),
        rmse=_rmse(error, 0),
        first=end("critic:first:value", "critic:target:1.0"),
        last=end("critic:last:value", "critic:last:return"),
        losses=_losses(reading.totals, count),
        calibration=[
            Calibration(
                int(reading.critic.counts[part].sum()),
                reading.critic.mean("value", part),
                reading.critic.mean("returns", part),
            )
            for part in reading.critic.parts(DECILES)
        ],
        by_position=[*map(_position, _by_position(reading.totals))],
        steps=_steps(rows),
        groups=groups,
        lambdas=lambdas,
    )


def _moments(rows: pl.DataFrame, name: str, keys: Integers, count: int) -> Any:
    parts = (rows[f"critic:{one}"] for one in ("tokens", f"{name}:total", f"{name}:squares"))
    return pooled_moments(TokenMoments(*(one.to_numpy() for one in parts)), keys, count)


def _rmse(error: Any, at: int) -> float:
    """Return √(mean² + variance), with the variance of n numbers, not n - 1."""
    number, mean, std = (float(part[at]) for part in error)
    return math.sqrt(mean**2 + std**2 * (number - 1) / number)


def _by_position(totals: TokenTotals) -> list[PositionSums]:
    return sums_by_position("critic.position", ("value", "returns", "squares"), totals)


def _position(one: PositionSums) -> PositionError:
    value, returns, squares = one.means.values()
    return PositionError(one.tokens, value, returns, math.sqrt(squares), one.first, one.end)


def _losses(totals: TokenTotals, count: Integers) -> list[ValueLossFacts]:
    def mean(name: str) -> float | None:
        return float(totals.exact_means(name, count)[0]) if name in totals.digits else None

    return [
        ValueLossFacts(
            frameworks=one.frameworks,
            clip=one.clip,
            delta=one.delta if math.isfinite(one.delta) else None,
            plain=mean(f"critic.plain.{one.delta}") or 0.0,
            clipped=mean(clipped := f"critic.clipped.{one.frameworks}"),
            clipped_share=totals.count(f"critic.share.{one.frameworks}") / int(count[0])
            if clipped in totals.digits
            else None,
        )
        for one in LOSSES
    ]


def _steps(rows: pl.DataFrame) -> list[StepError]:
    """Return the steps, in the order of the input, or of numbers; none without several."""
    if "batch" not in rows or rows["batch"].drop_nulls().n_unique() < 2:  # noqa: PLR2004
        return []
    rows = rows.drop_nulls("batch")
    labels = rows["batch"].unique(maintain_order=True)
    labels = labels.sort() if labels.dtype.is_integer() else labels
    codes = rows["batch"].replace_strict(labels, np.arange(len(labels))).to_numpy()
    returns, error = (_moments(rows, name, codes, len(labels)) for name in _MOMENTS)
    return [
        StepError(
            label=label,
            tokens=int(returns.number[at]),
            explained_variance=explained_variance(error.std[at] ** 2, returns.std[at] ** 2),
            rmse=_rmse(error, at),
        )
        for at, label in enumerate(labels.to_list())
    ]


def _lambdas(rows: pl.DataFrame) -> tuple[int, list[LambdaTarget]]:
    """Return the number of groups of several responses, and the targets of each λ.

    Rows of later turns have another first state than their prompt, and are left out.
    """
    keys = [key for key in ("batch", "group") if key in rows]
    if "group" not in keys:
        return 0, []
    rows = rows.drop_nulls(keys)
    if "turn" in rows:
        rows = rows.filter(pl.col("turn") == pl.col("turn").min().over(keys))
    rows = rows.filter(pl.len().over(keys) > 1)
    if not len(rows):
        return 0, []
    codes = rows.select(pl.struct(keys).rank("dense") - 1).to_series().to_numpy().astype(np.int64)
    count = int(codes.max()) + 1
    whole = np.zeros(count, np.int64)
    returns = rows["critic:target:1.0"].to_numpy()

    def mean_square(values: Floats) -> float:
        return float(exact_sums(values, whole, 1)[0]) / count

    found = []
    for lam in LAMBDAS:
        targets = rows[f"critic:target:{lam}"].to_numpy()
        own, lead = (keyed_moments(one, codes, count) for one in (targets, targets - returns))
        bias = mean_square(lead.mean**2 - lead.std**2 / lead.number)
        found.append(LambdaTarget(lam, math.sqrt(max(bias, 0.0)), mean_square(own.std**2) ** 0.5))
    return count, found
