"""Evidence of why rollout engine and trainer give the same tokens different log-probs.

With q the engine's log-prob of a token that it sampled, p the trainer's and d = p - q. If tokens
were sampled from exp(q), then E[exp(d)] is the mass that the trainer gives to tokens which the
engine can sample: 1, or less if sampling was truncated. Weights, temperature and precision leave it
at 1 in each context. So exp(d) less its mean is uncorrelated with what depends on the context
alone, which identifies a temperature without a look at the logits.

Standard errors count windows of neighbouring tokens, since tokens of a response are dependent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Codes = NDArray[np.int64]
    Flags = NDArray[np.bool_]


MOST_NATS = 5.0  # that one token counts
STRATA = 16
LAGS = (-1, 0, 1)
_BODY = (-5.0, -0.3)  # log-probs of tokens that are neither nearly certain nor rare
_OUTLIER = 6.0  # times the 90 % quantile of |d|
_PLAUSIBLE = 0.1, 10.0  # temperatures
_TINY = 1e-5  # nats: of float32 kernels
_FARTHER = 2.0  # times: a mean ratio's distance from 1, to that of the sampled column
_MOST_RATIO = np.log(5.0)
_LEAST = 64  # tokens of a quantile or a mean of squares
_NEARLY_CERTAIN = 0.1985  # nats of entropy: one token has at least 0.95, the others at most 0.05
LARGEST_NOISE = 0.03
"""Of numerical noise, nats, root mean square: a k3 of 0.0005; bfloat16 kernels have 0.01."""


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error."""

    value: float
    error: float

    def z(self, null: float) -> float:
        """Return the distance from a value in standard errors; 0 without an error."""
        return (self.value - null) / self.error if self.error > 0 else 0.0


def capped_squares(d: Floats) -> Floats:
    """Return d², each |d| at most 5 nats, so that a single token is not the whole gap, [t]."""
    return np.minimum(np.abs(d), MOST_NATS) ** 2


def quantile_bins(values: Floats, count: int = STRATA) -> Codes:
    """Return the bin of each value, in bins of nearly equal counts, [t]; equal values share one."""
    if not len(values):
        return np.zeros(0, np.int64)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)[1:-1]))
    return np.asarray(np.searchsorted(edges, values, side="right"), np.int64)


def codes_of(values: Codes) -> Codes:
    """Return numbers from 0 in the order of the values, [t]."""
    return np.unique(values, return_inverse=True)[1].reshape(-1)


def sums_of(values: Floats, codes: Codes, count: int | None = None) -> Floats:
    """Return the sum of the values of each code, [count]."""
    size = int(codes.max(initial=-1)) + 1 if count is None else count
    return np.asarray(np.bincount(codes, values, size), np.float64)


def ratio_of_sums(above: Floats, below: Floats, window: Codes) -> Estimate:
    """Return Σabove / Σbelow, with the standard error over windows (delta method).

    Args:
        above: [t].
        below: [t].
        window: [t] codes of the windows.
    """
    over, under = sums_of(above, window), sums_of(below, window)
    total = under.sum()
    if total == 0:
        return Estimate(0.0, 0.0)
    value = over.sum() / total
    rest = over - value * under
    count = max(len(over), 2)
    return Estimate(float(value), float(np.sqrt((rest @ rest) * count / (count - 1)) / abs(total)))


def mean_ratio(d: Floats, window: Codes) -> Estimate:
    """Return the mean of exp(d), which is 1 if tokens were sampled from the engine's log-probs.

    Less is the probability mass that truncated sampling kept: E[π/π_s] over the tokens that can be
    sampled is the sum of π over them. More: they were sampled from another distribution.

    Args:
        d: [t] log-ratios; to test the trainer's column, -d.
        window: [t] codes of the windows.
    """
    ratio = np.exp(np.clip(d, -20.0, 20.0))
    return ratio_of_sums(ratio, np.ones_like(ratio), window)


@dataclass(frozen=True)
class SampledColumn:
    """The column of log-probs that tokens were sampled from."""

    engine: bool
    """Whether it is the engine's, whose mean inverse ratio is nearer to 1."""
    forward: Estimate
    """Mean of trainer / engine: 1 if tokens were sampled from the engine's log-probs."""
    backward: Estimate
    """Mean of engine / trainer: 1 if they were sampled from the trainer's."""
    z: float
    """How sure it is that tokens were not sampled from the other; 0 if neither is near 1."""


def sampled_column(d: Floats, window: Codes) -> SampledColumn:
    """Return which column tokens were sampled from.

    Args:
        d: [t] log-ratios trainer - engine.
        window: [t] codes of the windows.
    """
    forward, backward = mean_ratio(d, window), mean_ratio(-d, window)
    near, far = (abs(np.log(ratio.value)) for ratio in (forward, backward))
    engine = bool(near <= far)
    sure = max(near, far) > _FARTHER * min(near, far)
    # Capped ratios have a lower mean, so one above 1 is evidence, which no outlier blurs.
    capped = mean_ratio(np.minimum(-d if engine else d, _MOST_RATIO), window)
    return SampledColumn(engine, forward, backward, capped.z(1.0) if sure else 0.0)


@dataclass(frozen=True)
class Temperature:
    """A temperature that one side applied and the other did not."""

    value: Estimate
    """Of the sampled column: below 1 if it is sharper than the other; the error has its noise."""
    z: float
    """Distance of the value from 1 in its standard errors by chance alone."""
    correlation: float
    """Of d and surprisal within contexts of equal entropy; without entropies, over all tokens."""
    explained: Floats
    """[t] the part of d that it explains; zeros without entropies."""
    share: float
    """Of Σ d²; 1 without entropies."""


def temperature(
    d: Floats, sampled: Floats, entropy: Floats | None, window: Codes
) -> Temperature | None:
    """Return the temperature T by which q, the sampled column, differs from the other.

    With q = log softmax(z / T) and p = log softmax(z), in each context

        d = p - q = (1 - T)·(-q) + c,   E[exp(d)] constant

    where c depends on the context alone. So exp(d) less its mean is uncorrelated with c: it is the
    instrument of a regression of d on the surprisal -q, whose slope is 1 - T, exactly. Noise of
    the log-probs adds its square to Σ exp(d)·d, so the error allows for LARGEST_NOISE. With the
    column of entropies, the slope within contexts of equal entropy hardly depends on noise, but
    these contexts are only similar: the error has its distance from the slope by the instrument.

    Args:
        d: [t] of the other column minus the sampled one.
        sampled: [t] q.
        entropy: [t] of either policy, or None.
        window: [t] codes of the windows.

    Returns:
        None if d does not vary, or if the implied T is not between 0.1 and 10.
    """
    if len(d) < _LEAST or np.ptp(d) == 0 or np.ptp(sampled) == 0:
        return None
    strata = np.zeros(len(d), np.int64)
    if entropy is not None:
        strata = quantile_bins(entropy, max(min(4 * STRATA, len(d) // _LEAST), 1))
    x, y, w = (_within(values, strata) for values in (-sampled, d, np.exp(np.minimum(d, 20.0))))
    xx, xy, yy = float(x @ x), float(x @ y), float(y @ y)
    if not (xx and xy and yy):
        return None
    slope = exact = ratio_of_sums(w * y, w * x, window)
    bias, part, share = LARGEST_NOISE**2 * len(d) / max(abs(float(w @ x)), 1e-12), d * 0, 1.0
    if entropy is not None:
        slope = ratio_of_sums(x * y, x * x, window)
        bias = slope.value - exact.value
        part = slope.value * x - slope.value**2 / 2 * (x * x - _within(x * x, strata))
        share = max(0.0, 1 - float(capped_squares(d - part).sum() / capped_squares(d).sum()))
    value = Estimate(1 - slope.value, float(np.hypot(slope.error, bias)))
    if not _PLAUSIBLE[0] < value.value < _PLAUSIBLE[1]:
        return None
    return Temperature(value, -slope.z(0.0), xy / (xx * yy) ** 0.5, part, share)


def _within(values: Floats, strata: Codes) -> Floats:
    """Return values less the mean of their stratum, [t]."""
    return values - (sums_of(values, strata) / np.maximum(np.bincount(strata), 1))[strata]


def entropy_deficit(log_prob: Floats, entropy: Floats, window: Codes) -> Estimate:
    """Return E[-log p - H] over E[H]: 0 if tokens were sampled from p, below if sharper.

    Args:
        log_prob: [t].
        entropy: [t] of the same policy, nats.
        window: [t] codes of the windows.
    """
    return ratio_of_sums(-log_prob - entropy, entropy, window)


def rare_tokens(log_prob: Floats, entropy: Floats) -> tuple[int, float]:
    """Return how many tokens of nearly certain contexts are not the likeliest, and the expectation.

    Where the likeliest token has π > 1/2, the policy itself samples another (1 - π) / π times as
    often. Top-p and min-p sample none there; a temperature below 1 samples fewer.

    Args:
        log_prob: [t].
        entropy: [t] of the same policy, nats.
    """
    p = np.exp(log_prob[entropy < _NEARLY_CERTAIN])
    likeliest = p > 0.5  # noqa: PLR2004
    return int(np.count_nonzero(~likeliest)), float((1 / p[likeliest] - 1).sum())


def heavy_tail(d: Floats, sampled: Floats, least: float = 1e-12) -> tuple[Flags, float]:
    """Return tokens with over 6 times the |d| of nine in ten others, and their share of Σ d².

    The scale is that of tokens which are neither nearly certain nor rare: nearly certain tokens
    hardly differ for any reason, so their outliers are no evidence. Of a normal distribution, 1 in
    10^22 is an outlier.

    Args:
        d: [t].
        sampled: [t] log-probs of the sampled column.
        least: nats that an outlier has.
    """
    size = np.abs(d)
    body = (sampled > _BODY[0]) & (sampled < _BODY[1])
    if np.count_nonzero(body) < _LEAST:
        body = np.ones(len(d), np.bool_)
    scale, strata = 0.0, quantile_bins(sampled[body], STRATA // 2)
    for code in range(int(strata.max(initial=-1)) + 1):
        sizes = size[body][strata == code]
        if len(sizes) >= _LEAST:
            scale = max(scale, float(np.quantile(sizes, 0.9)))
    tokens, squares = size > max(_OUTLIER * scale, least), capped_squares(d)
    total = squares.sum()
    return tokens, float(squares[tokens].sum() / total) if total else 0.0


def clustering(chosen: Flags, labels: Codes) -> float:
    """Return how far chosen tokens' labels are from those of all tokens, beyond chance.

    It is Σ |difference of shares|, from 0 to 2, less what as many random tokens have.

    Args:
        chosen: [t].
        labels: [t] codes; negative ones are one label.
    """
    count, width = np.count_nonzero(chosen), int(labels.max(initial=0)) + 2
    if not count:
        return 0.0
    share = np.bincount(labels + 1, minlength=width) / len(labels)
    of_chosen = np.bincount(labels[chosen] + 1, minlength=width) / count
    chance = np.sqrt(2 * share * (1 - share) / (np.pi * count)).sum()
    return float(np.abs(of_chosen - share).sum() - chance)


def size_ratio(
    d: Floats, chosen: Flags, others: Flags, strata: Codes, window: Codes
) -> Estimate | None:
    """Return the mean difference of log |d|, chosen tokens minus others, of like tokens.

    Args:
        d: [t].
        chosen: [t].
        others: [t] the tokens to compare with.
        strata: [t] codes of like tokens: only those of one code are compared.
        window: [t] codes of the windows.

    Returns:
        None unless both kinds have 64 tokens in common strata.
    """
    size, count = np.log(np.abs(d) + _TINY), int(strata.max(initial=0)) + 1
    left, right = (np.bincount(strata[flags], minlength=count) for flags in (chosen, others))
    common = left * right / np.maximum(left + right, 1)
    if min((counts * (common > 0)).sum() for counts in (left, right)) < _LEAST:
        return None
    value, noise = 0.0, np.zeros(len(d))
    for flags, counts, sign in ((chosen, left, 1), (others, right, -1)):
        means = sums_of(size[flags], strata[flags], count) / np.maximum(counts, 1)
        weight = sign * common / np.maximum(counts, 1)
        noise[flags] = weight[strata[flags]] * (size[flags] - means[strata[flags]])
        value += sign * float(common @ means / common.sum())
    error = ratio_of_sums(noise, np.full(len(d), common.sum() / len(d)), window).error
    return Estimate(value, error)


def larger_labels(d: Floats, labels: Codes) -> Codes:
    """Return the labels above the widest gap between mean sizes log |d| of labels.

    Args:
        d: [t].
        labels: [t] codes; negative ones are left out, and those of fewer than 64 tokens.
    """
    known = labels >= 0
    counts = np.bincount(labels[known])
    sizes = sums_of(np.log(np.abs(d[known]) + _TINY), labels[known]) / np.maximum(counts, 1)
    enough = np.flatnonzero(counts >= _LEAST)
    order = enough[np.argsort(sizes[enough], kind="stable")]
    if len(order) < 2:  # noqa: PLR2004
        return order[:0]
    return np.sort(order[np.argmax(np.diff(sizes[order])) + 1 :])


@dataclass(frozen=True)
class LagSlope:
    """How d² grows with the lag between the policy that sampled and the one that trains."""

    slope: Estimate
    """Of d² for each version, relative to the mean d²."""
    floor: float
    """Mean d² at lag 0, relative to the mean d²: the share that is no staleness."""
    by_lag: dict[float, float]
    """Root mean square of d, nats."""


def lag_slope(squares: Floats, lag: Floats, window: Codes) -> LagSlope | None:
    """Return the regression of d² on the lag; None if all tokens have one lag.

    Args:
        squares: [t] d².
        lag: [t] versions; NaN tokens are left out.
        window: [t] codes of the windows.
    """
    known = np.isfinite(lag)
    squares, lag, window = squares[known], lag[known], codes_of(window[known])
    if not len(lag) or np.ptp(lag) == 0 or not squares.any():
        return None
    y = squares / squares.mean()
    x = lag - lag.mean()
    value = float(x @ y / (x @ x))
    rest = sums_of(x * (y - 1 - value * x), window)
    slope = Estimate(value, float(np.sqrt(rest @ rest) / (x @ x)))
    values, codes = np.unique(lag, return_inverse=True)
    counts = np.bincount(codes)
    means = sums_of(squares, codes) / counts
    floor = float(1 - value * lag.mean())
    if counts[0] >= _LEAST and values[0] >= 0:
        # The lowest lag itself; extrapolated to lag 0 with the slope from there, if it is above.
        low, rest_mean = means[0] / squares.mean(), float((y[lag > values[0]]).mean())
        step = (rest_mean - low) / (lag[lag > values[0]].mean() - values[0])
        floor = float(low - step * values[0])
    by_lag = {float(v): float(m**0.5) for v, m in zip(values, means, strict=True)}
    return LagSlope(slope, min(max(floor, 0.0), 1.0), by_lag)


def differences_by_shift(old: Floats, infer: Floats, window: Codes) -> dict[int, Estimate]:
    """Return the mean |old[t] - infer[t + lag]| by lag, of the same tokens.

    Tokens are in order within windows; each difference counts at most 5 nats.

    Args:
        old: [t].
        infer: [t].
        window: [t] codes of the windows, whose tokens are neighbours.
    """
    inner = np.flatnonzero((window[2:] == window[1:-1]) & (window[1:-1] == window[:-2])) + 1
    ones, windows = np.ones(len(inner)), codes_of(window[inner])
    sizes = {lag: np.abs(old[inner] - infer[inner + lag]) for lag in LAGS}
    return {lag: ratio_of_sums(np.minimum(d, MOST_NATS), ones, windows) for lag, d in sizes.items()}


def _on_decimals(places: int, values: NDArray[Any]) -> NDArray[Any]:
    """Return which numbers are rounded, up to what float32 makes of them."""
    scaled = values * 10.0**places
    error = np.abs(values) * np.finfo(np.float32).eps * 10.0**places
    return np.asarray(np.abs(scaled - np.rint(scaled)) <= error)


GRIDS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "bfloat16": lambda values: (values.astype(np.float32).view(np.uint32) & 0xFFFF) == 0,
    "float16": lambda values: values.astype(np.float16) == values,
    **{f"{places} decimals": partial(_on_decimals, places) for places in (2, 3, 4)},
}
"""Whether log-probs are on a grid: that of a narrow format, or of rounded decimals."""


def grid_of(values: Floats) -> str | None:
    """Return the coarsest grid that 99 % of the log-probs are on; None if there is none.

    Args:
        values: [t]; those above -0.05 are left out, where narrow formats are fine.
    """
    values = np.maximum(values[values < -0.05], -6e4)  # noqa: PLR2004 - float16 has up to 65504
    if len(values) < _LEAST:
        return None
    return next((name for name, grid in GRIDS.items() if grid(values).mean() > 0.99), None)  # noqa: PLR2004
