"""Relations of recorded and computed numbers: a factor, an offset, a column that was added.

Each is a prediction of the recorded numbers from the computed ones, and a share of the differing
elements that the prediction explains. A few numbers fit anything, so that each relation needs more
distinct numbers than it has constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.replay.findings import orders
from rlpost.analysis.replay.findings.evidence import ENOUGH, finding
from rlpost.analysis.replay.findings.roundings import clips, roundings
from rlpost.analysis.replay.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rlpost.analysis.replay.findings.evidence import Evidence, Json

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_SPARE = 4
"""Distinct numbers that a relation with a constant for each group must leave over."""


def relations(seen: Evidence) -> list[Json]:
    """Return the relations that hold, except for those with a constant for each group.

    Args:
        seen: the numbers of a stage.
    """
    found = [*roundings(seen), *orders.shifts(seen), *_factor(seen)]
    if not found:
        found += [*orders.responses(seen), *orders.tokens(seen)]
        found += [*_epsilon_inside(seen), *_columns(seen)]
    return sorted(found, key=lambda one: -round(one["explains"], 2))


def general_relations(seen: Evidence) -> list[Json]:
    """Return the first of the relations that explain the least.

    These are a bound, another recorded stage, and a constant for each group or step.
    """
    some = (clips(seen), _stages(seen), _set_offsets(seen))
    return next(([one] for part in some for one in part), [])


class _Name(NamedTuple):
    """A named factor: its text, what it means, and its value for each element."""

    text: str
    meaning: str
    value: Numbers


def _size_factors(seen: Evidence) -> list[_Name]:
    n = seen.group_size.astype(np.float64)
    less = np.maximum(n - 1, 1)
    ddof = seen.recipe.numerics.norm_ddof
    std = seen.resolved.norm[1] == "group"
    grow = "the standard deviation divides by n, not n - 1" if std and ddof else ""
    shrink = "the standard deviation divides by n - 1, not n" if std and not ddof else ""
    return [
        _Name("sqrt(n/(n-1))", grow, np.sqrt(n / less)),
        _Name("sqrt((n-1)/n)", shrink, np.sqrt(less / n)),
        _Name("n/(n-1)", "the mean is of the other responses of the group", n / less),
        _Name("(n-1)/n", "the mean includes the response itself", less / n),
    ]


def _factor(seen: Evidence) -> Iterator[Json]:
    """Yield one factor of all elements, or of the group sizes."""
    use = seen.wrong & (np.abs(seen.computed) > 10 * seen.tolerance)
    if not use.any() or not seen.enough(seen.wrong):
        return
    sized = "group" in seen.replayer.rollouts.columns
    for name in _size_factors(seen) if sized else ():
        share = seen.explains(seen.computed * name.value)
        if share >= ENOUGH:
            sizes = np.unique(seen.group_size[use])
            of = f"n = {sizes[0]}" if len(sizes) == 1 else f"n = {sizes[0]} to {sizes[-1]}"
            values = np.unique(np.round(name.value[use], 6))
            number = f"{values[0]:.5g}, " if len(values) == 1 else ""
            why = f": {name.meaning}" if name.meaning else ""
            which = f"which is {name.text}" if number else name.text
            yield finding(
                "factor", f"recorded = computed x {number}{which} of groups of {of}{why}", share
            )
            return
    factor = float(np.median(seen.recorded[use] / seen.computed[use]))
    share = seen.explains(seen.computed * factor)
    if share >= ENOUGH and factor != 0:
        yield finding(
            "factor", f"recorded = computed x {_number(factor)}{_constant(factor)}", share
        )


def _constant(factor: float) -> str:
    if factor < 0:
        return ": the sign is the other one"
    inverse = 1.0 / factor
    if abs(inverse - round(inverse)) < 1e-4 * inverse and round(inverse) > 1:
        return f", which is 1/{round(inverse)}"
    return ""


def _number(value: float) -> str:
    return f"{value:.5g}"


def _sets(seen: Evidence) -> list[tuple[str, Codes, Codes]]:
    """Return the sets that statistics are over: groups and steps, by element and by response."""
    rollouts = seen.replayer.rollouts
    found = []
    if "group" in rollouts.columns:
        found.append(("group", seen.groups, rollouts.groups))
    steps = rollouts.codes("batch")
    if len(np.unique(steps)) > 1:
        found.append(("step", seen.steps, steps))
    return found


def _medians(codes: Codes, values: Numbers, use: Mask) -> Numbers:
    """Return the median of each set, by set; NaN without elements."""
    out = np.full(int(codes.max(initial=-1)) + 1, np.nan)
    order = np.argsort(codes[use], kind="stable")
    own, sorted_values = codes[use][order], values[use][order]
    keys, starts = np.unique(own, return_index=True)
    for key, part in zip(keys, np.split(sorted_values, starts[1:]), strict=True):
        out[key] = np.median(part)
    return out


def _epsilon_inside(seen: Evidence) -> Iterator[Json]:
    """Yield that rewards are divided by sqrt(variance + ε), of groups or of steps."""
    for title, codes, by_row in _sets(seen):
        scope = "group" if title == "group" else "batch"
        if seen.resolved.norm[1] != scope or seen.spare(codes, seen.wrong) < _SPARE:
            continue
        std, _ = seen.spread(by_row)
        use = seen.chosen & (np.abs(seen.computed) > 10 * seen.tolerance) & (std > 0)
        use &= np.isfinite(seen.recorded) & (seen.recorded != 0)
        if not use.any():
            continue
        own, safe = std + seen.recipe.numerics.norm_eps, np.where(std > 0, std, 1.0)
        divisor = np.divide(own * seen.computed, seen.recorded, out=np.zeros_like(own), where=use)
        inside = float(np.median((divisor**2 - std**2)[use]))
        root = np.sqrt(np.maximum(safe**2 + inside, 0.0))
        if not root.all():
            continue
        share = seen.explains(np.where(std > 0, seen.computed * own / root, seen.computed))
        plain = seen.explains(np.where(std > 0, seen.computed * own / safe, seen.computed))
        if share >= ENOUGH > plain:  # else there is no ε
            text = f"(std + ε) / sqrt(var + {inside:.3g}) of the {title}: ε is inside the root"
            yield finding("eps-inside-root", f"recorded = computed x {text}", share)
            return


def _range(values: Numbers) -> str:
    known = values[np.isfinite(values)]
    return f"{known.min():.4g} to {known.max():.4g}"


def _columns(seen: Evidence) -> Iterator[Json]:
    """Yield a column of the input that was added, times a constant."""
    apart = seen.recorded - seen.computed
    for name, values in seen.columns().items():
        use = seen.wrong & (np.abs(values) > seen.tolerance)
        if not use.any() or len(np.unique(values[use])) < _SPARE:
            continue
        times = float(np.median(apart[use] / values[use]))
        share = seen.explains(seen.computed + times * values)
        if share >= ENOUGH:
            sign = "-" if times < 0 else "+"
            size = "" if np.isclose(abs(times), 1.0, rtol=1e-3) else f"{_number(abs(times))} x "
            text = f"recorded = computed {sign} {size}`{name}`"
            yield finding("column-added", text, share)
            return


def _stages(seen: Evidence) -> Iterator[Json]:
    """Yield that the numbers are those of another recorded stage, or with a column added."""
    rollouts = seen.replayer.rollouts
    columns = {"": np.zeros_like(seen.recorded), **(seen.columns() if seen.by_token else {})}
    for stage in rollouts.recorded if seen.by_token else ():
        if stage == seen.first.name or STAGES[stage].level != "tokens":
            continue
        base = rollouts.column(stage).on_tokens(rollouts.offsets)
        own = seen.replayer.stage(seen.recipe, stage)
        if own is not None and np.allclose(own.difference.computed, seen.computed, equal_nan=True):
            continue  # by the recipe they are the same, too
        for name, values in columns.items():
            for sign, times in ("+", 1.0), ("-", -1.0):
                share = seen.explains(base + times * values)
                if share >= ENOUGH and seen.enough(seen.wrong):
                    added = f" {sign} `{name}`" if name else ""
                    yield finding("other-stage", f"recorded = recorded `{stage}`{added}", share)
                    return


def _set_offsets(seen: Evidence) -> Iterator[Json]:
    """Yield an offset that is constant in each group, or each step."""
    apart = seen.recorded - seen.computed
    for title, codes, by_row in _sets(seen)[::-1]:
        if seen.spare(codes, seen.wrong) < _SPARE:
            continue
        use = seen.chosen & np.isfinite(apart)
        offsets = _medians(codes, apart, use)
        share = seen.explains(seen.computed + np.nan_to_num(offsets)[codes])
        if share < ENOUGH:
            continue
        _, mean = seen.spread(by_row)
        why = ""
        if seen.explains(seen.computed + mean) >= ENOUGH:
            why = f", the mean reward of the {title}, which they still contain"
        elif seen.explains(seen.computed - mean) >= ENOUGH:
            why = f", the negative mean reward of the {title}: it is subtracted"
        text = f"recorded = computed + a constant of each {title}, {_range(offsets)}{why}"
        yield finding("group-offset", text, share)
        return
