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
    from collections.abc import Callable, Iterator

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
    found = [*roundings(seen), *_sign(seen), *orders.shifts(seen), *_factor(seen), *_offset(seen)]
    if not found:
        found += [*orders.responses(seen), *orders.tokens(seen), *_length_factor(seen)]
        found += [*_set_factors(seen, named=True), *_columns(seen)]
    return sorted(found, key=lambda one: -round(one["explains"], 2))


def general_relations(seen: Evidence) -> list[Json]:
    """Return the first of the relations that explain the least.

    These are a bound, another recorded stage, a column that was added in places, and a constant
    for each group or step.
    """
    exact = (clips(seen), _stages(seen), _columns(seen, alone=True))
    some = (*exact, _set_factors(seen, named=False), _set_offsets(seen))
    return next(([one] for part in some for one in part), [])


def _sign(seen: Evidence) -> Iterator[Json]:
    share = seen.explains(-seen.computed)
    if share >= ENOUGH and seen.enough(seen.wrong):
        yield finding("sign", "recorded = -1 x computed: the sign is the other one", share)


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
    if share >= ENOUGH and not np.isclose(factor, -1, atol=1e-4) and factor != 0:
        yield finding(
            "factor", f"recorded = computed x {_number(factor)}{_constant(factor)}", share
        )


def _length_factor(seen: Evidence) -> Iterator[Json]:
    """Yield a factor of the length of each response, in policy tokens or in tokens."""
    use = seen.wrong & (np.abs(seen.computed) > 10 * seen.tolerance)
    if not use.any() or not seen.enough(seen.wrong):
        return
    ratio = np.divide(seen.recorded, seen.computed, out=np.zeros_like(seen.computed), where=use)
    rollouts = seen.replayer.rollouts
    rows = np.repeat(np.arange(len(rollouts)), rollouts.lengths)
    policy = np.bincount(rows, rollouts.mask, len(rollouts))
    for title, lengths in (("policy tokens", policy), ("tokens", rollouts.lengths)):
        n = seen.on_elements(np.maximum(lengths, 1)).astype(np.float64)
        if len(np.unique(n[use])) < _SPARE:
            continue
        for text, value in ((f"1/{title}", 1 / n), (title, n)):
            times = float(np.median(ratio[use] / value[use]))
            share = seen.explains(seen.computed * times * value)
            if share >= ENOUGH and times != 0:
                size = "" if np.isclose(times, 1.0, rtol=1e-3) else f"{_number(times)} x "
                yield finding(
                    "factor", f"recorded = computed x {size}{text} of each response", share
                )
                return


def _constant(factor: float) -> str:
    if factor < 0:
        return ": another scale, and the other sign"
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


def _set_factors(seen: Evidence, *, named: bool) -> Iterator[Json]:
    """Yield a factor that is constant in each group, or each step: a known one, or any."""
    use = seen.chosen & (np.abs(seen.computed) > 10 * seen.tolerance)
    use &= np.isfinite(seen.recorded)
    for title, codes, by_row in _sets(seen):
        if not use.any() or seen.spare(codes, seen.wrong) < _SPARE:
            continue
        ratio = np.divide(seen.recorded, seen.computed, out=np.ones_like(seen.computed), where=use)
        factor = _medians(codes, ratio, use)
        on_elements = np.nan_to_num(factor, nan=1.0)[codes]
        share = seen.explains(seen.computed * on_elements)
        if share < ENOUGH:
            continue
        if named:
            known = _denominator(seen, title, by_row, on_elements, use)
            if known is None:
                continue
            yield known
        else:
            text = f"recorded = computed x a factor of each {title}, {_range(factor)}"
            yield finding("factor", text, share)
        return


def _range(values: Numbers) -> str:
    known = values[np.isfinite(values)]
    return f"{known.min():.4g} to {known.max():.4g}"


def _denominator(
    seen: Evidence, title: str, by_row: Codes, factor: Numbers, use: Mask
) -> Json | None:
    """Return the statistic of rewards that explains factors of groups or steps; None for none."""
    std, _ = seen.spread(by_row)
    scope = "group" if title == "group" else "batch"
    divides = seen.resolved.norm[1] == scope
    use = use & (std > 0)
    own = std + seen.recipe.numerics.norm_eps if divides else np.ones_like(std)
    with np.errstate(divide="ignore", invalid="ignore"):
        theirs = own / factor  # what the recorded numbers are divided by, but for a constant
    scale = float(np.median(theirs[use])) if use.any() else 0.0
    inside = float(np.median((theirs**2 - std**2)[use])) if use.any() else 0.0
    names: list[tuple[str, Callable[[], Numbers]]] = []
    if divides:
        names += [
            (f"the standard deviation of the {title}, by which they are not divided", lambda: own),
            (
                f"(std + ε) / sqrt(var + {inside:.3g}) of the {title}: ε is inside the root",
                lambda: own / np.sqrt(std**2 + inside),
            ),
            (
                f"std of the {title} / {_number(scale)}: divided by another number",
                lambda: own / scale,
            ),
        ]
    else:
        inverse = float(np.median((factor * std)[use])) if use.any() else 1.0
        by = "1" if np.isclose(inverse, 1.0, rtol=1e-3) else _number(inverse)
        names.append(
            (
                f"{by}/std of the {title}: they are divided by it",
                lambda: inverse / np.where(std > 0, std, 1.0),
            )
        )
    for text, value in names:
        with np.errstate(invalid="ignore", divide="ignore"):
            share = seen.explains(np.where(std > 0, seen.computed * value(), seen.computed))
        if share >= ENOUGH:
            inside_root = text.endswith("root")
            with np.errstate(invalid="ignore", divide="ignore"):
                plain = np.where(std > 0, seen.computed * own / std, seen.computed)
            if inside_root and seen.explains(plain) >= ENOUGH:
                continue  # there is no ε
            name = "eps-inside-root" if inside_root else "factor"
            return finding(name, f"recorded = computed x {text}", share)
    return None


def _columns(seen: Evidence, *, alone: bool = False) -> Iterator[Json]:
    """Yield a column of the input that was added, times a constant; alone: where they differ."""
    apart = seen.recorded - seen.computed
    for name, values in seen.columns().items():
        use = seen.wrong & (np.abs(values) > seen.tolerance)
        if not use.any() or len(np.unique(values[use])) < _SPARE * (2 if alone else 1):
            continue
        times = float(np.median(apart[use] / values[use]))
        added = np.where(seen.wrong, values, 0.0) if alone else values
        share = seen.explains(seen.computed + times * added)
        if share >= ENOUGH:
            sign = "-" if times < 0 else "+"
            size = "" if np.isclose(abs(times), 1.0, rtol=1e-3) else f"{_number(abs(times))} x "
            where = " where they differ" if alone else ""
            text = f"recorded = computed {sign} {size}`{name}`{where}"
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


def _offset(seen: Evidence) -> Iterator[Json]:
    if not seen.enough(seen.wrong):
        return
    offset = float(np.median((seen.recorded - seen.computed)[seen.wrong]))
    share = seen.explains(seen.computed + offset)
    if share >= ENOUGH:
        yield finding("offset", f"recorded = computed {offset:+.5g}", share)


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
