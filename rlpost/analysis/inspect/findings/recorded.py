"""A finding about the advantages that a trainer recorded: they are of other groups, or rewards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.display.text import share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.analysis.inspect.findings.base import Result
    from rlpost.analysis.inspect.inspected import Inspected

SLACK = 0.01  # of the deviation of advantages: dumps round them
FITS = 0.9  # of the groups; others lack responses that were left out
MOST_ROWS = 20_000  # in which other groups are sought
FOLLOWS, ERRORS = 0.5, 3.0  # correlation that penalties and shaping leave, less standard errors


@check("warning", "group", "reward", "recorded advantages", whole_groups=True)
def recorded_advantages(data: Inspected) -> Result:
    """Advantages that a trainer recorded are of other groups than the key's, or of another reward.

    In a group, responses of equal rewards have equal advantages, those of higher rewards higher
    ones, and the mean is 0. Where this is not so, groups by prompt, domain, or over all steps are
    tried. If none fits, and advantages hardly correlate with rewards within groups, they are of
    other rows or rewards. --map advantages=none leaves them out.

    Choose the key or the reward that the trainer had, and check the order of rows.
    """
    known = pl.col("advantage").is_finite() & pl.col("reward").is_finite()
    rows = data.rows.with_row_index("index")
    rows = rows.with_columns(reward=data.table.row_rewards)
    rows = rows.filter(data.included & known)
    flat = rows.filter("one_advantage")
    if 2 * len(flat) < max(len(rows), 1):
        return NotRun("advantages differ between the tokens of a response")
    keys, of = [x for x in ("batch", "group") if x in flat], data.selection.advantages
    shown, broken, several, fits = _contradictions(flat, keys)
    if fits:
        return None
    text = f"have other means than 0 in groups by `{data.column('group')}`"
    if broken:
        text = f"contradict `{data.column('reward')}` in {broken:,} of {several:,} groups by "
        text += f"`{data.column('group')}` ({share(broken, several)}): equal rewards have "
        text += "different ones, or a higher reward a lower one"
    for words, option, by in _other_groups(data, flat, keys):
        if _contradictions(flat.head(MOST_ROWS), by)[-1]:
            text = f"the recorded advantages (`{of}`) {text}; {words} fit"
            return Problem(text, shown, ["group", "reward", str(of)], option)
    turns = "rollout" not in data.table.rows and (data.turns > 0).any()
    follows = None if turns else _correlation(flat, keys)
    if broken and follows is not None and follows < FOLLOWS - ERRORS / math.sqrt(len(flat)):
        text = f"the recorded advantages (`{of}`) {text}, and their correlation within groups is "
        text += f"{follows:+.2f}: they are of other rows or rewards"
        return Problem(text, shown, ["group", "reward", str(of)])
    return None


def _correlation(rows: pl.DataFrame, keys: list[str]) -> float | None:
    """Return the correlation of rewards and advantages within groups of several rewards."""
    rows = rows.filter(pl.col("reward").n_unique().over(keys) > 1)
    within = [pl.col(name) - pl.col(name).mean().over(keys) for name in ("reward", "advantage")]
    correlation: float | None = rows.select(pl.corr(*within)).item()
    return correlation


def _other_groups(
    data: Inspected, rows: pl.DataFrame, keys: list[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield other groups: what they are, what chooses them, and their keys."""
    for role in ("prompt", "domain"):
        if role in rows and rows[role].n_unique() > 1:
            column, by = data.column(role), [*keys[:-1], role]
            yield f"groups by `{column}`", f"--map group={column}", by
    if len(keys) > 1:
        yield "groups over all steps", "--map batch=none", ["group"]


def _contradictions(rows: pl.DataFrame, by: list[str]) -> tuple[list[int], int, int, bool]:
    """Return which rows of groups have advantages in another order than their rewards.

    Returns:
        Their `index`, the number of their groups, that of groups of several rows, and whether
        advantages follow rewards in nearly all groups, and have the mean 0 there.
    """
    columns = rows.select(pl.struct(by).hash().alias("key"), "reward", "advantage")
    keys, rewards, advantages = (x.to_numpy() for x in columns)
    order, slack = np.lexsort((advantages, rewards, keys)), SLACK * float(advantages.std())
    key, rise = keys[order], np.diff(advantages[order])
    same, higher = key[1:] == key[:-1], np.diff(rewards[order]) > 0
    broken = np.flatnonzero(same & ((rise < -slack) | (~higher & (rise > slack)))) + 1
    first = np.concatenate([[True], ~same])
    starts, groups = np.flatnonzero(first), np.unique(np.cumsum(first)[broken] - 1)
    size = np.diff([*starts, len(key)])
    fits = np.abs(np.add.reduceat(advantages[order], starts)) <= slack * size
    fits[groups] = False
    shown = rows["index"].to_numpy()[order[broken]].tolist()
    return shown, len(groups), int((size > 1).sum()), bool(fits.mean() >= FITS)
