"""Causes that are no option and no other column: groups, places of rewards, signs and padding."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.findings.evidence import ENOUGH
from rlpost.analysis.replay.findings.inputs import other_groups
from rlpost.analysis.replay.findings.tested import numbers_of
from rlpost.analysis.replay.stages import late_normalisation
from rlpost.errors import DataError, UsageError
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import NDArray

    from rlpost.analysis.replay.compute import Replayer
    from rlpost.analysis.replay.findings.evidence import Evidence
    from rlpost.analysis.replay.findings.tested import Causes
    from rlpost.recipe.recipe import Recipe

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]

_REWARDS, _TOKENS = "response_level_rewards", "token_level_rewards"


def column_of(replayer: Replayer, recipe: Recipe, name: str) -> Numbers | None:
    """Return a stage by a recipe, recorded or not."""
    with suppress(UsageError, DataError, pa.ArrowException):
        found = replayer.column_of(recipe, name)
        return None if found is None else found[0].values
    return None


def _after(seen: Evidence, name: str, values: Numbers) -> Numbers | None:
    """Return the stage that differs, computed from other numbers of an earlier stage."""
    if seen.first.name == name:
        return values
    rollouts = seen.replayer.rollouts
    column: Any = pa.array(values)
    if len(values) != len(rollouts) or name != _REWARDS:
        column = pa.ListArray.from_arrays(rollouts.offsets.astype(np.int32), column)
    return numbers_of(seen.replayer.assuming(name, column), seen.recipe, seen.first.name)


def groups(found: Causes) -> None:
    """Rewards normalised in other groups: over steps, or of consecutive rows."""
    seen = found.seen
    normed, estimator = "group" in seen.resolved.norm, seen.resolved.estimator
    by_group = estimator.level == "response" and "offsets" in estimator.parameters
    if _REWARDS in seen.first.used or not (normed or by_group):
        return
    for how, table in other_groups(seen.replayer):
        replayer = seen.replayer.reading(table)
        text = f"the recorded numbers are reproduced {how}"
        if not normed or late_normalisation(seen.resolved.recipe):
            values = numbers_of(replayer, seen.recipe, seen.first.name)
        else:
            column = column_of(replayer, seen.recipe, _REWARDS)
            values = None if column is None else _after(seen, _REWARDS, column)
        found.add("input:groups-over-steps", text, values)


def rewards(found: Causes) -> None:
    """The response's reward on another token than the recipe's."""
    seen = found.seen
    resolved, rollouts = seen.resolved, seen.replayer.rollouts
    if _TOKENS in seen.first.used or resolved.rows_only or seen.recipe.whiten_rewards:
        return
    if seen.first.name not in (_TOKENS, "raw_advantages", "returns", "advantages"):
        return
    tokens = column_of(seen.replayer, seen.recipe, _TOKENS)
    reward = _normalised(seen)
    if tokens is None or reward is None:
        return
    own = _last(rollouts.mask, rollouts.offsets)
    if seen.recipe.numerics.terminal_reward == "last_token":
        own = rollouts.offsets[1:] - 1
    rest = tokens.copy()
    has = own >= 0
    rest[own[has]] -= reward[has]
    for text, place in _places(rollouts.mask, rollouts.offsets):
        moved = rest.copy()
        some = has & (place >= 0)
        np.add.at(moved, place[some], reward[some])
        if not np.array_equal(moved, tokens):
            name = f"the recorded numbers are reproduced with the reward on {text}"
            found.add("input:reward-place", name, _after(seen, _TOKENS, moved))
    last = _last(rollouts.mask, rollouts.offsets)
    rows = np.repeat(np.arange(len(last)), rollouts.lengths)
    summed = np.zeros_like(tokens)
    summed[last[last >= 0]] = np.bincount(rows, tokens, len(last))[last >= 0]
    text = "the token rewards, KL penalty included, summed on the last policy token"
    name = f"the recorded numbers are reproduced with {text}"
    found.add("input:reward-place", name, _after(seen, _TOKENS, summed))


def _normalised(seen: Evidence) -> Numbers | None:
    if _REWARDS in seen.replayer.rollouts.recorded:
        values = seen.replayer.rollouts.column(_REWARDS).values
        return values if len(values) == len(seen.replayer.rollouts) else None
    return column_of(seen.replayer, seen.recipe, _REWARDS)


def _last(chosen: NDArray[np.bool_], offsets: Codes, before: int = 0) -> Codes:
    """Return the last chosen token of each response, or one before it; -1 for none."""
    where = np.flatnonzero(chosen)
    index = np.searchsorted(where, offsets[1:]) - 1 - before
    inside = index >= np.searchsorted(where, offsets[:-1])
    return np.where(inside, where[np.where(inside, index, 0)] if len(where) else -1, -1)


def _places(mask: NDArray[np.bool_], offsets: Codes) -> Iterator[tuple[str, Codes]]:
    last = _last(mask, offsets)
    yield "the policy token before the last one", _last(mask, offsets, 1)
    yield "the token before the last policy token", np.where(last > offsets[:-1], last - 1, -1)
    yield "the token after the last policy token", np.where(last + 1 < offsets[1:], last + 1, -1)
    yield "no token", np.full(len(last), -1)


def kl_sign(found: Causes) -> None:
    """The KL penalty added to the rewards."""
    seen = found.seen
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
    found.add("sign", text, _after(seen, "kl", -np.nan_to_num(kl)))


def padding(found: Causes) -> None:
    """Whitening over more elements than the policy tokens, whose numbers are 0."""
    seen = found.seen
    name = seen.first.name
    whitened = {
        "advantages": "whiten_advantages",
        "returns": "whiten_advantages",
        _TOKENS: "whiten_rewards",
    }
    if name not in whitened or not seen.by_token:
        return
    plain = seen.recipe.model_copy(update={whitened[name]: False, "advantage_clip": None})
    raw = numbers_of(seen.replayer, plain, name)
    if raw is None or np.array_equal(raw, seen.computed):
        return
    predicted, titles = np.full_like(raw, np.nan), set()
    steps = seen.steps if seen.recipe.numerics.batch == "step" else np.zeros(len(raw), np.int64)
    for step in np.unique(steps):
        own = seen.chosen & (steps == step)
        solved = _population(seen, raw, own, steps == step)
        if solved is None:
            return
        predicted[own], title = solved
        titles.add(title)
    what = titles.pop() if len(titles) == 1 else "padding"
    text = f"whitening counts {what}: their zeros are in its mean and variance"
    values = np.where(np.isfinite(predicted), predicted, seen.recorded)
    found.add("input:whitening-over-padding", text, values)


def _population(
    seen: Evidence, raw: Numbers, own: NDArray[np.bool_], step: NDArray[np.bool_]
) -> tuple[Numbers, str] | None:
    """Return the numbers of a step whitened with zeros, and what these are; None if none fit."""
    x, y = raw[own], seen.recorded[own]
    use = np.isfinite(y)
    if not use.any() or np.ptp(x[use]) == 0:
        return None
    numerics = seen.recipe.numerics
    lengths = np.unique(seen.rows[step], return_counts=True)[1]
    every = int(step.sum())
    rollouts = seen.replayer.rollouts
    known = {
        "observation tokens": every,
        "padding up to the longest response of the batch": len(lengths) * int(lengths.max()),
        "padding up to the longest response": len(lengths) * int(rollouts.lengths.max()),
    }
    for title, count in known.items():
        predicted = _whitened(x, count, numerics.whiten_ddof, numerics.whiten_eps)
        if count > own.sum() and _near(seen, own, predicted):
            return predicted, title
    return None


def _whitened(x: Numbers, count: int, ddof: int, epsilon: float) -> Numbers:
    mean = float(x.sum()) / count
    variance = (float(x @ x) - count * mean**2) / max(1, count - ddof)
    return np.asarray((x - mean) / np.sqrt(max(variance, 0.0) + epsilon))


def _near(seen: Evidence, own: NDArray[np.bool_], predicted: Numbers) -> bool:
    near = np.abs(seen.recorded[own] - predicted) <= 2 * seen.tolerance[own]
    return bool(near.mean() >= ENOUGH)
