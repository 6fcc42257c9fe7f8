"""Entropy of the policy by position, step and domain; covariance of log-prob and advantage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.advantages import TOTAL
from rlpost.analysis.inspect.columns import Block
from rlpost.analysis.inspect.positions import add_by_position, sums_by_position
from rlpost.analysis.inspect.token_model import Covariance, EntropyFacts, EntropyMean
from rlpost.analysis.segments import segment_sums
from rlpost.kernels.moments import exact_means, exact_sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.selection import ColumnSelection, PassResult
    from rlpost.analysis.inspect.statistics import BinnedSums, TokenTotals

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


TOP = 0.2
"""Share of tokens, those of the highest entropy (arXiv 2506.01939)."""
_POLICIES = ("old_log_probs", "log_probs", "infer_log_probs")
_COVARIANCE = ("entropy:l_tokens", "entropy:l", "entropy:a", "entropy:la")


def entropy_rows(
    selection: ColumnSelection, block: Block, extra: Mapping[str, NDArray[Any]],
    totals: TokenTotals, bins: BinnedSums,
) -> dict[str, Floats]:  # fmt: skip
    """Add a chunk to totals; return sums of each response, [n] each, NaN if a number is not finite.

    Args:
        selection: the columns that are read.
        block: with the log-probs.
        extra: [T] each of all its tokens: `entropy` and `advantages`, if there are columns.
        totals: get sums over tokens, exactly.
        bins: get entropies by size.
    """
    role = policy_role(selection.tokens)
    columns = {"l": block.values[role]} if role and role in block.values else {}
    columns |= {"h": extra["entropy"]} if "entropy" in extra else {}
    columns |= {"a": extra["advantages"]} if "advantages" in extra and columns else {}
    policy = Block(block.offsets, block.mask, columns).policy()
    own = {name: one.astype(np.float64) for name, one in policy.values.items()}
    if "h" not in own:
        own["h"] = -own["l"]
    offsets, lengths = policy.offsets, np.diff(policy.offsets)
    sums = {name: segment_sums(one, offsets) for name, one in own.items()}
    if "a" in own:
        sums["la"] = segment_sums(own["l"] * own["a"], offsets)
    good = np.isfinite(sums["h"])
    rows = {"entropy:tokens": np.where(good, lengths, 0), "entropy:sum": sums.pop("h")}
    if "l" in own:
        finite = np.all([np.isfinite(one) for one in sums.values()], axis=0)
        rows["entropy:l_tokens"] = np.where(finite, lengths, 0)
    rows |= {f"entropy:{name}": one for name, one in sums.items()}
    entropy = own["h"]
    if not good.all():
        entropy = entropy[np.repeat(good, lengths)]
        offsets = np.concatenate([[0], lengths[good].cumsum()])
    bins.add(entropy, entropy=entropy)
    add_by_position("entropy.position", {"mean": entropy}, offsets, totals)
    return {name: one.astype(np.float64) for name, one in rows.items()}


def entropy_names(selection: ColumnSelection) -> list[str]:
    """Return the columns of `entropy_rows`; none without entropies and log-probs."""
    if not selection.critic_and_entropy:
        return []
    role = policy_role(selection.tokens)
    names = ["entropy:tokens", "entropy:sum"] if role or selection.entropy else []
    names += ["entropy:l_tokens", "entropy:l"] if role else []
    return names + (["entropy:a", "entropy:la"] if role and selection.advantages else [])


def policy_role(roles: Any) -> str | None:
    """Return the role of the log-probs: those of the trainer before the update, if they exist."""
    return next((role for role in _POLICIES if role in roles), None)


def entropy_facts(reading: PassResult) -> EntropyFacts | None:
    """Return the statistics of the entropy; None without entropies and log-probs."""
    rows, selection = reading.rows, reading.selection
    if "entropy:tokens" not in rows:
        return None
    counted = rows.filter(pl.col("entropy:tokens").fill_nan(0) > 0)
    if not len(counted):
        return None
    role = policy_role(selection.tokens)
    log_probs = selection.columns.column(role) if role else None
    (whole,) = _means(counted.with_columns(all=pl.lit("")), "all")
    share, top, least = _top(reading.entropies, whole)
    advantages, covariance = _covariances(reading)
    return EntropyFacts(
        column=selection.entropy or log_probs or "",
        sampled=selection.entropy is None,
        tokens=whole.tokens,
        responses=len(counted),
        mean=whole.mean,
        top_share=share,
        top_mean=top,
        top_least=least,
        by_position=[
            EntropyMean(one.label, one.tokens, one.means["mean"])
            for one in sums_by_position("entropy.position", ("mean",), reading.totals)
        ],
        steps=_means(counted, "batch"),
        domains=_means(counted, "domain"),
        advantages=advantages,
        log_probs=log_probs if covariance else None,
        covariance=covariance,
    )


def _top(bins: BinnedSums, whole: EntropyMean) -> tuple[float | None, float, float]:
    """Return the share of the sum in the highest tokens, their mean, and the lowest of them.

    Of the bin that has the last of them, tokens count with its mean.
    """
    wanted = max(TOP * whole.tokens, 1.0)
    above = bins.counts[::-1].cumsum()[::-1]
    last = int(np.flatnonzero(above >= wanted)[-1])
    size, parts = len(bins.counts), (slice(last + 1, None), slice(last, last + 1))
    higher = int(above[last + 1]) if last + 1 < size else 0
    most, edge = (bins.mean("entropy", part) for part in parts)
    total = most * higher + edge * (wanted - higher)
    of = whole.mean * whole.tokens
    return (total / of if of > 0 else None), total / wanted, edge


def _labels(rows: pl.DataFrame, key: str) -> tuple[list[Any], Integers]:
    """Return the labels of a key, numbers in order, and the code of each row."""
    labels = rows[key].unique(maintain_order=True)
    labels = labels.sort() if key == "domain" or labels.dtype.is_integer() else labels
    codes = rows[key].replace_strict(labels, np.arange(len(labels))).to_numpy()
    return labels.to_list(), codes.astype(np.int64)


def _means(rows: pl.DataFrame, key: str) -> list[EntropyMean]:
    """Return the mean of each label; none without the key."""
    if key not in rows or not len(rows := rows.drop_nulls(key)):
        return []
    labels, codes = _labels(rows, key)
    counts = np.bincount(codes, rows["entropy:tokens"].to_numpy()).astype(np.int64)
    means = exact_means(rows["entropy:sum"].to_numpy(), codes, counts)
    return [*map(EntropyMean, labels, counts.tolist(), means.tolist())]


def _covariances(reading: PassResult) -> tuple[str | None, list[Covariance]]:
    """Return what the advantages are, and their covariances with log-probs; none if unknown."""
    rows, column = reading.counted_rows, reading.selection.advantages
    if "entropy:l" not in rows:
        return None, []
    tokens = pl.col("entropy:l_tokens")
    if "entropy:a" in rows and rows["entropy:a"].is_finite().any():
        advantages: str | None = column
    elif column is not None and TOTAL in rows:
        advantages, rows = column, _per_row(rows, pl.col(TOTAL))
    elif {"reward", "group"} <= {*rows.columns}:
        keys = [key for key in ("batch", "group") if key in rows]
        advantages = "reward minus the mean of its group"
        rows = rows.filter(pl.col("reward").is_finite()).drop_nulls(keys)
        rows = _per_row(rows, pl.col("reward") - _group_means(rows, keys))
    else:
        return None, []
    kept = pl.col("kept") if "kept" in rows else True
    rows = rows.filter((tokens.fill_nan(0) > 0) & pl.col("entropy:a").is_finite() & kept)
    steps = _by_step(rows)
    total = sum(one.tokens for one in steps)
    if not total:
        return None, []
    mean = float(sum(one.value * one.tokens for one in steps) / total)
    return advantages, [Covariance(None, total, mean), *(steps if len(steps) > 1 else [])]


def _per_row(rows: pl.DataFrame, advantage: pl.Expr | pl.Series) -> pl.DataFrame:
    """Return the rows with the sums of tokens that have the advantage of their response."""
    rows = rows.with_columns(advantage.alias("own"))
    return rows.with_columns(
        (pl.col("own") * pl.col("entropy:l_tokens")).alias("entropy:a"),
        (pl.col("own") * pl.col("entropy:l")).alias("entropy:la"),
    )


def _group_means(rows: pl.DataFrame, keys: list[str]) -> pl.Series:
    if not len(rows):
        return pl.Series([], dtype=pl.Float64)
    codes = rows.select(pl.struct(keys).rank("dense") - 1).to_series().to_numpy().astype(np.int64)
    means = exact_means(rows["reward"].to_numpy(), codes, np.bincount(codes))
    return pl.Series(means[codes])


def _by_step(rows: pl.DataFrame) -> list[Covariance]:
    """Return the covariance of each step; of the whole input without steps."""
    if "batch" in rows:
        rows = rows.drop_nulls("batch")
    if not len(rows):
        return []
    labels, codes = _labels(rows, "batch") if "batch" in rows else ([""], np.zeros(len(rows), int))
    sums = [exact_sums(rows[name].to_numpy(), codes, len(labels)) for name in _COVARIANCE]
    return [
        Covariance(label, int(n), float(product / n - (log / n) * (advantage / n)))
        for label, n, log, advantage, product in zip(labels, *sums, strict=True)
    ]
