"""Facts of tokens and masks, from the tallies and the table of responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.layout import ENDS, LAGS
from rlpost.analysis.inspect.model import (
    Bucket,
    MaskFacts,
    Mismatch,
    Shift,
    TokenColumn,
    TokenFacts,
)
from rlpost.analysis.inspect.statistics import quantiles_of, spread_of
from rlpost.analysis.inspect.tokens import FIRST_BUCKET, LOG_PROBS, TWINS

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Json, Label
    from rlpost.analysis.inspect.reading import Reading
    from rlpost.analysis.inspect.statistics import TokenTotals


LONG = 32  # tokens from which on two samples are hardly equal by chance
LONG_TEXT = 128  # characters, where no list says how many tokens


def mask_facts(reading: Reading) -> MaskFacts | None:
    """Facts of the mask; None where there is none."""
    rows = reading.rows
    if reading.wanted.lists != "mask" or not len(rows):
        return None
    length, tokens = rows["length"], rows["tokens"]
    every = int(length.sum())
    return MaskFacts(
        column=reading.wanted.columns.column("mask"),
        observation_share=1 - int(tokens.sum()) / every if every else 0.0,
        with_observations=int((tokens < length).sum()),
        gaps=int((rows["runs"] > 1).sum()),
        leading=int(rows["leading"].sum()),
        trailing=int(rows["trailing"].sum()),
        empty=int((tokens == 0).sum()),
        not_binary=int(rows["not_binary"].sum()),
        equal_lengths=length.min() == length.max(),
    )


def token_facts(reading: Reading) -> TokenFacts | None:
    """Facts of single tokens; None where they were not read, or there are none."""
    roles, rows, tally = reading.wanted.tokens, reading.rows, reading.tally
    if not roles and "copy" not in rows:
        return None
    pairs = [pair for pair in TWINS if tally.count(f"{'/'.join(pair)}.tokens")]
    kl = rows["kl"].to_numpy() if "kl" in rows else np.zeros(0)
    kl = kl[np.isfinite(kl)]
    return TokenFacts(
        columns={role: _column(role, reading) for role in roles},
        mismatch=_mismatch(tally),
        kl=spread_of(kl) if len(kl) else None,
        kl_quantiles=quantiles_of(kl),
        identical={
            (name := "/".join(pair)): tally.mean(f"{name}.equal", f"{name}.tokens") or 0.0
            for pair in pairs
        },
        shifts=[*_lags(tally, pairs), *_jumps(tally, reading)],
        edges={
            role: {end: int(rows[f"{end}:{role}"].fill_nan(0).sum()) for end in ENDS}
            for role in roles
            if role in LOG_PROBS
        },
        duplicates=_duplicates(reading),
    )


def _column(role: str, reading: Reading) -> TokenColumn:
    tally, rows = reading.tally, reading.rows
    means = rows[f"mean:{role}"].to_numpy()
    counts: dict[str, Any] = {
        name: tally.count(f"{role}.{name}")
        for name in ("zero", "positive", "nan", "minus_infinity", "plus_infinity")
    }
    return TokenColumn(
        column=reading.wanted.columns.column(role),
        tokens=tally.count(f"{role}.count"),
        mean=tally.mean(f"{role}.sum", f"{role}.count"),
        min=tally.lows.get(role),
        max=tally.highs.get(role),
        **counts,
        nonfinite_rows=int(rows[f"nonfinite:{role}"].fill_nan(0).sum()),
        unequal_rows=int(rows[f"unequal:{role}"].sum()),
        quantiles=quantiles_of(means[np.isfinite(means)]),
    )


def _mismatch(tally: TokenTotals) -> Mismatch | None:
    count = tally.count("gap.tokens")
    if not count:
        return None
    excess, squares = tally.total("gap.excess"), tally.total("gap.excess_squared")
    return Mismatch(
        tokens=count,
        mean_abs=tally.total("gap.abs") / count,
        max_abs=tally.highs["gap"],
        k1=-tally.total("gap.sum") / count,
        k3=tally.total("gap.k3") / count,
        chi_square=(squares + 2 * excess) / count,
        ess=(count + excess) ** 2 / (count * (count + 2 * excess + squares)),
        sure_but_wrong=tally.count("gap.sure"),
        identical=tally.count("old_log_probs/infer_log_probs.equal"),
        by_position=_buckets(tally),
    )


def _buckets(tally: TokenTotals) -> list[Bucket]:
    tokens, sizes, k3 = (tally.tables[f"place.{name}"] for name in ("tokens", "abs", "k3"))
    edges = [0, *(FIRST_BUCKET << place for place in range(len(tokens) - 1)), None]
    return [
        Bucket(int(edges[i] or 0), edges[i + 1], int(n), float(sizes[i] / n), float(k3[i] / n))
        for i, n in enumerate(tokens)
        if n
    ]


def _lags(tally: TokenTotals, pairs: list[tuple[str, str]]) -> list[Shift]:
    """Columns of log-probs: the lag with the least mean difference."""
    found = []
    for pair in pairs:
        name = "/".join(pair)
        count = tally.count(f"lag.{name}.tokens")
        if not count:
            continue
        fits = {lag: tally.total(f"lag.{name}.{lag}") / count for lag in LAGS}
        best = _best(fits)
        found.append(Shift(pair, best, fits[0], fits[best], count))
    return found


def _best(fits: dict[int, float]) -> int:
    """The lag with the least difference; of equal ones the least."""
    return min(LAGS, key=lambda lag: (fits[lag], abs(lag)))


def step_lags(tally: TokenTotals, pair: tuple[str, str]) -> dict[Label, Shift]:
    """Of each step, how two columns of log-probs fit; those of which tokens were looked at."""
    found, name = {}, "/".join(pair)
    for step, sums in tally.steps.items():
        count = sums.get(f"{name}.tokens", 0.0)
        if count:
            fits = {lag: sums[f"{name}.{lag}"] / count for lag in LAGS}
            best = _best(fits)
            found[step] = Shift(pair, best, fits[0], fits[best], int(count))
    return found


def _jumps(tally: TokenTotals, reading: Reading) -> list[Shift]:
    """Mask and log-probs: the lag with the largest mean jump, in standard errors."""
    found = []
    for role in LOG_PROBS[:2]:
        count = tally.count(f"jump.{role}.tokens")
        if role not in reading.wanted.tokens or not count:
            continue
        sizes = {}
        for lag in LAGS:
            mean = tally.total(f"jump.{role}.{lag}") / count
            square = tally.total(f"jump.{role}.{lag}.squares") / count
            error = (max(square - mean * mean, 1e-12) / count) ** 0.5
            sizes[lag] = abs(mean) / error
        best = max(LAGS, key=lambda lag: (sizes[lag], -abs(lag)))
        found.append(Shift(("mask", role), best, sizes[0], sizes[best], count))
    return found


def _duplicates(reading: Reading) -> Json | None:
    """Copies: rows whose text or tokens an earlier row of the same group has."""
    rows, wanted = reading.rows, reading.wanted
    if "copy" not in rows or not len(rows):
        return None
    again = copied(rows)
    of = wanted.text or (wanted.copies_role and wanted.columns.column(wanted.copies_role))
    long = again & is_long(rows)
    return {
        "of": of,
        "rows": int(again.sum()),
        "share": int(again.sum()) / len(rows),
        "long_rows": int(long.sum()),
        "alone": int(rows.select(~_twinned(rows)).to_series().sum()),
    }


def is_long(rows: pl.DataFrame) -> pl.Series:
    """Whether responses are too long to be equal by chance, [n] bool."""
    if "characters" in rows:
        return rows["characters"] >= LONG_TEXT
    return rows["tokens"] >= LONG if "tokens" in rows else pl.Series(np.ones(len(rows), np.bool_))


def copied(rows: pl.DataFrame) -> pl.Series:
    """Whether an earlier row of the same group has the same text or tokens, [n] bool."""
    return rows.select(_twinned(rows) & ~_same(rows).is_first_distinct()).to_series()


def _twinned(rows: pl.DataFrame) -> pl.Expr:
    """Whether another row has the same; what has no text has no twin."""
    return _same(rows).is_duplicated() & pl.col("copy").is_not_null()


def _same(rows: pl.DataFrame) -> pl.Expr:
    """What rows that copy each other have in common."""
    return pl.struct([key for key in ("batch", "group", "copy") if key in rows])
