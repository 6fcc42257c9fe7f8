"""Findings about log-probs and values: invalid numbers, copies, rollout engine against trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.causes import likeliest
from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.analysis.inspect.tokens import LOG_RATIO_CLAMP
from rlpost.display.text import counted, percent, share
from rlpost.recipe.roles import LOG_PROB_ROUNDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.findings.base import CheckInput, Result
    from rlpost.analysis.inspect.model import FindingEvidence, Label, Mismatch, TokenColumn


MOST_K3 = 0.01  # nats per token; engines that agree stay below a tenth of it
LEAST_ESS = 0.9
CONFIDENT_DISAGREEMENT = 1e-3  # of the tokens
FEW_TOKENS = 16  # fewer may be equal by chance
SHARED = 0.01  # of the policy tokens
TOKENS_OF_STEP = 256  # in fewer, one unusual token makes k3 large


def _log_probs(data: CheckInput) -> dict[str, TokenColumn]:
    columns = data.tokens.columns if data.tokens else {}
    return {role: column for role, column in columns.items() if role in LOG_PROBS}


@check("error", "log-probs")
def nonfinite_log_probs(data: CheckInput) -> Result:
    """Log-probs of policy tokens are null, NaN or infinite.

    Ratios and KL of these tokens are NaN or infinite. Top-p and top-k sampling give -inf to
    tokens that they exclude. Correct the dump, or use --nonfinite mask.
    """
    return _nonfinite(
        data, _log_probs(data),
        "top-p and top-k sampling give -inf to the tokens that they exclude; NaN means that the "
        "logits of the row are invalid. Correct the dump, or use `rlpost advantages --nonfinite "
        "mask`",
    )  # fmt: skip


@check("error", "values or token_rewards")
def nonfinite_values(data: CheckInput) -> Result:
    """Critic values or token rewards are null, NaN or infinite.

    One such number makes all advantages of its response NaN, and with whitening those of its
    batch. Correct the dump, or use --nonfinite mask.
    """
    columns = data.tokens.columns if data.tokens else {}
    return _nonfinite(
        data, {role: one for role, one in columns.items() if role not in LOG_PROBS},
        "one such number makes all advantages of its response NaN or infinite, and with "
        "whitening those of its batch. Correct the dump, or use `rlpost advantages --nonfinite "
        "mask`",
    )  # fmt: skip


def _nonfinite(data: CheckInput, columns: dict[str, TokenColumn], advice: str) -> Result:
    nonfinite = {role: one for role, one in columns.items() if one.nonfinite_rows}
    if not nonfinite:
        return _unless_tokens(columns)
    flags = _any_row(data, [f"nonfinite:{role}" for role in nonfinite])
    count = int(flags.sum())
    names = ", ".join(f"`{one.column}` ({numbers_of(one)})" for one in nonfinite.values())
    return Problem(
        95,
        f"{names} {'are' if len(nonfinite) > 1 else 'is'} not finite in {count:,} of "
        f"{counted(data.count, 'response')}",
        advice,
        count, data.count, data.examples_named(
            {
                f"`{one.column}`": _any_row(data, [f"nonfinite:{role}"]).alias(role)
                for role, one in nonfinite.items()
            }
        ),
    )  # fmt: skip


def numbers_of(column: TokenColumn) -> str:
    """Return how many of a column's numbers are null, NaN, -inf or inf."""
    kinds = {
        "null": column.null,
        "NaN": column.nan,
        "-inf": column.minus_infinity,
        "inf": column.plus_infinity,
    }
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)


def _any_row(data: CheckInput, columns: Sequence[str]) -> pl.Series:
    """Return the responses in which one of these columns of flags is set, [n] bool."""
    flags = (pl.col(column).fill_nan(0) > 0 for column in columns)
    return data.reading.rows.select(pl.any_horizontal(flags)).to_series()


def _unless_tokens(columns: dict[str, TokenColumn]) -> NotRun | None:
    """Return None, no problem, if the columns have any token."""
    if any(one.tokens for one in columns.values()):
        return None
    return NotRun("no policy token, or lists of unequal lengths")


@check("error", "log-probs")
def positive_log_probs(data: CheckInput) -> Result:
    """Log-probs are greater than 0, by more than rounding.

    Ratios and KL computed from them are wrong. The column may have probabilities, negative
    log-likelihoods or logits. Up to 0.001 counts as rounding.
    """
    columns = _log_probs(data)
    positive = {role: one for role, one in columns.items() if one.positive}
    if not positive:
        return _unless_tokens(columns)
    worst = max(positive.values(), key=lambda one: one.positive)
    flags = _any_row(data, [f"positive:{role}" for role in positive])
    others = ", ".join(f"`{one.column}`" for one in positive.values() if one is not worst)
    verb = "is" if worst.positive == 1 else "are"
    return Problem(
        93,
        f"{worst.positive:,} of {worst.tokens:,} `{worst.column}` "
        f"({share(worst.positive, worst.tokens)}) {verb} above 0, up to {worst.max:.4g}"
        f"{f', and fewer of {others}' if others else ''}: not log-probs",
        f"ratios and KL computed from them are wrong: these look like {_likely_kind(worst)}",
        worst.positive, worst.tokens, data.examples(flags, "tokens"),
    )  # fmt: skip


def _likely_kind(column: TokenColumn) -> str:
    """Return what numbers greater than 0 may be instead of log-probs."""
    low, high = column.min or 0.0, column.max or 0.0
    if low >= -LOG_PROB_ROUNDING:
        if high <= 1 + LOG_PROB_ROUNDING:
            return "probabilities without a logarithm"
        return "negative log-likelihoods (NLL), whose sign is inverted"
    return "logits, or log-probs with noise"


@check("error", "log-probs")
def constant_log_probs(data: CheckInput) -> Result:
    """A column of log-probs has the same value in all policy tokens: it was never computed.

    Ratios and KL computed from a fill value mean nothing. Remove the column, or name another
    one with --map ROLE=COLUMN.
    """
    columns = [one for one in _log_probs(data).values() if one.tokens >= FEW_TOKENS]
    if not columns:
        return NotRun(f"fewer than {FEW_TOKENS} policy tokens")
    constant = [one for one in columns if one.min == one.max]
    if not constant:
        return None
    names = " and ".join(f"`{one.column}` is {one.min:g}" for one in constant)
    most = max(one.tokens for one in constant)
    return Problem(
        98,
        f"{names} in all {most:,} policy tokens: never computed",
        "remove the column from the file, or map the role to another column; ratios and "
        "KL computed from it mean nothing",
        most, most, data.examples(data.reading.rows["tokens"] > 0, "tokens"),
    )  # fmt: skip


@check("warning", "log-probs of two policies")
def same_log_probs(data: CheckInput) -> Result:
    """The log-probs of two policies are equal in every token, or read from the same column.

    The KL, or the difference between rollout engine and trainer, is then 0 whatever happened.
    Write the log-probs of each policy to a column of its own. In the first step, a policy
    equals its reference.
    """
    assert data.tokens is not None
    compared = {
        tuple(pair.split("/")): equal
        for pair, equal in data.tokens.identical.items()
        if data.tokens.columns[pair.partition("/")[0]].tokens >= FEW_TOKENS
    }
    # Before the first update the policy equals its reference.
    if data.step_count() < 2:  # noqa: PLR2004
        others = {pair: equal for pair, equal in compared.items() if "ref_log_probs" not in pair}
        if compared and not others:
            return NotRun("in the first step a policy equals its reference")
        compared = others
    if not compared:
        return NotRun(f"fewer than {FEW_TOKENS} policy tokens")
    pairs = [pair for pair, equal in compared.items() if equal == 1]
    if not pairs:
        return None
    texts = []
    for one, other in pairs:
        left, right = data.column(one), data.column(other)
        text = "are the same column" if left == right else "are equal in every policy token"
        result = (
            "the KL to the reference is 0" if other == "ref_log_probs"
            else "the difference between rollout engine and trainer is 0"
        )  # fmt: skip
        texts.append(f"{one} (`{left}`) and {other} (`{right}`) {text}, so {result}")
    count = data.tokens.columns[pairs[0][0]].tokens
    return Problem(
        68,
        "; ".join(texts),
        "write the log-probs of each policy to a column of its own, or set the column with "
        f"--map {pairs[0][1]}=COLUMN",
        count, count, data.examples(data.reading.rows["tokens"] > 0, "tokens"),
    )  # fmt: skip


@check("warning", "old_log_probs", "infer_log_probs")
def engine_mismatch(data: CheckInput) -> Result:
    """Rollout engine and trainer compute different probabilities for the same tokens.

    Advantages are then of tokens that the trainer would sample with another probability. Check
    weights, temperature, precision and chat template on both sides, or correct the difference
    with --is-weight.
    """
    gap = data.mismatch
    if gap is None:
        return NotRun("no policy token that counts has both log-probs, or lists of unequal lengths")
    if gap.identical == gap.tokens:
        return NotRun("the log-probs are identical")
    many_wrong = gap.confident_disagreement > CONFIDENT_DISAGREEMENT * gap.tokens
    steps = _steps_with_mismatch(data)
    if gap.k3 < MOST_K3 and gap.ess > LEAST_ESS and not many_wrong and not steps:
        return None
    wrong = ""
    if gap.confident_disagreement:
        tokens = counted(gap.confident_disagreement, "token")
        wrong = f"; {tokens} likely for the engine (≥ 0.5), but over 7 × less for the trainer"
    in_steps = data.in_steps(steps)
    by_step = f"; k3 is {_range(steps)}{in_steps}" if in_steps else ""
    return Problem(
        70 + 20 * (1 - min(gap.ess, 1.0)),
        f"`{data.column('infer_log_probs')}` and `{data.column('old_log_probs')}` differ by "
        f"{gap.mean_abs:.3g} nats on average; k3 {gap.k3:.3g}, effective sample size "
        f"{percent(gap.ess)}{clamp_note(gap)}{wrong}{by_step}"
        + (f"; {cause}" if (cause := likeliest(gap.causes)) else ""),
        f"{advice_of(gap)}; `rlpost inspect --about mismatch` has the evidence",
        gap.tokens, gap.tokens, _most_different(data),
    )  # fmt: skip


def advice_of(gap: Mismatch) -> str:
    """Return what to do about the likeliest cause."""
    if gap.causes:
        return gap.causes[0].advice
    return "check weights, temperature, precision and chat template on both sides"


def clamp_note(gap: Mismatch) -> str:
    """Return which numbers are of clamped differences; empty if none is beyond the bound."""
    if not gap.clamped:
        return ""
    tokens = counted(gap.clamped, "token")
    return f" (both with differences clamped to ±{LOG_RATIO_CLAMP:g}, in {tokens})"


def _most_different(data: CheckInput) -> list[FindingEvidence]:
    """Return the responses with the largest mean k3, the largest first."""
    k3 = data.reading.rows.select(pl.col("k3") / pl.col("compared")).to_series().fill_nan(-1)
    indices = k3.arg_sort(descending=True)[: data.evidence].to_list()
    return data.examples_at([index for index in indices if k3[index] > 0], "tokens")


@check("warning", "rollout ids", "token ids")
def shared_prefixes(data: CheckInput) -> Result:
    """Several rows of a rollout train the same policy tokens: forks, and turns with their history.

    A segment of policy tokens counts as the same if all token ids are equal from the start of the
    prompt to its end. Each row that has it adds its gradient, so early turns weigh more. Set
    the mask of all but one of them to 0, or write one row for each rollout.
    """
    assert data.repeated is not None
    repeated, tokens = data.repeated
    count, rows = int(repeated.sum()), int((repeated > 0).sum())
    if not tokens:
        return NotRun("no policy token, or lists of unequal lengths")
    if count < SHARED * tokens:
        return None
    flags = pl.Series(repeated > 0)
    return Problem(
        75 + 20 * count / tokens,
        f"{count:,} of {tokens:,} policy tokens ({share(count, tokens)}), in "
        f"{counted(rows, 'response')}, are trained by another row of their "
        f"`{data.reading.selection.rollout}`, too: token ids are equal up to them",
        "set the mask of these tokens to 0 in all rows but one; a dump with one row for each "
        "rollout has them once",
        count, tokens, data.examples(flags, "turn", "tokens"),
    )  # fmt: skip


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
