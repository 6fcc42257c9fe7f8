"""Sets of responses: constants of each step, group or rank, and sets that have all differences.

A trainer that whitens on each of its ranks alone scales and moves the numbers of each rank by
constants of its own: recorded = c x computed + d, with c and d of each rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.replay.findings.base import ENOUGH, DifferingPart, Explanation, check
from rlpost.analysis.replay.findings.changes import Change
from rlpost.analysis.replay.findings.evidence import BEYOND_CONSTANTS, numbers_of
from rlpost.kernels.codes import joint_codes, ordinals_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rlpost.analysis.replay.findings.evidence import Evidence

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_AFFINE = 6
"""Distinct numbers that each set needs, of which two are for its constants."""
_SHARES = (2, 4, 8, 16, 32, 64)
_NEAR = 1e-3
_TRIMMED = 0.9
"""Share of the elements that a second fit of a set has, without those that differ the most."""
_OUTSIDE = 0.02
"""Share of the differing elements that may lie outside of the part that a finding names."""
_STEP = 0.2
"""A step differs if so many of its elements do."""
_FEW = 3
_MOST_RESPONSES = 0.5
"""Responses of a value of a column differ if so many of them do."""


# ---- constants of each set ----


@check("last relation")
def step_divisor(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are divided by one number in each step, such as a running statistic.

    Prompts with rare successes get smaller advantages than by the recipe. Divide by the standard
    deviation that the recipe has.
    """
    base, divisor = _undivided(seen), _divisor(seen)
    if base is None or divisor is None or not seen.enough(seen.wrong):
        return
    steps = range(int(seen.steps.max()) + 1)
    own = np.array([_median(divisor[seen.steps == step]) for step in steps])
    distinct = seen.distinct_beyond_one_per_set(seen.steps, seen.wrong)
    if not np.isfinite(own).all() or (own <= 0).any() or distinct < _AFFINE:
        return
    share = seen.explains(base / own[seen.steps])
    if share >= ENOUGH:
        text = f"divided by one number in each step ({_range(own)}), not by the standard deviation"
        yield Explanation(f"{text} of each {seen.resolved.norm[1]}", share)


@check("last relation")
def within_sets(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are c times the computed ones plus d, with c and d of each set.

    Sets are steps, values of a column of whole numbers, such as a rank, or shares of a step. The
    trainer whitens, or normalises, within each of them, with the statistics of fewer responses. Sum
    these over all ranks.
    """
    for title, codes in _sets(seen):
        fitted = _fitted(seen, seen.on_elements(codes))
        if fitted is None:
            continue
        predicted, scales, offsets = fitted
        share = seen.explains(predicted)
        if share >= ENOUGH:
            constants = f"c {_range(scales)} and d {_range(offsets)}"
            text = f"whitened, or normalised, within {title}: recorded = c x computed + d"
            yield Explanation(f"{text}, {constants}", share)
            return


@check("last relation")
def group_offset(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers have a constant added in each prompt group, or in each step.

    The baseline is another one, such as a mean that is weighted by length. Subtract what the recipe
    does.
    """
    differences = seen.recorded - seen.computed
    for title, codes, _ in reversed(seen.groups_and_steps()):
        if seen.distinct_beyond_one_per_set(codes, seen.wrong) < BEYOND_CONSTANTS:
            continue
        use = seen.chosen & np.isfinite(differences)
        offsets = _medians(codes, differences, use)
        share = seen.explains(seen.computed + np.nan_to_num(offsets)[codes])
        if share >= ENOUGH:
            sizes = _range(offsets[np.isfinite(offsets)])
            yield Explanation(f"recorded = computed + a constant of each {title}, {sizes}", share)
            return


def _medians(codes: Codes, values: Numbers, use: Mask) -> Numbers:
    """Return the median of each set, by set; NaN without elements."""
    out = np.full(int(codes.max(initial=-1)) + 1, np.nan)
    order = np.argsort(codes[use], kind="stable")
    own, sorted_values = codes[use][order], values[use][order]
    keys, starts = np.unique(own, return_index=True)
    for key, part in zip(keys, np.split(sorted_values, starts[1:]), strict=True):
        out[key] = np.median(part)
    return out


def _range(values: Numbers) -> str:
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"


def _fitted(seen: Evidence, codes: Codes) -> tuple[Numbers, Numbers, Numbers] | None:
    """Return the prediction of an affine relation in each set, and its constants.

    None if a set has too few distinct numbers.
    """
    predicted, constants = seen.computed.copy(), []
    use = seen.chosen & np.isfinite(seen.recorded) & np.isfinite(seen.computed)
    for code in np.unique(codes[use]):
        own = use & (codes == code)
        x, y = seen.computed[own], seen.recorded[own]
        if seen.distinct(own) < _AFFINE or np.ptp(x) == 0:
            return None
        scale, offset = _line(x, y)
        differences = np.abs(y - scale * x - offset)
        near = differences <= np.quantile(differences, _TRIMMED)
        if np.ptp(x[near]) > 0:
            scale, offset = _line(x[near], y[near])
        predicted[own] = scale * x + offset
        constants.append((scale, offset))
    if not constants:
        return None
    scales, offsets = np.array(constants).T
    return predicted, scales, offsets


def _line(x: Numbers, y: Numbers) -> tuple[float, float]:
    """Return scale and offset of least squares."""
    middle = x - x.mean()
    scale = float(middle @ y) / float(middle @ middle)
    return scale, float(y.mean()) - scale * float(x.mean())


def _sets(seen: Evidence) -> Iterator[tuple[str, Codes]]:
    """Yield sets of responses: steps, values of columns in each step, shares of it."""
    rollouts = seen.replayer.rollouts
    steps = rollouts.codes("batch")
    yield "each step", steps
    for name, codes in rollouts.sets.items():
        yield f"each `{name}`", joint_codes(steps, codes)
    sizes = np.bincount(steps)
    within = ordinals_of(steps)
    for count in _SHARES:
        if not (sizes % count).any() and (sizes >= _AFFINE * count).all():
            yield f"every {_ordinal(count)} response of a step", joint_codes(steps, within % count)
            blocks = within // (sizes[steps] // count)
            yield f"{count} blocks of consecutive responses of a step", joint_codes(steps, blocks)


def _ordinal(count: int) -> str:
    return {2: "second", 32: "32nd"}.get(count, f"{count}th")


def smallest_deviation(seen: Evidence) -> float | None:
    """Return the number by which the differing rewards are divided, if it is one number."""
    divisor = _divisor(seen)
    if divisor is None:
        return None
    own = divisor[seen.wrong & np.isfinite(divisor)]
    if not len(own) or not seen.enough(seen.wrong):
        return None
    value = float(np.median(own))
    near = np.abs(own - value) <= _NEAR * abs(value)
    floor = value - seen.recipe.numerics.norm_eps
    return floor if floor > 0 and near.mean() >= ENOUGH else None


def _divisor(seen: Evidence) -> Numbers | None:
    """Return by what each element is divided, if rewards are; NaN where it is 0."""
    base = _undivided(seen)
    if base is None:
        return None
    use = seen.chosen & (np.abs(base) > seen.tolerance) & (np.abs(seen.recorded) > seen.tolerance)
    return np.divide(base, seen.recorded, out=np.full_like(base, np.nan), where=use)


def _undivided(seen: Evidence) -> Numbers | None:
    """Return the stage without the division by a standard deviation; None if there is none."""
    if seen.resolved.norm[1] == "none":
        return None
    recipe = Change((("norm_std", "none"),)).recipe(seen.recipe)
    base = None if recipe is None else numbers_of(seen.replayer, recipe, seen.first.name)
    if base is None or base.shape != seen.computed.shape or np.array_equal(base, seen.computed):
        return None
    return base


def _median(values: Numbers) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else np.nan


# ---- parts that have all differences ----


@check("part")
def single_groups(seen: Evidence) -> Iterator[DifferingPart]:
    """Only prompt groups of one response differ.

    Such a response has no other to be compared with, and frameworks set its advantage to 0, to its
    reward, or to anything. `--set numerics.single=` has the usual choices.
    """
    if "group" in seen.replayer.rollouts.columns:
        yield from _only(seen, "groups of one response", seen.group_size == 1)


@check("part")
def last_tokens(seen: Evidence) -> Iterator[DifferingPart]:
    """Only the last tokens of responses differ.

    The end-of-text token has the reward, or none, or the value after it is another one. Check which
    tokens the mask has at the end, and where the reward is placed.
    """
    if seen.by_token:
        yield from _only(seen, "the last policy tokens of responses", seen.last)
        ends = np.diff(seen.rows, append=-1) != 0
        yield from _only(seen, "the last tokens of responses", ends)


def _only(seen: Evidence, title: str, inside: Mask) -> Iterator[DifferingPart]:
    """Yield a part if it has all differences, and others have numbers other than 0."""
    share = float((seen.wrong & inside).sum()) / int(seen.wrong.sum())
    others = seen.chosen & ~inside
    matter = np.abs(seen.recorded[others]) > seen.tolerance[others]
    if share >= 1 - _OUTSIDE and matter.any():
        yield DifferingPart(f"only {title} differ{_example(seen, seen.wrong & inside)}", share)


def _example(seen: Evidence, elements: Mask) -> str:
    """Return the numbers of a part, if they are constant."""
    recorded, own = seen.recorded[elements], seen.computed[elements]
    constant = [np.ptp(numbers) <= seen.tolerance[elements].max() for numbers in (recorded, own)]
    return f": recorded {_range(recorded)}, computed {_range(own)}" if any(constant) else ""


@check("part")
def some_steps(seen: Evidence) -> Iterator[DifferingPart]:
    """Only some steps differ; what these look like follows.

    A setting changed during the run, or a schedule has it. Compare the logs of these steps with
    those of the others.
    """
    rollouts = seen.replayer.rollouts
    if "batch" not in rollouts.columns:
        return
    codes = rollouts.codes("batch")
    differ = _differing(seen, codes, _STEP)
    if differ is not None:
        rows, labels, count = _responses(seen, codes, rollouts.columns.column("batch"), differ)
        steps = f"step {labels}" if count == 1 else f"steps {labels}"
        verb = "differs" if count == 1 else "differ"
        text = f"only {steps} of {len(np.unique(codes))} {verb}"
        yield DifferingPart(text, _share(seen, rows), seen.of_rows(rows), alone=True)


@check("part")
def some_responses(seen: Evidence) -> Iterator[DifferingPart]:
    """Only responses of some values of a column differ, such as a finish reason, domain or rank.

    What these look like follows. The trainer treats them differently, or one rank computes
    something else.
    """
    rollouts = seen.replayer.rollouts
    roles = [role for role in ("truncated", "domain") if role in rollouts.columns]
    sets = {rollouts.columns.column(role): rollouts.codes(role) for role in roles} | rollouts.sets
    for name, codes in sets.items():
        differ = _differing(seen, codes, _MOST_RESPONSES)
        if differ is not None:
            rows, labels, _ = _responses(seen, codes, name, differ)
            text = f"only responses with `{name}` {labels} differ"
            yield DifferingPart(text, _share(seen, rows), seen.among(rows))
            return


def _differing(seen: Evidence, codes: Codes, least: float) -> Mask | None:
    """Return which sets of responses differ; None if all do, or some in part."""
    total, wrong = (np.bincount(codes[seen.rows[some]]) for some in (seen.chosen, seen.wrong))
    wrong = np.pad(wrong, (0, len(total) - len(wrong)))
    rows = np.unique(seen.rows[seen.wrong])
    sizes = np.bincount(codes, minlength=len(total))
    responses = np.bincount(codes[rows], minlength=len(total)) / np.maximum(sizes, 1)
    share = wrong / np.maximum(total, 1)
    differ = (share >= _STEP) | (responses >= least)
    equal = (share <= _OUTSIDE * _STEP) & ~differ & (total > 0)
    some = differ.any() and equal.any() and (differ | equal | (total == 0)).all()
    enough = len(rows) >= _FEW and wrong[differ].sum() >= (1 - _OUTSIDE) * wrong.sum()
    return differ if some and enough else None


def _responses(seen: Evidence, codes: Codes, column: str, differ: Mask) -> tuple[Codes, str, int]:
    """Return the responses of the sets that differ, the labels of these sets, and their number."""
    at = [int(np.argmax(codes == code)) for code in np.flatnonzero(differ)]
    values = seen.replayer.rollouts.table.column(column)
    labels = ", ".join(str(values[row].as_py()) for row in at[:_FEW])
    more = ", ..." if len(at) > _FEW else ""
    return np.flatnonzero(differ[codes]), labels + more, len(at)


def _share(seen: Evidence, rows: Codes) -> float:
    """Return the share of the differing elements that are of some responses."""
    return float(np.isin(seen.rows[seen.wrong], rows).mean())
