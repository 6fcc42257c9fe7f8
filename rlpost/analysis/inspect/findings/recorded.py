"""A finding about the advantages that a trainer recorded: they are of other groups, or rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.display.text import percent, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.findings.base import CheckInput, Result

    Numbers = NDArray[Any]

SOME = 0.01  # of the groups
SLACK = 0.01  # of the deviation of advantages: dumps round them
CENTRED = 0.9  # of the groups have the mean 0; others lack responses that were left out
MOST_ROWS = 20_000  # in which other groups are sought
MOST_BLOCK = 64  # consecutive rows that may be a group


@check("warning", "group", "reward", "recorded advantages", whole_groups=True)
def recorded_advantages(data: CheckInput) -> Result:
    """Advantages that a trainer recorded are of other groups than the key's, or of another reward.

    In a group, responses of equal rewards have equal advantages, those of higher rewards higher
    ones, and the mean is 0. Where this is not so, groups by prompt, domain, over all steps, or of
    consecutive rows are tried.

    Choose the key or the reward that the trainer had; --map advantages=none ignores the advantages.
    """
    rows, of = data.reading.rows.with_row_index("index"), data.reading.selection.advantages
    rows = rows.filter(
        data.included & pl.col("advantage").is_finite() & pl.col("reward").is_finite()
    )
    flat = rows.filter("one_advantage")
    if 2 * len(flat) < max(len(rows), 1):
        return NotRun("advantages differ between the tokens of a response")
    own = [key for key in ("batch", "group") if key in flat]
    shown, broken, several, opposite = _order(flat, own)
    contradicts, groups = broken > SOME * several, f"groups by `{data.column('group')}`"
    if not contradicts and _fits(flat, own):
        return None
    text = f"the recorded advantages (`{of}`) have other means than 0 in {groups}"
    if contradicts:
        text = f"the recorded advantages (`{of}`) contradict `{data.column('reward')}` in "
        text += f"{broken:,} of {several:,} {groups} ({share(broken, several)}): equal rewards "
        text += "have different ones, or a higher reward a lower one"
    roles, part = ["group", "reward", str(of)], flat.head(MOST_ROWS)
    for words, option, by in _other_groups(data, part, blocks=contradicts):
        if _fits(part, by):
            return Problem(f"{text}. Those of {words} fit", shown, roles, option)
    for name in data.reading.selection.components:
        if _fits(part, own, f"component:{name}"):
            return Problem(f"{text}. `{name}` alone fits", shown, roles, f"--map reward={name}")
    if not contradicts or opposite * 2 <= 1:
        return None
    text += f"; {percent(opposite)} of the differences have the other sign"
    return Problem(text, shown, roles, "--map reward=COLUMN")


def _other_groups(
    data: CheckInput, rows: pl.DataFrame, *, blocks: bool
) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield other groups: what they are, the option that chooses them, and their keys.

    With `blocks` those of consecutive rows, too; a batch that is normalised as a whole is no group.
    """
    step = ["batch"] if "batch" in rows else []
    for role in ("prompt", "domain"):
        if role in rows and rows[role].n_unique() > 1:
            column = data.column(role)
            yield f"groups by `{column}`", f"--map group={column}", [*step, role]
    if step:
        yield "groups over all steps", "--map batch=none", ["group"]
    for size in range(2, MOST_BLOCK + 1) if blocks else ():
        by = ["file", pl.col("row") // size]
        yield f"{size} consecutive rows", f"--group-size {size} (rlpost convert)", by


def _order(
    rows: pl.DataFrame, by: list[Any], reward: str = "reward"
) -> tuple[list[int], int, int, float]:
    """Return which rows of groups have advantages in another order than their rewards.

    Returns:
        Their `index`, the number of their groups, that of groups of several rows, and the share of
        differences of both that have opposite signs.
    """
    keys, rewards, advantages = (
        _keys(rows, by),
        rows[reward].to_numpy(),
        rows["advantage"].to_numpy(),
    )
    order, slack = np.lexsort((advantages, rewards, keys)), SLACK * float(advantages.std())
    key, higher, rise = keys[order][1:], np.diff(rewards[order]) > 0, np.diff(advantages[order])
    same = key == keys[order][:-1]
    falls = same & (rise < -slack)
    broken = falls | (same & ~higher & (rise > slack))
    moved = int((same & higher & (np.abs(rise) > slack)).sum())
    index = rows["index"].to_numpy()[order[1:][broken]].tolist()
    return (
        index,
        len(np.unique(key[broken])),
        len(np.unique(key[same])),
        falls.sum() / max(moved, 1),
    )


def _fits(rows: pl.DataFrame, by: list[Any], reward: str = "reward") -> bool:
    """Return whether advantages follow the rewards of groups, and have the mean 0 in these."""
    _, broken, several, _ = _order(rows, by, reward)
    advantages = rows["advantage"].to_numpy()
    code, size = np.unique(_keys(rows, by), return_inverse=True, return_counts=True)[1:]
    means = (np.bincount(code, advantages) / size)[size > 1]
    centred = np.abs(means) <= SLACK * float(advantages.std())
    whole = size[size > 1].sum() * 2 > len(rows)
    return bool(whole and broken <= SOME * several and centred.mean() >= CENTRED)


def _keys(rows: pl.DataFrame, by: list[Any]) -> Numbers:
    """Return a number for each group, [n]."""
    return rows.select(pl.struct(by).hash()).to_series().to_numpy()
