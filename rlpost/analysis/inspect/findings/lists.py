"""Findings about tokens: lengths, offsets and padding of lists, the mask, log-probs, mismatch."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.causes import likeliest
from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.analysis.inspect.tokens import LOG_RATIO_CLAMP
from rlpost.display.text import counted, percent, share
from rlpost.recipe.roles import LOG_PROB_ROUNDING

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import Result
    from rlpost.analysis.inspect.inspected import Inspected
    from rlpost.analysis.inspect.model import Shift, TokenColumn


HALF = 1 / 2  # of the responses: more of them are no coincidence
FEW_TOKENS = 16  # fewer may be equal by chance
FILLED = 1 / 4  # zeros more per token that a response is shorter: with padding to one length 1, to
# the longest of 4 responses 0.5 to 0.75, with tokens of which the policy is certain 0
UNCERTAIN = 0.1  # nats on average, that a response has whose tokens are not all certain
FEW_SHIFTED = 64  # tokens; fewer do not show a shift
BETTER = 2.0  # times that a shifted column must fit better
STANDARD_ERRORS = 4.0
INVERTED = 0.9  # of the responses with policy tokens
MOST_K3 = 0.01  # nats per token; engines that agree stay below a tenth of it
LEAST_ESS = 0.9
CONFIDENT_DISAGREEMENT = 1e-3  # of the tokens
SHARED = 0.01  # of the policy tokens
TOKENS_OF_STEP = 256  # in fewer, one unusual token makes k3 large
NO_TOKENS = "no policy token counts, or lists have unequal lengths"


@check("error or warning", "log-probs")
def shifted_lists(data: Inspected) -> Result:
    """A column is offset by one token against another column or against the mask.

    Ratios and KL of neighbouring tokens mean nothing. Frameworks that predict the next token
    store log-probs one place earlier.

    Shift the column back, so that entry t of every list is of response token t; check whether it is
    offset against the mask, or the last token has no log-prob.
    """
    rows, reading = data.rows, data.reading
    by_pair = reading.sample.shifts(rows)
    shifts = [by_label[None] for by_label in by_pair.values() if None in by_label]
    shifted = [shift for shift in (*shifts, *reading.jumps.shifts()) if _is_shifted(shift)]
    by_step = {
        pair: {x: y for x, y in by_label.items() if x is not None and _is_shifted(y)}
        for pair, by_label in by_pair.items()
    }
    shifted += [shift for steps in by_step.values() for shift in steps.values()]
    if not shifted:
        return _zero_at_an_end(data)
    shift = shifted[0]
    in_steps = data.in_steps(steps := by_step.get(shift.columns, {}))
    first, second = (f"`{data.column(role)}`" for role in shift.columns)
    reason = "log-probs jump at that offset, not at the edges of the mask"
    if shift.columns[0] != "mask":
        here, there = f"{shift.difference:.3g}", f"{shift.difference_at_lag:.3g}"
        reason = f"mean |difference| {here} instead of {there} nats"
    text = f"{second} matches {first} one token {'later' if shift.lag > 0 else 'earlier'}"
    flags = rows["batch"].is_in([*steps]) if in_steps else rows["tokens"] > 1
    return Problem(f"{text}{in_steps} ({reason})", flags, shift.columns, error=True)


def _is_shifted(shift: Shift) -> bool:
    if not shift.lag or shift.tokens < FEW_SHIFTED:
        return False
    if shift.columns[0] == "mask":
        jump = shift.difference_at_lag
        return jump > BETTER * shift.difference and jump > STANDARD_ERRORS
    return shift.difference_at_lag * BETTER < shift.difference


def _zero_at_an_end(data: Inspected) -> Result:
    """Find log-probs of exactly 0 at the first or last policy token of most responses.

    With a single column, it is unknown whether the policy is certain of these tokens.
    """
    if _zero_padding(data) is not None:
        return None
    columns = data.log_probs
    alone = len(columns) == 1
    for role, column in columns.items():
        flags = data.rows[f"shifted:{role}"]
        count = int(flags.sum())
        zeros = column.zero / column.tokens if column.tokens else 1.0
        if count > HALF * data.count and zeros < HALF * count / data.count:
            looks = "a fill value: other columns are not 0 there"
            if alone:
                looks = "a fill value, or a token of which the policy is certain"
            text = (
                f"{data.part(count)} begin or end with a policy token whose `{column.column}` is "
            )
            text += f"exactly 0, which looks like {looks}; {share(column.zero, column.tokens)} of "
            return Problem(text + "all tokens are 0", flags, [role], error=not alone)
    return None


@check("error", "token lists")
def unequal_lengths(data: Inspected) -> Result:
    """The lists of a response differ in length.

    Entry t of each list belongs to response token t, so a list of another length cannot be
    matched; a column that differs in most responses is left out.

    Write one entry per response token, without prompt and padding.
    """
    selection, rows = data.selection, data.rows
    others, lists = [x for x in selection.tokens if x != selection.lists], selection.lists_column
    ids = [
        f"`{name}` has {x:,} values, and `{lists}` {y:,}: lists of a response differ in length"
        for name, (x, y) in selection.unequal_ids.items()
    ]
    if not others and not ids:
        return NotRun(f"no list to compare with `{lists}`")
    flags = {role: rows[f"unequal:{role}"] for role in others if rows[f"unequal:{role}"].any()}
    if not flags:
        return Problem("; ".join(ids), roles=[*selection.unequal_ids, lists or ""]) if ids else None
    counts, unequal = {role: int(x.sum()) for role, x in flags.items()}, reduce(or_, flags.values())
    names = [f"`{data.column(role)}` (in {count:,})" for role, count in counts.items()]
    first = rows.filter(unequal).row(0, named=True)
    entries = {lists: -1 if first["null_list"] else first["length"]}
    entries |= {data.column(x): first[f"entries:{x}"] for x in counts if first[f"unequal:{x}"]}
    sizes = [f"`{x}` {'null' if count < 0 else f'{count:,}'}" for x, count in entries.items()]
    text = f"{', '.join(names)} and `{lists}` differ in length in {data.part(int(unequal.sum()))}"
    text += f", the first with {', '.join(sizes)}: token statistics leave them out"
    if len(counts) > 1 and len(counts) == len(others):
        text += f"; `{lists}` differs from all others"
    text = "; ".join([text, *ids])
    return Problem(text, unequal, [*counts, selection.lists or "", *selection.unequal_ids])


@check("error or warning", "mask or log-probs")
def padded_lists(data: Inspected) -> Result:
    """Lists are padded: they begin or end with zeros, or have one length and masked ends.

    Padding without a mask counts as policy tokens: in lengths, whitening and means over tokens.
    With a mask it uses memory, and a tool that reads no mask counts it.

    Cut each list to the tokens of its response.
    """
    rows, zeros, unmasked = data.rows, _zero_padding(data), 0
    masked = {end: int(rows[end].sum()) for end in _VERBS}
    if zeros is not None:
        role, side, flags = zeros
        end = "trailing" if side == "padded" else "leading"
        count, unmasked = int(flags.sum()), int((flags & ~rows[end]).sum())
        where = f"{unmasked:,} of them at policy tokens" if unmasked else "at masked tokens"
        text = f"{data.part(count)} {_VERBS[end]} zeros in `{data.column(role)}`, {where}"
    elif rows["length"].n_unique() == 1 and max(masked.values()) > HALF * data.count:
        # Most dialogues end with policy tokens, so lists of one length with masked ends are padded.
        role, end = "mask", max(masked, key=lambda end: masked[end])
        flags = rows[end]
        text = (
            f"all lists have one length, and {data.part(masked[end])} {_VERBS[end]} masked tokens"
        )
    else:
        return None
    left = " on the left, or contain the prompt" if end == "leading" else ""
    text = f"{text}: the lists are padded{left}"
    return Problem(text, flags, [role], error=unmasked > 0)


_VERBS = {"trailing": "end with", "leading": "begin with"}


def _zero_padding(data: Inspected) -> tuple[str, str, pl.Series] | None:
    """Return the role and the side (`padded` or `left`) of padding with zeros, and who has it.

    A shorter response has more padding. The first and last tokens of which the policy is certain
    are zeros, too, but not the more, the shorter the response is. None if fewer than half of the
    responses have zeros at an end, or if these are no padding.
    """
    rows, padded = data.rows, []
    for role, column in data.log_probs.items():
        if column.tokens >= FEW_TOKENS and column.min == column.max:
            continue  # never computed
        for side in ("padded", "left"):
            counts = rows[f"{side}:{role}"].to_numpy()
            known = counts >= 0
            zeros, others = counts[known], (rows["length"].to_numpy() - counts)[known]
            shorter = others.mean() - others if len(others) else others
            fills = zeros @ shorter > FILLED * (shorter @ shorter)  # the slope is FILLED
            if (zeros > 0).sum() > HALF * data.count and fills:
                padded.append((role, side, pl.Series(counts > 0)))
    return max(padded, key=lambda item: int(item[2].sum()), default=None)


@check("error or warning", "mask")
def mask_values(data: Inspected) -> Result:
    """The mask has values other than 0 and 1, or looks inverted.

    A mask is 1 at policy tokens and 0 at observations; other values count as 1. It looks inverted
    if most tokens are observations, and responses begin and end with them: tool output is trained.

    Correct the mask, or set another column with --map mask=COLUMN; cut prompts and padding.
    """
    rows, column = data.rows, data.column("mask")
    if wrong := int(rows["not_binary"].sum()):
        other = data.reading.other_mask
        value = "null" if other is None else f"{other:g}"
        text = f"`{column}` has values other than 0 and 1, such as {value}, in {data.part(wrong)}"
        flags = rows["not_binary"]
    else:
        flags = rows["leading"] & rows["trailing"] & (rows["tokens"] > 0)
        observed = 1 - int(rows["tokens"].sum()) / max(int(rows["length"].sum()), 1)
        if rows["length"].n_unique() == 1 or observed <= HALF:
            return None  # or padded
        if (count := int(flags.sum())) <= INVERTED * int((rows["tokens"] > 0).sum()):
            return None
        text = f"{data.part(count)} begin and end with observations (`{column}` 0), and "
        text += f"{percent(observed)} of the tokens are: the mask looks inverted"
    return Problem(text, flags, ["mask"], "--map mask=COLUMN", error=wrong > 0)


@check("error or warning", "lengths")
def empty_masks(data: Inspected) -> Result:
    """Responses have no policy token: they get no advantage, but count in their group's mean.

    Such a response is trained on nowhere, but its reward moves the baseline of its group. If no
    response has any, lengths are unknown.

    Drop such responses, or correct the mask or the lengths.
    """
    rows = data.rows
    signs = {} if data.facts.failures else data.signs_of_failures()
    failed = reduce(or_, signs.values(), data.flags("failed"))  # which have findings
    flags = (rows["tokens"] == 0) & ~failed
    if not (count := int(flags.sum())):
        return None
    reason = f"`{data.selection.lengths_column}` "
    masked = data.selection.lists == "mask"
    reason += "is 0" if masked or "length" not in rows else "is empty"
    if nulls := int(rows["null_list"].sum()) if "null_list" in rows else 0:
        reason += f", or null ({nulls:,})"
    text = f"{data.part(count)} {'has' if count == 1 else 'have'} no policy token: {reason}"
    roles = ["mask"] if masked else []
    return Problem(text, flags, roles, error=count > HALF * data.count)


@check("error", "numbers")
def nonfinite(data: Inspected) -> Result:
    """Rewards, log-probs, values or token rewards are null, NaN or infinite.

    One such number makes all advantages of its response NaN, those of its group if it is a reward,
    and with whitening those of its batch. Rewards of rollouts that failed do not count. Top-p and
    top-k sampling give -inf to tokens that they exclude; NaN means that logits are invalid.

    Correct the dump, score the responses again, or leave them out of `rlpost advantages` with
    --nonfinite mask; --numerics is_missing=one gives tokens without an engine log-prob weight 1.
    """
    rows, reward = data.rows, pl.Series(data.table.nonfinite)
    kinds: dict[str, dict[str, int]] = {}
    flags = []
    if "reward" in rows and reward.any():
        values = rows["reward"].filter(reward)  # of a rollout, other rows may have finite ones
        null, infinite = rows["reward_null"].filter(reward), int(values.is_infinite().sum())
        nan = int((values.is_nan() & ~null).sum())
        kinds["reward"] = {"null": int(null.sum()), "NaN": nan, "±inf": infinite}
        flags.append(reward)
    for role, column in data.facts.token_columns.items():
        if column.nonfinite_rows:
            flags.append(rows[f"nonfinite:{role}"])
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
def not_log_probs(data: Inspected) -> Result:
    """Log-probs are greater than 0, by more than rounding, or have one value in all tokens.

    Ratios and KL computed from it are wrong: it has probabilities, negative log-likelihoods or
    logits, or a fill value that was never computed, also of some responses alone: 0 in all
    tokens of responses, 16 tokens or more together. Up to 0.001 counts as rounding.

    Correct the dump, or set another column with --map ROLE=COLUMN, or none.
    """
    columns = data.log_probs
    if not any(column.tokens for column in columns.values()):
        return NotRun(NO_TOKENS)
    rows, flags, texts = data.rows, {}, []
    for role, column in columns.items():
        name = f"`{column.column}`"
        if column.tokens >= FEW_TOKENS and column.min == column.max:
            flags[role] = rows["tokens"] > 0
            all_tokens = f"all {column.tokens:,} policy tokens"
            texts.append(f"{name} is {column.min:g} in {all_tokens}: never computed")
        elif column.positive:
            verb = "is" if column.positive == 1 else "are"
            flags[role] = rows[f"positive:{role}"]
            texts.append(
                f"{column.positive:,} of {column.tokens:,} {name} "
                f"({share(column.positive, column.tokens)}) {verb} above 0, up to "
                f"{column.max:.4g}: {_likely_kind(column)}"
            )
        elif (filled := _filled(data, role, [*columns])).any():
            flags[role] = filled
            which = data.part(int(filled.sum()))
            texts.append(f"{name} is exactly 0 in all policy tokens of {which}: a fill value")
    if not flags:
        return None
    option = f"--map {next(iter(flags))}=COLUMN"
    return Problem("; ".join(texts), reduce(or_, flags.values()), [*flags], option)


def _filled(data: Inspected, role: str, roles: list[str]) -> pl.Series:
    """Return the responses whose log-probs are all 0, and not in another column.

    They have some tokens together.
    """
    rows = data.rows
    zero = (rows[f"mean:{role}"] == 0) & (rows["tokens"] > 0)
    others = [rows[f"mean:{other}"] < -UNCERTAIN for other in roles if other != role]
    filled = zero & reduce(or_, others) if others else zero
    return filled & (rows["tokens"].filter(filled).sum() >= FEW_TOKENS)


def _likely_kind(column: TokenColumn) -> str:
    """Return what numbers greater than 0 may be instead of log-probs."""
    low, high = column.min or 0.0, column.max or 0.0
    if low < -LOG_PROB_ROUNDING:
        return "logits, or log-probs with noise"
    if high <= 1 + LOG_PROB_ROUNDING:
        return "probabilities without a logarithm"
    return "negative log-likelihoods (NLL), whose sign is inverted"


@check("warning", "log-probs of two policies")
def same_log_probs(data: Inspected) -> Result:
    """The log-probs of two policies are equal in every token, or read from the same column.

    The KL, or the difference between rollout engine and trainer, is then 0 whatever happened. In
    the first step, a policy equals its reference.

    Write the log-probs of each policy to a column of its own, or set it with --map ROLE=COLUMN.
    """
    rows, differing = data.rows, data.reading.differing
    pairs = [x for x in differing if data.log_probs[x[0]].tokens >= FEW_TOKENS]
    if not pairs:
        return NotRun(f"fewer than {FEW_TOKENS} policy tokens")
    equal = [pair for pair in pairs if not differing[pair]]
    if data.steps < 2:  # noqa: PLR2004 - before the first update the policy equals its reference
        equal = [pair for pair in equal if "ref_log_probs" not in pair]
    if not equal:
        return None
    texts = []
    for role, other in equal:
        left, right = data.column(role), data.column(other)
        how = "are the same column" if left == right else "are equal in every policy token"
        zero = "KL to the reference"
        zero = zero if other == "ref_log_probs" else "difference between rollout engine and trainer"
        texts.append(f"{role} (`{left}`) and {other} (`{right}`) {how}, so the {zero} is 0")
    roles, option = [role for pair in equal for role in pair], f"--map {equal[0][1]}=COLUMN"
    return Problem("; ".join(texts), rows["tokens"] > 0, roles, option)


@check("warning", "old_log_probs", "infer_log_probs")
def engine_mismatch(data: Inspected) -> Result:
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
    whole, ess = facts.whole("engine_k3")["mean"], facts.whole("engine_ess")["value"] or 0.0
    many_wrong = sure["mean"] > CONFIDENT_DISAGREEMENT
    known = any(x.sure == "high" and x.advice and x.name != "precision" for x in gap.causes)
    if whole < MOST_K3 and ess > LEAST_ESS and not (many_wrong or steps or known):
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
    k3 = data.rows["k3"].fill_nan(-1)
    return Problem(
        "; ".join(parts),
        k3.arg_sort(descending=True)[: int((k3 > 0).sum())].to_list(),
        ["infer_log_probs", "old_log_probs"],
        advice=f"{gap.causes[0].advice}; --about mismatch has the evidence" if gap.causes else "",
    )


@check("warning", "rollout ids", "token ids")
def shared_prefixes(data: Inspected) -> Result:
    """Several rows of a rollout train the same policy tokens: forks, and turns with their history.

    A segment of policy tokens counts as the same if all token ids are equal from the start of the
    prompt to its end. Each row that has it adds its gradient, so early turns weigh more.

    Set the mask of these tokens to 0 in all rows but one, or write one row for each rollout.
    """
    repeated, tokens = data.repeated()
    count, rows = int(repeated.sum()), int((repeated > 0).sum())
    if not tokens:
        return NotRun(NO_TOKENS)
    if count < SHARED * tokens:
        return None
    text = f"{count:,} of {tokens:,} policy tokens ({share(count, tokens)}), in "
    text += f"{counted(rows, data.noun)}, are trained by another row of their "
    text += f"`{data.column('rollout')}`, too: token ids are equal up to them"
    return Problem(text, pl.Series(repeated > 0), ["rollout"])
