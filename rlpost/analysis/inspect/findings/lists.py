"""Findings about lists of tokens: their lengths, offsets and padding, and the mask."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlpost.analysis.inspect.failures import signs_of_failures
from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.display.text import percent, share

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import CheckInput, Result
    from rlpost.analysis.inspect.model import Shift


HALF = 1 / 2  # of the responses: more of them are no coincidence
FEW_TOKENS = 16  # fewer may be equal by chance
FILLED = 1 / 4  # zeros more per token that a response is shorter: with padding to one length 1, to
# the longest of 4 responses 0.5 to 0.75, with tokens of which the policy is certain 0
FEW_SHIFTED = 64  # tokens; fewer do not show a shift
BETTER = 2.0  # times that a shifted column must fit better
STANDARD_ERRORS = 4.0
INVERTED = 0.9  # of the responses with policy tokens


@check("error or warning", "log-probs")
def shifted_lists(data: CheckInput) -> Result:
    """A column is offset by one token against another column or against the mask.

    Ratios and KL of neighbouring tokens mean nothing. Frameworks that predict the next token
    store log-probs one place earlier.

    Shift the column back, so that entry t of every list is of response token t; check whether it is
    offset against the mask, or the last token has no log-prob.
    """
    assert data.tokens is not None
    rows, shifts = data.reading.rows, data.tokens.shifts
    pairs = [shift.columns for shift in shifts if shift.columns[0] != "mask"]
    by_step = {
        pair: {x: y for x, y in data.reading.step_shifts(pair).items() if _is_shifted(y)}
        for pair in pairs
    }
    shifted = [shift for shift in shifts if _is_shifted(shift)]
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


def _zero_at_an_end(data: CheckInput) -> Result:
    """Find log-probs of exactly 0 at the first or last policy token of most responses.

    With a single column, it is unknown whether the policy is certain of these tokens.
    """
    assert data.tokens is not None
    if _zero_padding(data) is not None:
        return None
    alone = len(data.tokens.edges) == 1
    for role, ends in data.tokens.edges.items():
        column, count = data.tokens.columns[role], ends["shifted"]
        zeros = column.zero / column.tokens if column.tokens else 1.0
        if count > HALF * data.count and zeros < HALF * count / data.count:
            looks = "a fill value: other columns are not 0 there"
            if alone:
                looks = "a fill value, or a token of which the policy is certain"
            text = (
                f"{data.part(count)} begin or end with a policy token whose `{column.column}` is "
            )
            text += f"exactly 0, which looks like {looks}; {share(column.zero, column.tokens)} of "
            flags = data.reading.rows[f"shifted:{role}"].fill_nan(0) > 0
            return Problem(text + "all tokens are 0", flags, [role], error=not alone)
    return None


@check("error", "token lists")
def unequal_lengths(data: CheckInput) -> Result:
    """The lists of a response differ in length.

    Entry t of each list belongs to response token t, so a list of another length cannot be
    matched; a column that differs in most responses is left out.

    Write one entry per response token, without prompt and padding.
    """
    selection, rows = data.reading.selection, data.reading.rows
    others, lists = [x for x in selection.tokens if x != selection.lists], selection.lists_column
    if not others:
        return NotRun(f"no list to compare with `{lists}`")
    flags = {role: rows[f"unequal:{role}"] for role in others if rows[f"unequal:{role}"].any()}
    if not flags:
        return None
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
    return Problem(text, unequal, [*counts, selection.lists or ""])


@check("error or warning", "mask or log-probs")
def padded_lists(data: CheckInput) -> Result:
    """Lists are padded: they begin or end with zeros, or have one length and masked ends.

    Padding without a mask counts as policy tokens: in lengths, whitening and means over tokens.
    With a mask it uses memory, and a tool that reads no mask counts it.

    Cut each list to the tokens of its response.
    """
    rows, masks, zeros, unmasked = data.reading.rows, data.masks, _zero_padding(data), 0
    masked = max(masks.trailing, masks.leading) if masks else 0
    if zeros is not None:
        role, side, flags = zeros
        end = "trailing" if side == "padded" else "leading"
        count, unmasked = int(flags.sum()), int((flags & ~rows[end]).sum())
        where = f"{unmasked:,} of them at policy tokens" if unmasked else "at masked tokens"
        text = f"{data.part(count)} {_VERBS[end]} zeros in `{data.column(role)}`, {where}"
    elif masks is not None and masks.equal_lengths and masked > HALF * data.count:
        # Most dialogues end with policy tokens, so lists of one length with masked ends are padded.
        role, end = "mask", "trailing" if masks.trailing >= masks.leading else "leading"
        flags = rows[end]
        text = f"all lists have one length, and {data.part(masked)} {_VERBS[end]} masked tokens"
    else:
        return None
    left = " on the left, or contain the prompt" if end == "leading" else ""
    text = f"{text}: the lists are padded{left}"
    return Problem(text, flags, [role], error=unmasked > 0)


_VERBS = {"trailing": "end with", "leading": "begin with"}


def _zero_padding(data: CheckInput) -> tuple[str, str, pl.Series] | None:
    """Return the role and the side (`padded` or `left`) of padding with zeros, and who has it.

    A shorter response has more padding. The first and last tokens of which the policy is certain
    are zeros, too, but not the more, the shorter the response is. None if fewer than half of the
    responses have zeros at an end, or if these are no padding.
    """
    columns, rows = data.tokens.columns if data.tokens else {}, data.reading.rows
    padded = []
    for role in (role for role in LOG_PROBS if role in columns):
        if columns[role].tokens >= FEW_TOKENS and columns[role].min == columns[role].max:
            continue  # never computed
        for side in ("padded", "left"):
            counts = rows[f"{side}:{role}"].to_numpy().astype(np.float64)
            known = ~np.isnan(counts)
            zeros, others = counts[known], (rows["length"].to_numpy() - counts)[known]
            shorter = others.mean() - others if len(others) else others
            fills = zeros @ shorter > FILLED * (shorter @ shorter)  # the slope is FILLED
            if (zeros > 0).sum() > HALF * data.count and fills:
                padded.append((role, side, pl.Series(np.nan_to_num(counts) > 0)))
    return max(padded, key=lambda item: int(item[2].sum()), default=None)


@check("error or warning", "mask")
def mask_values(data: CheckInput) -> Result:
    """The mask has values other than 0 and 1, or looks inverted.

    A mask is 1 at policy tokens and 0 at observations; other values count as 1. It looks inverted
    if most tokens are observations, and responses begin and end with them: tool output is trained.

    Correct the mask, or set another column with --map mask=COLUMN; cut prompts and padding.
    """
    masks, rows = data.masks, data.reading.rows
    if masks is None:
        return None
    if masks.not_binary:
        value = "null" if masks.other_value is None else f"{masks.other_value:g}"
        text = f"`{masks.column}` has values other than 0 and 1, such as {value}, in "
        text, flags = text + data.part(masks.not_binary), rows["not_binary"]
    else:
        flags = rows["leading"] & rows["trailing"] & (rows["tokens"] > 0)
        if masks.equal_lengths or masks.observation_share <= HALF:
            return None  # or padded
        if (count := int(flags.sum())) <= INVERTED * (data.count - masks.empty):
            return None
        text = f"{data.part(count)} begin and end with observations (`{masks.column}` 0), and "
        text += f"{percent(masks.observation_share)} of the tokens are: the mask looks inverted"
    return Problem(text, flags, ["mask"], "--map mask=COLUMN", error=masks.not_binary > 0)


@check("error or warning", "token lists")
def empty_masks(data: CheckInput) -> Result:
    """Responses have no policy token: they get no advantage, but count in their group's mean.

    Such a response is trained on nowhere, but its reward moves the baseline of its group.

    Drop such responses, or correct the mask.
    """
    rows = data.reading.rows
    signs = {} if data.failures else signs_of_failures(rows)
    failed = reduce(or_, signs.values(), data.flags("failed"))  # which have findings
    flags = (rows["tokens"] == 0) & ~failed
    if not (count := int(flags.sum())):
        return None
    reason = f"`{data.masks.column}` is 0" if data.masks else "no tokens"
    if nulls := int(rows["null_list"].sum()):
        reason += f", or null ({nulls:,})"
    text = f"{data.part(count)} {'has' if count == 1 else 'have'} no policy token: {reason}"
    return Problem(text, flags, ["mask"] if data.masks else [], error=count > HALF * data.count)
