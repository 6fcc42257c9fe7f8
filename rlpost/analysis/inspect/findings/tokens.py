"""Findings about log-probs and values: invalid numbers, copies, rollout engine against trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.findings.base import MOST_EVIDENCE, check
from rlpost.analysis.inspect.model import Finding
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.analysis.inspect.tokens import ROUNDING
from rlpost.display.text import counted, share

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import CheckInput
    from rlpost.analysis.inspect.model import Evidence, Label, TokenColumn


MOST_K3 = 0.01  # nats per token; engines that agree stay below a tenth of it
LEAST_ESS = 0.9
SURE_BUT_WRONG = 1e-3  # of the tokens
FEW_TOKENS = 16  # fewer may be equal by chance
TOKENS_OF_STEP = 256  # in fewer, one unusual token makes k3 large


def _log_probs(data: CheckInput) -> dict[str, TokenColumn]:
    columns = data.tokens.columns if data.tokens else {}
    return {role: column for role, column in columns.items() if role in LOG_PROBS}


@check("error")
def nonfinite_log_probs(data: CheckInput) -> Finding | None:
    """Log-probs of policy tokens are NaN or infinite."""
    return _nonfinite(
        data, "nonfinite_log_probs", _log_probs(data),
        "top-p and top-k sampling give -inf to the tokens that they exclude; NaN means that the "
        "logits of the row are invalid. Correct the dump, or use `rlpost advantages --nonfinite "
        "mask`",
    )  # fmt: skip


@check("error")
def nonfinite_values(data: CheckInput) -> Finding | None:
    """Critic values or token rewards are NaN or infinite."""
    columns = data.tokens.columns if data.tokens else {}
    others = {role: one for role, one in columns.items() if role not in LOG_PROBS}
    return _nonfinite(
        data, "nonfinite_values", others,
        "one such number makes all advantages of its response NaN or infinite, and with "
        "whitening those of its batch. Correct the dump, or use `rlpost advantages --nonfinite "
        "mask`",
    )  # fmt: skip


def _nonfinite(
    data: CheckInput, name: str, columns: dict[str, TokenColumn], advice: str
) -> Finding | None:
    nonfinite = {role: one for role, one in columns.items() if one.nonfinite_rows}
    if not nonfinite:
        return None
    role, worst = max(nonfinite.items(), key=lambda item: item[1].nonfinite_rows)
    kinds = {"NaN": worst.nan, "-inf": worst.minus_infinity, "inf": worst.plus_infinity}
    numbers = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
    names = ", ".join(f"`{one.column}`" for one in nonfinite.values())
    which = f" (most in `{worst.column}`)" if len(nonfinite) > 1 else ""
    verb = "are" if len(nonfinite) > 1 else "is"
    flags = data.reading.rows[f"nonfinite:{role}"].fill_nan(0) > 0
    return Finding(
        name, "error", 95,
        f"{names}{which} {verb} NaN or infinite in {counted(worst.nonfinite_rows, 'response')} "
        f"({numbers})",
        advice,
        worst.nonfinite_rows, data.count, data.examples(flags, "tokens"),
    )  # fmt: skip


@check("error")
def positive_log_probs(data: CheckInput) -> Finding | None:
    """Log-probs are greater than 0, by more than rounding."""
    positive = {role: one for role, one in _log_probs(data).items() if one.positive}
    if not positive:
        return None
    role, worst = max(positive.items(), key=lambda item: item[1].positive)
    flags = data.reading.rows[f"mean:{role}"].fill_nan(-1) > 0
    return Finding(
        "positive_log_probs", "error", 93,
        f"{worst.positive:,} of {worst.tokens:,} `{worst.column}` "
        f"({share(worst.positive, worst.tokens)}) are greater than {ROUNDING:g} (less may be "
        f"rounding), up to {worst.max:.4g}: log-probs are at most 0",
        f"check whether these are {_likely_kind(worst)}; ratios and KL computed from them are "
        "wrong",
        worst.positive, worst.tokens, data.examples(flags, "tokens"),
    )  # fmt: skip


def _likely_kind(column: TokenColumn) -> str:
    """Return what numbers greater than 0 may be instead of log-probs."""
    low, high = column.min or 0.0, column.max or 0.0
    if low >= -ROUNDING:
        if high <= 1 + ROUNDING:
            return "probabilities without a logarithm"
        return "negative log-likelihoods (NLL), whose sign is inverted"
    return "logits, or log-probs with noise"


@check("error")
def constant_log_probs(data: CheckInput) -> Finding | None:
    """A column of log-probs has the same value in all policy tokens: it was never computed."""
    for one in _log_probs(data).values():
        if one.tokens >= FEW_TOKENS and one.min == one.max:
            flags = data.reading.rows["tokens"] > 0
            return Finding(
                "constant_log_probs", "error", 98,
                f"`{one.column}` is {one.min:g} in all {one.tokens:,} policy tokens: it was never "
                "computed",
                "remove the column from the file, or map the role to another column; ratios and "
                "KL computed from it mean nothing",
                one.tokens, one.tokens, data.examples(flags, "tokens"),
            )  # fmt: skip
    return None


@check("warning")
def same_log_probs(data: CheckInput) -> Finding | None:
    """The log-probs of two policies are equal in every token, or read from the same column."""
    if data.tokens is None:
        return None
    rows = data.reading.rows
    steps = rows["batch"].n_unique() if "batch" in rows else 1
    for pair, equal in data.tokens.identical.items():
        one, other = pair.split("/")
        # Before the first update the policy equals its reference.
        if equal < 1 or (other == "ref_log_probs" and steps < 2):  # noqa: PLR2004
            continue
        count = data.tokens.columns[one].tokens
        if count < FEW_TOKENS:
            continue
        left, right = data.column(one), data.column(other)
        text = "are the same column" if left == right else "are equal in every policy token"
        result = (
            "the KL to the reference is 0" if other == "ref_log_probs"
            else "the difference between rollout engine and trainer is 0"
        )  # fmt: skip
        return Finding(
            "same_log_probs", "warning", 68,
            f"{one} (`{left}`) and {other} (`{right}`) {text}, so {result}",
            "write the log-probs of each policy to a column of its own, or set the column with "
            f"--map {other}=COLUMN",
            count, count, data.examples(rows["tokens"] > 0, "tokens"),
        )  # fmt: skip
    return None


@check("warning")
def engine_mismatch(data: CheckInput) -> Finding | None:
    """Rollout engine and trainer compute different probabilities for the same tokens."""
    gap = data.tokens.mismatch if data.tokens else None
    if gap is None or gap.identical == gap.tokens:
        return None
    many_wrong = gap.sure_but_wrong > SURE_BUT_WRONG * gap.tokens
    steps = _steps_with_mismatch(data)
    if gap.k3 < MOST_K3 and gap.ess > LEAST_ESS and not many_wrong and not steps:
        return None
    wrong = ""
    if gap.sure_but_wrong:
        tokens = counted(gap.sure_but_wrong, "token")
        wrong = f"; {tokens} with high engine probability and low trainer probability"
    in_steps = data.in_steps(steps)
    by_step = f"; k3 is {_range(steps)}{in_steps}" if in_steps else ""
    return Finding(
        "engine_mismatch", "warning", 70 + 20 * (1 - min(gap.ess, 1.0)),
        f"`{data.column('infer_log_probs')}` and `{data.column('old_log_probs')}` differ by "
        f"{gap.mean_abs:.3g} nats on average; k3 {gap.k3:.3g}, effective sample size "
        f"{100 * gap.ess:.3g} %{wrong}{by_step}",
        "check that weights, temperature, precision and chat template are the same on both sides, "
        "or correct the difference: `rlpost advantages --is-weight token --is-cap 2`",
        gap.tokens, gap.tokens, _most_different(data),
    )  # fmt: skip


def _most_different(data: CheckInput) -> list[Evidence]:
    """Return the responses with the largest mean k3, the largest first."""
    k3 = data.reading.rows.select(pl.col("k3") / pl.col("compared")).to_series().fill_nan(-1)
    indices = k3.arg_sort(descending=True)[:MOST_EVIDENCE].to_list()
    return data.examples_at([index for index in indices if k3[index] > 0], "tokens")


def _steps_with_mismatch(data: CheckInput) -> dict[Label, float]:
    """Return the k3 per token of the steps in which it is too large."""
    rows = data.reading.rows
    if "batch" not in rows:
        return {}
    sums = (
        rows.filter(pl.col("k3").is_finite() & pl.col("batch").is_not_null())
        .group_by("batch", maintain_order=True)
        .agg(pl.col("k3").sum(), pl.col("compared").sum())
        .filter(pl.col("compared") >= TOKENS_OF_STEP)
    )
    large = sums.filter(pl.col("k3") > MOST_K3 * pl.col("compared"))
    return {row["batch"]: row["k3"] / row["compared"] for row in large.iter_rows(named=True)}


def _range(steps: dict[Label, float]) -> str:
    low, high = min(steps.values()), max(steps.values())
    return f"{high:.3g}" if len(steps) == 1 else f"{low:.3g} to {high:.3g}"
