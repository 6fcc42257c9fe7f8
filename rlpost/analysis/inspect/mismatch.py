"""Rollout engine against trainer: causes, what corrections would do, histograms of log-ratios."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.inspect.causes import causes_of, unexplained
from rlpost.analysis.inspect.model import Correction, RatioHistogram
from rlpost.analysis.inspect.positions import span_text
from rlpost.kernels.corrections import divergence, importance_weights, log_weights
from rlpost.kernels.divergence import effective_sample_size
from rlpost.recipe.recipe import Filter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.causes import ComparedTokens
    from rlpost.analysis.inspect.model import Label, Mismatch
    from rlpost.analysis.inspect.selection import PassResult

    Floats = NDArray[np.float64]


CAP = 2.0
BOUNDS = (0.5, 5.0)  # IcePop, arXiv 2510.18855
FILTERS = ("sequence:ratio:0.5:2", "geometric:ratio:0.99:1.01")
BINS = 20
_OUTSIDE = 0.005  # share of log-ratios beyond the histograms' range, on either side
_MOST_LABELS = 8
_LEAST = 32  # tokens of a histogram


def with_causes(gap: Mismatch, reading: PassResult) -> Mismatch:
    """Return the facts with what the sample of tokens, and sums of responses, add to them."""
    selection, rows = reading.selection, reading.rows
    tokens = reading.sample.compared(rows, selection.machines)
    if tokens is None or not len(tokens):
        return gap
    edges, causes = _edges(tokens.old - tokens.infer), causes_of(tokens)
    return replace(
        gap,
        causes=causes,
        unexplained=unexplained(causes) if any(one.share for one in causes) else None,
        sampled=len(tokens),
        largest=reading.sample.largest_tokens(rows, reading.files),
        corrections=_corrections(tokens, rows["log_ratio"].to_numpy(), rows["compared"].to_numpy()),
        ratio_edges=edges,
        ratios=[*_by_position(tokens, edges), *_by_lag(tokens, edges), *_by_step(tokens, edges)],
    )


def _corrections(tokens: ComparedTokens, log_ratio: Floats, compared: Floats) -> list[Correction]:
    """Return what usual corrections touch: of tokens from the sample, of responses from all.

    A response is one token of Σd or mean d: the same formulas then have levels of responses.

    Args:
        tokens: the sample.
        log_ratio: [n] Σd of each response, NaN if unknown.
        compared: [n] its tokens.
    """
    found = [
        _weighted(f"--is-weight token --is-cap {CAP:g}", tokens.old, tokens.infer, cap=CAP),
        _weighted(
            "--is-weight token --is-mask {:g} {:g}".format(*BOUNDS),
            tokens.old, tokens.infer, bounds=BOUNDS,
        ),
    ]  # fmt: skip
    known = np.isfinite(log_ratio) & (compared > 0)
    total, mean = log_ratio[known], log_ratio[known] / compared[known]
    if not len(total):
        return found
    for level, values in (("sequence", total), ("geometric", mean)):
        options = f"--is-weight {level} --is-cap {CAP:g}"
        one = _weighted(options, values, np.zeros_like(values), cap=CAP)
        found.append(replace(one, tokens=None, responses=one.tokens))
    for text in FILTERS:
        own = Filter.of(text)
        values = divergence(
            total if own.level == "sequence" else mean, np.zeros_like(total),
            np.ones(len(total), np.bool_), np.arange(len(total) + 1),
            measure=own.measure, level="sequence",
        )  # fmt: skip
        rejected = float(((values < own.low) | (values > own.high)).mean())
        found.append(Correction(f"--is-filter {text}", None, rejected, None))
    return found


def _weighted(
    options: str, old: Floats, infer: Floats, *, cap: float = np.inf,
    bounds: tuple[float, float] = (0.0, np.inf),
) -> Correction:  # fmt: skip
    mask, offsets = np.ones(len(old), np.bool_), np.array([0, len(old)])
    logs = log_weights(old, infer, mask, offsets, level="token")
    weights = importance_weights(logs, cap=cap, bounds=bounds)
    touched = float((weights.truncated | weights.masked).mean())
    values = weights.values
    ess = effective_sample_size(len(values), float(values.sum()), float(values @ values))
    return Correction(options, touched, None, ess)


def _edges(d: Floats) -> list[float]:
    """Return the edges of the histograms: round, symmetric around 0."""
    low, high = np.quantile(d, [_OUTSIDE, 1 - _OUTSIDE])
    most = float(max(-low, high, 1e-6))
    unit = 10.0 ** np.floor(np.log10(most))
    most = next(unit * step for step in (1, 2, 5, 10) if unit * step >= most)
    return [float(f"{x:.6g}") for x in np.linspace(-most, most, BINS + 1)]


def _histogram(by: str, label: Label, d: Floats, edges: list[float]) -> list[RatioHistogram]:
    if len(d) < _LEAST:
        return []
    counts = np.histogram(np.clip(d, edges[0], edges[-1]), edges)[0].tolist()
    return [RatioHistogram(by, label, counts)]  # type: ignore[arg-type]


def _by_position(tokens: ComparedTokens, edges: list[float]) -> list[RatioHistogram]:
    """Return histograms of the policy tokens 0, 1 to 3, 4 to 15, and so on of their turns."""
    d, found, first = tokens.old - tokens.infer, [], 0
    while first <= tokens.since.max():
        end = max(first * 4, 1)
        own = (tokens.since >= first) & (tokens.since < end)
        label = span_text(first, end)
        found += _histogram("position", label, d[own], edges)
        first = end
    return found


def _by_lag(tokens: ComparedTokens, edges: list[float]) -> list[RatioHistogram]:
    if tokens.lag is None:
        return []
    d, known = tokens.old - tokens.infer, tokens.lag[np.isfinite(tokens.lag)]
    lags = np.unique(known)[:_MOST_LABELS].tolist()
    return [
        one for lag in lags for one in _histogram("lag", f"{lag:g}", d[tokens.lag == lag], edges)
    ]


def _by_step(tokens: ComparedTokens, edges: list[float]) -> list[RatioHistogram]:
    """Return histograms of at most 8 steps, evenly spread."""
    if tokens.step is None or len(tokens.steps) < 2:  # noqa: PLR2004
        return []
    d = tokens.old - tokens.infer
    codes = np.unique(np.linspace(0, len(tokens.steps) - 1, _MOST_LABELS).round().astype(int))
    return [
        one
        for code in codes.tolist()
        for one in _histogram("step", tokens.steps[code], d[tokens.step == code], edges)
    ]
