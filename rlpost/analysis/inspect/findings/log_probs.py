"""Findings about numbers of tokens: not finite, no log-probs, copies, engine against trainer."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.causes import likeliest
from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.analysis.inspect.tokens import LOG_RATIO_CLAMP
from rlpost.display.text import counted, percent, share
from rlpost.recipe.roles import LOG_PROB_ROUNDING

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import CheckInput, Result
    from rlpost.analysis.inspect.model import TokenColumn


MOST_K3 = 0.01  # nats per token; engines that agree stay below a tenth of it
LEAST_ESS = 0.9
CONFIDENT_DISAGREEMENT = 1e-3  # of the tokens
FEW_TOKENS = 16  # fewer may be equal by chance
SHARED = 0.01  # of the policy tokens
TOKENS_OF_STEP = 256  # in fewer, one unusual token makes k3 large
NO_TOKENS = "no policy token counts, or lists have unequal lengths"


@check("error", "numbers")
def nonfinite(data: CheckInput) -> Result:
    """Rewards, log-probs, values or token rewards are null, NaN or infinite.

    One such number makes all advantages of its response NaN, those of its group if it is a reward,
    and with whitening those of its batch. Rewards of rollouts that failed do not count. Top-p and
    top-k sampling give -inf to tokens that they exclude; NaN means that logits are invalid.

    Correct the dump, score the responses again, or leave them out of `rlpost advantages` with
    --nonfinite mask.
    """
    rows, reward = data.reading.rows, pl.Series(data.table.nonfinite)
    kinds: dict[str, dict[str, int]] = {}
    flags = []
    if "reward" in rows and reward.any():
        null, values = rows["reward_null"].filter(reward), rows["reward"].filter(reward)
        infinite, count = int(values.is_infinite().sum()), int(null.sum())
        kinds["reward"] = {"null": count, "NaN": len(values) - infinite - count, "±inf": infinite}
        flags.append(reward)
    for role, column in (data.tokens.columns if data.tokens else {}).items():
        if column.nonfinite_rows:
            flags.append(rows[f"nonfinite:{role}"].fill_nan(0) > 0)
            kinds[role] = {
                "null": column.null, "NaN": column.nan,
                "-inf": column.minus_infinity, "inf": column.plus_infinity,
            }  # fmt: skip
    if not kinds:
        return None
    counts = [", ".join(f"{n:,} {kind}" for kind, n in x.items() if n) for x in kinds.values()]
    names = [f"`{data.column(x)}` ({n})" for x, n in zip(kinds, counts, strict=True)]
    either = reduce(or_, flags)
    text = f"{', '.join(names)} {'is' if len(kinds) == 1 else 'are'} not finite in "
    text += f"{data.part(int(either.sum()))}"
    return Problem(text, either, [*kinds], "--nonfinite mask")


@check("error", "log-probs")
def not_log_probs(data: CheckInput) -> Result:
    """Log-probs are greater than 0, by more than rounding, or have one value in all tokens.

    Ratios and KL computed from it are wrong: it has probabilities, negative log-likelihoods or
    logits, or a fill value that was never computed. Up to 0.001 counts as rounding.

    Correct the dump, or set another column with --map ROLE=COLUMN, or none.
    """
    columns = (
        {x: c for x, c in data.tokens.columns.items() if x in LOG_PROBS} if data.tokens else {}
    )
    if not any(column.tokens for column in columns.values()):
        return NotRun(NO_TOKENS)
    rows, flags, texts = data.reading.rows, {}, []
    for role, column in columns.items():
        name = f"`{column.column}`"
        if column.tokens >= FEW_TOKENS and column.min == column.max:
            flags[role] = rows["tokens"] > 0
            all_tokens = f"all {column.tokens:,} policy tokens"
            texts.append(f"{name} is {column.min:g} in {all_tokens}: never computed")
        elif column.positive:
            flags[role] = rows[f"positive:{role}"].fill_nan(0) > 0
            texts.append(
                f"{column.positive:,} of {column.tokens:,} {name} "
                f"({share(column.positive, column.tokens)}) are above 0, up to "
                f"{column.max:.4g}: {_likely_kind(column)}"
            )
    if not flags:
        return None
    option = f"--map {next(iter(flags))}=COLUMN"
    return Problem("; ".join(texts), reduce(or_, flags.values()), [*flags], option)


def _likely_kind(column: TokenColumn) -> str:
    """Return what numbers greater than 0 may be instead of log-probs."""
    low, high = column.min or 0.0, column.max or 0.0
    if low < -LOG_PROB_ROUNDING:
        return "logits, or log-probs with noise"
    if high <= 1 + LOG_PROB_ROUNDING:
        return "probabilities without a logarithm"
    return "negative log-likelihoods (NLL), whose sign is inverted"


@check("warning", "log-probs of two policies")
def same_log_probs(data: CheckInput) -> Result:
    """The log-probs of two policies are equal in every token, or read from the same column.

    The KL, or the difference between rollout engine and trainer, is then 0 whatever happened. In
    the first step, a policy equals its reference.

    Write the log-probs of each policy to a column of its own, or set it with --map ROLE=COLUMN.
    """
    assert data.tokens is not None
    pairs = {tuple(pair.split("/")): share for pair, share in data.tokens.identical.items()}
    few = [x for x, _ in pairs if data.tokens.columns[x].tokens < FEW_TOKENS]
    rows = data.reading.rows
    if "batch" not in rows or rows["batch"].drop_nulls().n_unique() == 1:
        # Before the first update the policy equals its reference.
        pairs = {pair: share for pair, share in pairs.items() if "ref_log_probs" not in pair}
    if few or not pairs:
        return NotRun(
            f"fewer than {FEW_TOKENS} policy tokens"
            if few or not data.tokens.identical
            else "in the first step a policy equals its reference"
        )
    equal = [pair for pair, share in pairs.items() if share == 1]
    if not equal:
        return None
    texts = []
    for one_role, other in equal:
        left, right = data.column(one_role), data.column(other)
        how = "are the same column" if left == right else "are equal in every policy token"
        zero = "KL to the reference"
        zero = zero if other == "ref_log_probs" else "difference between rollout engine and trainer"
        texts.append(f"{one_role} (`{left}`) and {other} (`{right}`) {how}, so the {zero} is 0")
    roles, option = [role for pair in equal for role in pair], f"--map {equal[0][1]}=COLUMN"
    return Problem("; ".join(texts), rows["tokens"] > 0, roles, option)


@check("warning", "old_log_probs", "infer_log_probs")
def engine_mismatch(data: CheckInput) -> Result:
    """Rollout engine and trainer compute different probabilities for the same tokens.

    Advantages are then of tokens that the trainer would sample with another probability.
    `rlpost inspect --about mismatch` has the evidence.

    Check weights, temperature, precision and chat template on both sides, or correct the difference
    with --is-weight.
    """
    facts, gap = data.facts, data.facts.mismatch
    same, sure = (facts.whole(x) for x in ("identical_log_probs", "confident_disagreement"))
    if gap is None or same["total"] == same["count"]:
        return NotRun("the log-probs are identical" if gap else NO_TOKENS)
    counts = facts.by("step", "engine_k3", "count")
    by_step = zip(facts.labels("step"), facts.by("step", "engine_k3"), counts, strict=True)
    steps = {x: k3 for x, k3, n in by_step if n >= TOKENS_OF_STEP and k3 > MOST_K3}
    whole, ess = facts.whole("engine_k3")["mean"], facts.whole("ess")["value"] or 0.0
    many_wrong = sure["mean"] > CONFIDENT_DISAGREEMENT
    if whole < MOST_K3 and ess > LEAST_ESS and not many_wrong and not steps:
        return None
    text = (
        f"`{data.column('infer_log_probs')}` and `{data.column('old_log_probs')}` differ by "
        f"{facts.whole('engine_gap')['mean']:.3g} nats on average; k3 {whole:.3g}, effective "
        f"sample size {percent(ess)}"
    )
    if clamped := facts.whole("engine_clamped")["total"]:
        tokens = counted(clamped, "token")
        text += f" (both with differences clamped to ±{LOG_RATIO_CLAMP:g}, in {tokens})"
    parts = [text]
    if sure["total"]:
        tokens = counted(sure["total"], "token")
        parts.append(f"{tokens} likely for the engine (≥ 0.5), but over 7 × less for the trainer")
    if in_steps := data.in_steps(steps):
        k3s = [f"{k3:.3g}" for k3 in sorted(steps.values())]
        parts.append(f"k3 is {' to '.join(dict.fromkeys([k3s[0], k3s[-1]]))}{in_steps}")
    parts += [cause] if (cause := likeliest(gap.causes)) else []
    k3 = data.reading.rows["k3"].fill_nan(-1)
    return Problem(
        "; ".join(parts),
        k3.arg_sort(descending=True)[: int((k3 > 0).sum())].to_list(),
        ["infer_log_probs", "old_log_probs"],
        advice=f"{gap.causes[0].advice}; --about mismatch has the evidence" if gap.causes else "",
    )


@check("warning", "rollout ids", "token ids")
def shared_prefixes(data: CheckInput) -> Result:
    """Several rows of a rollout train the same policy tokens: forks, and turns with their history.

    A segment of policy tokens counts as the same if all token ids are equal from the start of the
    prompt to its end. Each row that has it adds its gradient, so early turns weigh more.

    Set the mask of these tokens to 0 in all rows but one, or write one row for each rollout.
    """
    assert data.repeated is not None
    repeated, tokens = data.repeated
    count, rows = int(repeated.sum()), int((repeated > 0).sum())
    if not tokens:
        return NotRun(NO_TOKENS)
    if count < SHARED * tokens:
        return None
    text = f"{count:,} of {tokens:,} policy tokens ({share(count, tokens)}), in "
    text += f"{counted(rows, 'response')}, are trained by another row of their "
    text += f"`{data.column('rollout')}`, too: token ids are equal up to them"
    return Problem(text, pl.Series(repeated > 0), ["rollout"])
