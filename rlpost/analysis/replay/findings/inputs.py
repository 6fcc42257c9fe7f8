"""Other inputs than the recorded columns, and other computations that no option makes.

A trainer may read another column, or read it one token off, and it may place, group or whiten
numbers in another way. Each check yields what the trainer may have had; those of `@check` with the
prefix `input:` are about what it read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.findings.base import PossibleCause, check
from rlpost.analysis.replay.findings.evidence import column_of, neighbours, numbers_of
from rlpost.analysis.replay.findings.relations import to_bfloat16, to_float16
from rlpost.analysis.replay.rollouts import NumberColumn
from rlpost.analysis.replay.stages import normalises_after_kl, with_column
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.findings.evidence import Evidence

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_REWARDS, _TOKENS = "response_level_rewards", "token_level_rewards"


# ---- other prompt groups ----


@check("first change", prefix="input:")
def groups_over_steps(seen: Evidence) -> Iterator[PossibleCause]:
    """Rewards are normalised in prompt groups over all steps, not within each step.

    The baseline mixes responses of several policies, and of different numbers of steps. Group by
    step and prompt.
    """
    rollouts = seen.replayer.rollouts
    if not _normalises_in_groups(seen):
        return
    if len(np.unique(rollouts.codes("group"))) < len(np.unique(rollouts.groups)):
        text = "reproduced with the responses of a prompt in one group, over all steps"
        yield _grouped(seen, text, None)


@check("first change", prefix="input:")
def groups_of_rows(seen: Evidence) -> Iterator[PossibleCause]:
    """Rewards are normalised in groups of consecutive rows, whatever their prompts.

    Responses are compared with those of other prompts. Keep the rows of a prompt together, or group
    them by their prompt.
    """
    if not _normalises_in_groups(seen):
        return
    groups = seen.replayer.rollouts.groups
    sizes = np.bincount(np.bincount(groups))
    for size in np.argsort(-sizes, kind="stable")[:2]:
        if size > 1 and sizes[size]:
            text = f"reproduced with groups of {size} consecutive rows, whatever their prompts"
            yield _grouped(seen, text, pa.array(np.arange(len(groups)) // size))


def _normalises_in_groups(seen: Evidence) -> bool:
    """Return whether the stage is computed from rewards that are normalised in groups."""
    estimator = seen.resolved.estimator
    by_group = estimator.level == "response" and "offsets" in estimator.parameters
    grouped = "group" in seen.resolved.norm or by_group
    return grouped and _REWARDS not in seen.first.used and "group" in seen.replayer.rollouts.columns


def _grouped(seen: Evidence, text: str, group: pa.Array | None) -> PossibleCause:
    """Return the stage whose rewards are normalised in other groups, with all steps as one."""
    columns, table = seen.replayer.rollouts.columns, seen.replayer.inputs
    if group is not None:
        table = with_column(table, columns.column("group"), group)
    if "batch" in columns:
        zeros = pa.array(np.zeros(table.num_rows, np.int64))
        table = with_column(table, columns.column("batch"), zeros)
    replayer = seen.replayer.reading(table)
    if "group" not in seen.resolved.norm or normalises_after_kl(seen.resolved.recipe):
        return PossibleCause(text, numbers=numbers_of(replayer, seen.recipe, seen.first.name))
    rewards = column_of(replayer, seen.recipe, _REWARDS)
    return PossibleCause(text, numbers=None if rewards is None else _with(seen, _REWARDS, rewards))


def _with(seen: Evidence, name: str, values: Numbers) -> Numbers | None:
    """Return the stage that differs, computed from other numbers of an earlier stage."""
    if seen.first.name == name:
        return values
    rollouts = seen.replayer.rollouts
    column: Any = pa.array(values)
    if len(values) != len(rollouts) or name != _REWARDS:
        column = pa.ListArray.from_arrays(rollouts.offsets.astype(np.int32), column)
    return numbers_of(seen.replayer.assuming(name, column), seen.recipe, seen.first.name)


# ---- another KL penalty ----


@check("change")
def sign(seen: Evidence) -> Iterator[PossibleCause]:
    """The KL penalty has the opposite sign: it is added to the rewards, not subtracted.

    Training moves the policy away from the reference. Subtract β·KL, of log-probs of the policy
    minus those of the reference.
    """
    used = {"kl", *seen.first.used}
    if seen.first.name == "kl" or not seen.resolved.kl or seen.recipe.kl_coef == 0:
        return
    if used & {_TOKENS, "raw_advantages"}:
        return
    rollouts = seen.replayer.rollouts
    kl = (
        rollouts.column("kl").on_tokens(rollouts.offsets)
        if "kl" in rollouts.recorded
        else column_of(seen.replayer, seen.recipe, "kl")
    )
    if kl is None:
        return
    text = "the KL penalty has the other sign: it is added to the rewards, not subtracted"
    if seen.recipe.kl_estimator == "k1" and "kl" not in rollouts.recorded:
        columns = rollouts.columns
        names = [columns.column(role) for role in LOG_PROBS if role in seen.resolved.kl_reads]
        text += f" (the same as {' and '.join(f'`{name}`' for name in names)} exchanged)"
    yield PossibleCause(text, numbers=_with(seen, "kl", -np.nan_to_num(kl)))


# ---- other log-probs, values and masks ----


@check("change", prefix="input:")
def log_probs_bfloat16(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed from log-probs that are rounded to bfloat16.

    It has 8 significant bits, so that a difference of near log-probs, as in a KL or a ratio, is
    mostly rounding. Compute log-probs in float32.
    """
    yield from _rounded(seen, _log_probs(seen), "bfloat16", to_bfloat16)


@check("change", prefix="input:")
def log_probs_float16(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed from log-probs that are rounded to float16.

    It has 11 significant bits, so that a difference of near log-probs, as in a KL or a ratio, is
    mostly rounding. Compute log-probs in float32.
    """
    yield from _rounded(seen, _log_probs(seen), "float16", to_float16)


@check("change", prefix="input:")
def values_bfloat16(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed from critic values that are rounded to bfloat16.

    It has 8 significant bits, and advantages are differences of near values. Compute the head of
    the critic in float32.
    """
    yield from _rounded(seen, _columns(seen, ["values"]), "bfloat16", to_bfloat16)


@check("change", prefix="input:")
def policies_swapped(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed with the log-probs of one policy in place of another's.

    The KL, or the importance weight, is of other policies, or has the other sign. Check in which
    order the trainer passes them.
    """
    if seen.resolved.rows_only:
        return
    names, table = _columns(seen, LOG_PROBS), seen.replayer.inputs
    roles = [*names]
    for role, (name, _) in names.items():
        for other, (source, _) in names.items():
            if role not in seen.roles or name == source:
                continue
            read = with_column(table, name, table.column(source))
            yield PossibleCause(f"reproduced with `{source}` read in place of `{name}`", read)
            if roles.index(role) < roles.index(other):
                both = with_column(read, source, table.column(name))
                yield PossibleCause(f"reproduced with `{name}` and `{source}` exchanged", both)


@check("change", prefix="input:")
def values_shifted(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed from critic values that are one token off.

    The value of a token is that of the state before it; the one after it has its reward already.
    Check how the trainer cuts the critic's output.
    """
    yield from _shifted(seen, _columns(seen, ["values"]))


@check("change", prefix="input:")
def log_probs_shifted(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed from log-probs that are one token off.

    Logits predict the next token: those at t-1 give the log-prob of token t. Check how the trainer
    cuts logits and tokens.
    """
    yield from _shifted(seen, _log_probs(seen))


@check("change", prefix="input:")
def mask_shifted(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed with a mask that is one token off.

    An observation token is trained at each edge, and a policy token is not; often the last one,
    which has the reward. Cut the mask as the tokens.
    """
    for name, column in _masks(seen):
        for by, which in ((1, "next"), (-1, "previous")):
            own, other = neighbours(
                seen.replayer.rollouts.of_tokens, by, np.arange(len(column.values))
            )
            for edge in (1.0, 0.0, None):
                values = column.values.copy() if edge is None else np.full_like(column.values, edge)
                values[own] = column.values[other]
                if not np.array_equal(values, column.values):
                    text = f"`{name}` shifted: each token has the mask of the {which} token"
                    yield _masked(seen, f"reproduced with {text}", name, column, values)


@check("change", prefix="input:")
def mask_ones(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed without the mask: every token counts.

    Tokens of tools and of the environment are trained as if the policy had produced them. Pass the
    mask.
    """
    for name, column in _masks(seen):
        if (column.values == 0).any():
            ones = np.ones_like(column.values)
            text = f"reproduced without `{name}`: every token counts"
            yield _masked(seen, text, name, column, ones)


def _columns(seen: Evidence, roles: Sequence[str]) -> dict[str, tuple[str, NumberColumn]]:
    """Return the columns of tokens that have some roles: name and numbers, by role."""
    replayer, columns = seen.replayer, seen.replayer.rollouts.columns
    names = {role: columns.column(role) for role in roles if role in columns}
    read = {role: (x, NumberColumn.of(replayer.inputs.column(x))) for role, x in names.items()}
    return {role: own for role, own in read.items() if own[1].offsets is not None}


def _log_probs(seen: Evidence) -> dict[str, tuple[str, NumberColumn]]:
    """Return the log-probs that the stage is computed from."""
    return _columns(seen, [role for role in LOG_PROBS if role in seen.roles])


def _masks(seen: Evidence) -> list[tuple[str, NumberColumn]]:
    """Return the mask, if there is one."""
    return [] if seen.resolved.rows_only else [*_columns(seen, ["mask"]).values()]


def _lists(column: NumberColumn, values: Numbers) -> pa.Array:
    """Return lists of float32 numbers, of the lengths of a column."""
    assert column.offsets is not None
    offsets = column.offsets.astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(values.astype(np.float32)))


def _rounded(
    seen: Evidence,
    columns: dict[str, tuple[str, NumberColumn]],
    dtype: str,
    rounded: Callable[[Numbers], Numbers],
) -> Iterator[PossibleCause]:
    """Yield columns rounded to a dtype: all, or those of one role."""
    read = {role: own for role, own in columns.items() if role in seen.roles}
    if seen.resolved.rows_only or not read:
        return
    for roles in ([*read], *([role] for role in read if len(read) > 1)):
        table = seen.replayer.inputs
        for name, column in (read[role] for role in roles):
            table = with_column(table, name, _lists(column, rounded(column.values)))
        names = " and ".join(f"`{read[role][0]}`" for role in roles)
        if not table.equals(seen.replayer.inputs):
            yield PossibleCause(f"reproduced with {names} rounded to {dtype}", table)


def _shifted(
    seen: Evidence, columns: dict[str, tuple[str, NumberColumn]]
) -> Iterator[PossibleCause]:
    """Yield columns shifted by one token, of all tokens or of policy tokens."""
    mask = seen.replayer.rollouts.mask
    sets = {"token": np.arange(len(mask)), "policy token": np.flatnonzero(mask)}
    if len(sets["policy token"]) == len(mask):
        del sets["policy token"]
    for role, (name, column) in columns.items():
        if role not in seen.roles or seen.resolved.rows_only or len(column.values) != len(mask):
            continue
        for token, among in sets.items():
            for by, which in ((1, "next"), (-1, "previous")):
                own, other = neighbours(seen.replayer.rollouts.of_tokens, by, among)
                for edge in ("its own", "0"):
                    values = column.values.copy() if edge != "0" else np.zeros_like(column.values)
                    values[own] = column.values[other]
                    at = "last" if by > 0 else "first"
                    text = (
                        f"reproduced with `{name}` shifted: each token has the number of the "
                        f"{which} {token}, and the {at} one {edge}"
                    )
                    yield PossibleCause(
                        text, with_column(seen.replayer.inputs, name, _lists(column, values))
                    )


def _masked(
    seen: Evidence, text: str, name: str, column: NumberColumn, values: Numbers
) -> PossibleCause:
    """Return the inputs with another mask, of the type of theirs."""
    assert column.offsets is not None
    kind = seen.replayer.inputs.schema.field(name).type.value_type
    own = pa.array(values.astype(np.int64)).cast(pa.uint8()).cast(kind)
    lists = pa.ListArray.from_arrays(column.offsets.astype(np.int32), own)
    return PossibleCause(text, with_column(seen.replayer.inputs, name, lists))


# ---- rewards on other tokens, and whitening over other tokens ----


@check("change", prefix="input:")
def reward_place(seen: Evidence) -> Iterator[PossibleCause]:
    """The reward is on another token than the recipe's, or the whole KL penalty is on the last.

    With γ or λ below 1 the credit of all tokens changes, and a reward on a token that the mask
    leaves out is lost. Place it on the last policy token.
    """
    resolved, rollouts = seen.resolved, seen.replayer.rollouts
    if _TOKENS in seen.first.used or resolved.rows_only or seen.recipe.whiten_rewards:
        return
    if seen.first.name not in (_TOKENS, "raw_advantages", "returns", "advantages"):
        return
    tokens, reward = column_of(seen.replayer, seen.recipe, _TOKENS), _normalised(seen)
    if tokens is None or reward is None:
        return
    last = _last(rollouts.mask, rollouts.offsets)
    at_end = seen.recipe.numerics.terminal_reward == "last_token"
    own = rollouts.offsets[1:] - 1 if at_end else last
    after = np.where(last + 1 < rollouts.offsets[1:], last + 1, -1)
    rest, has = tokens.copy(), own >= 0
    rest[own[has]] -= reward[has]
    for text, place in (
        ("the policy token before the last one", _last(rollouts.mask, rollouts.offsets, 1)),
        ("the token after the last policy token", after),
        ("no token", np.full(len(last), -1)),
    ):
        moved, some = rest.copy(), has & (place >= 0)
        np.add.at(moved, place[some], reward[some])
        if not np.array_equal(moved, tokens):
            numbers = _with(seen, _TOKENS, moved)
            yield PossibleCause(f"reproduced with the reward on {text}", numbers=numbers)
    summed = np.zeros_like(tokens)
    summed[last[last >= 0]] = np.bincount(rollouts.of_tokens, tokens, len(last))[last >= 0]
    text = "the token rewards, KL penalty included, summed on the last policy token"
    yield PossibleCause(f"reproduced with {text}", numbers=_with(seen, _TOKENS, summed))


def _normalised(seen: Evidence) -> Numbers | None:
    """Return the reward of each response, as recorded if it was."""
    if _REWARDS in seen.replayer.rollouts.recorded:
        values = seen.replayer.rollouts.column(_REWARDS).values
        return values if len(values) == len(seen.replayer.rollouts) else None
    return column_of(seen.replayer, seen.recipe, _REWARDS)


def _last(chosen: Mask, offsets: Codes, before: int = 0) -> Codes:
    """Return the last chosen token of each response, or one before it; -1 for none."""
    where = np.flatnonzero(chosen)
    index = np.searchsorted(where, offsets[1:]) - 1 - before
    inside = index >= np.searchsorted(where, offsets[:-1])
    return np.where(inside, where[np.where(inside, index, 0)] if len(where) else -1, -1)


@check("change", prefix="input:")
def whitening_over_padding(seen: Evidence) -> Iterator[PossibleCause]:
    """Advantages are whitened over padding, or observation tokens, too, whose numbers are 0.

    Their zeros make the standard deviation smaller, so that advantages are larger in a batch with
    one long response. Whiten over the mask.
    """
    name, numerics = seen.first.name, seen.recipe.numerics
    field = "whiten_rewards" if name == _TOKENS else "whiten_advantages"
    if name not in ("advantages", "returns", _TOKENS) or not seen.by_token:
        return
    plain = seen.recipe.model_copy(update={field: False, "advantage_clip": None})
    raw = numbers_of(seen.replayer, plain, name)
    if raw is None or np.array_equal(raw, seen.computed):
        return
    lengths = seen.replayer.rollouts.lengths
    by_step = seen.replayer.rollouts.codes("batch") * (numerics.batch == "step")
    steps = seen.on_elements(by_step)
    longest = np.array([lengths[by_step == step].max() for step in range(by_step.max() + 1)])
    for title, cells in (
        ("observation tokens", lengths),
        ("padding up to the longest response of the batch", longest[by_step]),
        ("padding up to the longest response", np.full_like(lengths, lengths.max())),
    ):
        counts, numbers = np.bincount(by_step, cells), seen.recorded.copy()
        for step, count in enumerate(counts):
            chosen = seen.chosen & (steps == step)
            x = raw[chosen]
            mean = float(x.sum()) / count
            variance = (float(x @ x) - count * mean**2) / max(1, count - numerics.whiten_ddof)
            numbers[chosen] = (x - mean) / np.sqrt(max(variance, 0.0) + numerics.whiten_eps)
        text = f"whitening counts {title}: their zeros are in its mean and variance"
        yield PossibleCause(text, numbers=numbers)
