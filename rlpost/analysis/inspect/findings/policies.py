"""Findings about log-probs: values that are none, copies, engine and trainer that disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.findings.case import MOST_SHOWN, counted, share
from rlpost.analysis.inspect.model import Finding
from rlpost.analysis.inspect.tokens import LOG_PROBS, ROUNDING

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.case import Case
    from rlpost.analysis.inspect.model import Evidence, Label, TokenColumn


MOST_K3 = 0.01  # nats per token; engines that agree stay about a tenth of it
LEAST_ESS = 0.9
SURE_BUT_WRONG = 1e-3  # of the tokens
FEW_TOKENS = 16  # fewer are equal by chance
TOKENS_OF_STEP = 256  # a single odd token makes the k3 of fewer large


def _log_probs(case: Case) -> dict[str, TokenColumn]:
    columns = case.tokens.columns if case.tokens else {}
    return {role: column for role, column in columns.items() if role in LOG_PROBS}


def nonfinite_log_probs(case: Case) -> Finding | None:
    """NaN or infinite log-probs of policy tokens."""
    return _nonfinite(
        case, "nonfinite_log_probs", _log_probs(case),
        "-inf is what top-p and top-k leave of tokens they cut; NaN means that the row's logits "
        "are garbage. Mend the dump, or `rlpost advantages --nonfinite mask`",
    )  # fmt: skip


def nonfinite_values(case: Case) -> Finding | None:
    """NaN or infinite values of the critic, or token rewards."""
    columns = case.tokens.columns if case.tokens else {}
    others = {role: one for role, one in columns.items() if role not in LOG_PROBS}
    return _nonfinite(
        case, "nonfinite_values", others,
        "one such number makes every advantage of its response one, and whitening those of its "
        "batch. Mend the dump, or `rlpost advantages --nonfinite mask`",
    )  # fmt: skip


def _nonfinite(
    case: Case, name: str, columns: dict[str, TokenColumn], advice: str
) -> Finding | None:
    wrong = {role: one for role, one in columns.items() if one.nonfinite_rows}
    if not wrong:
        return None
    role, worst = max(wrong.items(), key=lambda item: item[1].nonfinite_rows)
    kinds = {"NaN": worst.nan, "-inf": worst.minus_infinity, "inf": worst.plus_infinity}
    numbers = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
    names = ", ".join(f"`{one.column}`" for one in wrong.values())
    most = f", `{worst.column}`" if len(wrong) > 1 else ""
    return Finding(
        name, "error", 95,
        f"{names}: not finite{most} in {counted(worst.nonfinite_rows, 'row')} ({numbers})",
        advice,
        worst.nonfinite_rows, case.rows,
        case.rows_where(case.reading.rows[f"nonfinite:{role}"].fill_nan(0) > 0, "tokens"),
    )  # fmt: skip


def positive_log_probs(case: Case) -> Finding | None:
    """Log-probs over 0, which none can be."""
    wrong = {role: one for role, one in _log_probs(case).items() if one.positive}
    if not wrong:
        return None
    role, worst = max(wrong.items(), key=lambda item: item[1].positive)
    over = case.reading.rows[f"mean:{role}"].fill_nan(-1) > 0
    return Finding(
        "positive_log_probs", "error", 93,
        f"{worst.positive:,} of {worst.tokens:,} `{worst.column}` "
        f"({share(worst.positive, worst.tokens)}) are over 0 by more than {ROUNDING:g}, which may "
        f"be rounding, up to {worst.max:.4g}: no log-prob is",
        f"are these {_meant(worst)} Ratios and KL made of them are wrong",
        worst.positive, worst.tokens, case.rows_where(over, "tokens"),
    )  # fmt: skip


def _meant(column: TokenColumn) -> str:
    """What numbers over 0 may be instead of log-probs."""
    low, high = column.min or 0.0, column.max or 0.0
    if low >= -ROUNDING:
        if high <= 1 + ROUNDING:
            return "probabilities, not their logarithms?"
        return "negative log-likelihoods (NLL), with the sign turned round?"
    return "logits, or log-probs that noise was added to?"


def constant_log_probs(case: Case) -> Finding | None:
    """A column of log-probs that holds one value, as a column of fillers does."""
    for one in _log_probs(case).values():
        if one.tokens >= FEW_TOKENS and one.min == one.max:
            return Finding(
                "constant_log_probs", "error", 98,
                f"`{one.column}` is {one.min:g} in all {one.tokens:,} policy tokens: it was never "
                "computed",
                "take the column out of the file (or map the role to another one): a ratio or KL "
                "made of it means nothing",
                one.tokens, one.tokens, case.rows_where(case.reading.rows["tokens"] > 0, "tokens"),
            )  # fmt: skip
    return None


def same_log_probs(case: Case) -> Finding | None:
    """Two policies' log-probs are one column, or equal in every token."""
    if case.tokens is None:
        return None
    rows = case.reading.rows
    steps = rows["batch"].n_unique() if "batch" in rows else 1
    for pair, equal in case.tokens.identical.items():
        one, other = pair.split("/")
        # before the first update the policy is its own reference
        if equal < 1 or (other == "ref_log_probs" and steps < 2):  # noqa: PLR2004
            continue
        if case.tokens.columns[one].tokens < FEW_TOKENS:
            continue
        left, right = case.column(one), case.column(other)
        what = "are the same column" if left == right else "are equal in every policy token"
        which = "KL to the reference" if other == "ref_log_probs" else "the train-engine gap"
        return Finding(
            "same_log_probs", "warning", 68,
            f"{one} (`{left}`) and {other} (`{right}`) {what}: {which} is 0",
            f"dump each policy's own log-probs, or say which column is which: --map {other}=COLUMN",
            case.tokens.columns[one].tokens, case.tokens.columns[one].tokens,
            case.rows_where(rows["tokens"] > 0, "tokens"),
        )  # fmt: skip
    return None


def engine_mismatch(case: Case) -> Finding | None:
    """The rollout engine and the trainer give the same tokens other probabilities."""
    gap = case.tokens.mismatch if case.tokens else None
    if gap is None or gap.identical == gap.tokens:
        return None
    wrong = gap.sure_but_wrong > SURE_BUT_WRONG * gap.tokens
    steps = _steps_apart(case)
    if gap.k3 < MOST_K3 and gap.ess > LEAST_ESS and not wrong and not steps:
        return None
    sure = ""
    if gap.sure_but_wrong:
        sure = f"; {counted(gap.sure_but_wrong, 'token')} the engine was sure of, the trainer not"
    where = case.in_steps(steps)
    said = f"; k3 is {_by_step(steps)}{where}" if where else ""
    return Finding(
        "engine_mismatch", "warning", 70 + 20 * (1 - min(gap.ess, 1.0)),
        f"`{case.column('infer_log_probs')}` and `{case.column('old_log_probs')}` are "
        f"{gap.mean_abs:.3g} nats apart on average, k3 {gap.k3:.3g}, effective sample "
        f"{100 * gap.ess:.3g} %{sure}{said}",
        "same weights, temperature, precision and chat template on both sides? Else correct it: "
        "`rlpost advantages --is-weight token --is-cap 2`",
        gap.tokens, gap.tokens, _furthest_apart(case),
    )  # fmt: skip


def _furthest_apart(case: Case) -> list[Evidence]:
    """The rows of the largest mean k3, the largest first."""
    k3 = case.reading.rows.select(pl.col("k3") / pl.col("compared")).to_series().fill_nan(-1)
    places = k3.arg_sort(descending=True)[:MOST_SHOWN].to_list()
    return case.rows_at([place for place in places if k3[place] > 0], "tokens")


def _steps_apart(case: Case) -> dict[Label, float]:
    """The steps whose k3 per token is too large, with it."""
    rows = case.reading.rows
    if "batch" not in rows:
        return {}
    sums = (
        rows.filter(pl.col("k3").is_finite() & pl.col("batch").is_not_null())
        .group_by("batch", maintain_order=True)
        .agg(pl.col("k3").sum(), pl.col("compared").sum())
        .filter(pl.col("compared") >= TOKENS_OF_STEP)
    )
    apart = sums.filter(pl.col("k3") > MOST_K3 * pl.col("compared"))
    return {row["batch"]: row["k3"] / row["compared"] for row in apart.iter_rows(named=True)}


def _by_step(steps: dict[Label, float]) -> str:
    low, high = min(steps.values()), max(steps.values())
    return f"{high:.3g}" if len(steps) == 1 else f"{low:.3g} to {high:.3g}"
