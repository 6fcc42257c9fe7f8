"""Findings about log-probs: values that are none, copies, engine and trainer that disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rlpost.inspect.findings.case import counted, share
from rlpost.inspect.model import Finding
from rlpost.inspect.tokens import LOG_PROBS

if TYPE_CHECKING:
    from rlpost.inspect.findings.case import Case
    from rlpost.inspect.model import TokenColumn

MOST_K3 = 0.01  # nats per token; engines that agree stay about a tenth of it
LEAST_ESS = 0.9
SURE_BUT_WRONG = 1e-3  # of the tokens
FEW_TOKENS = 16  # fewer are equal by chance


def _log_probs(case: Case) -> dict[str, TokenColumn]:
    columns = case.tokens.columns if case.tokens else {}
    return {role: column for role, column in columns.items() if role in LOG_PROBS}


def nonfinite_log_probs(case: Case) -> Finding | None:
    """NaN or infinite log-probs (or values, or token rewards) of policy tokens."""
    columns = case.tokens.columns if case.tokens else {}
    wrong = {role: one for role, one in columns.items() if one.nonfinite_rows}
    if not wrong:
        return None
    role, worst = max(wrong.items(), key=lambda item: item[1].nonfinite_rows)
    kinds = {"NaN": worst.nan, "-inf": worst.minus_infinity, "inf": worst.plus_infinity}
    numbers = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
    names = ", ".join(f"`{one.column}`" for one in wrong.values())
    return Finding(
        "nonfinite_log_probs", "error", 95,
        f"{names}: not finite in {counted(worst.nonfinite_rows, 'row')} ({numbers})",
        "-inf is what top-p and top-k leave of tokens they cut; NaN means that the row's logits "
        "are garbage. Mend the dump, or `rlpost advantages --nonfinite mask`",
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
    what = "probabilities, not their logarithms?" if (worst.min or 0) >= 0 else "logits, or NLL?"
    return Finding(
        "positive_log_probs", "error", 93,
        f"{share(worst.positive, worst.tokens)} of `{worst.column}` are over 0, up to "
        f"{worst.max:.4g}: no log-prob is",
        f"are these {what} Ratios and KL made of them are wrong",
        worst.positive, worst.tokens, case.rows_where(over, f"mean:{role}"),
    )  # fmt: skip


def constant_log_probs(case: Case) -> Finding | None:
    """A column of log-probs that holds one value, as a column of fillers does."""
    for one in _log_probs(case).values():
        if one.tokens >= FEW_TOKENS and one.min == one.max:
            return Finding(
                "constant_log_probs", "error", 89,
                f"`{one.column}` is {one.min:g} in all {one.tokens:,} policy tokens: it was never "
                "computed",
                "take the column out of the file (or map the role to another one): a ratio or KL "
                "made of it means nothing",
                one.tokens, one.tokens,
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
        )  # fmt: skip
    return None


def engine_mismatch(case: Case) -> Finding | None:
    """The rollout engine and the trainer give the same tokens other probabilities."""
    gap = case.tokens.mismatch if case.tokens else None
    if gap is None or gap.identical == gap.tokens:
        return None
    wrong = gap.sure_but_wrong > SURE_BUT_WRONG * gap.tokens
    if gap.k3 < MOST_K3 and gap.ess > LEAST_ESS and not wrong:
        return None
    rows = case.reading.rows
    worst = rows.select(pl.col("k3") / pl.col("compared")).to_series()
    at_least = worst.drop_nans().top_k(5).min()
    sure = ""
    if gap.sure_but_wrong:
        sure = f"; {counted(gap.sure_but_wrong, 'token')} the engine was sure of, the trainer not"
    flags = worst.fill_nan(-1) >= (at_least if isinstance(at_least, float) else 0.0)
    return Finding(
        "engine_mismatch", "warning", 70 + 20 * (1 - min(gap.ess, 1.0)),
        f"`{case.column('infer_log_probs')}` and `{case.column('old_log_probs')}` are "
        f"{gap.mean_abs:.3g} nats apart on average, k3 {gap.k3:.3g}, effective sample "
        f"{100 * gap.ess:.3g} %{sure}",
        "same weights, temperature, precision and chat template on both sides? Else correct it: "
        "`rlpost advantages --is-weight token --is-cap 2`",
        gap.tokens, gap.tokens, case.rows_where(flags),
    )  # fmt: skip
