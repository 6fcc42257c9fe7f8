"""What a difference looks like: single changes that reproduce it, and relations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.candidates import nested, value_of
from rlpost.analysis.replay.evidence import Evidence
from rlpost.analysis.replay.rollouts import NumberColumn
from rlpost.analysis.replay.search import (
    DIGITS,
    SOLVED,
    number_of,
    single_changes,
    solved_numbers,
    with_numbers,
)
from rlpost.analysis.replay.stages import with_column
from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError
from rlpost.findings import Check, Finding, Registry
from rlpost.recipe.base import words_of
from rlpost.recipe.presets import merged
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.replay.compute import Replayed, Replayer
    from rlpost.analysis.replay.rollouts import Rollouts

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]
    Mask = NDArray[np.bool_]

Json = dict[str, Any]
Phase = Literal["change", "relation", "note", "not compared"]
ENOUGH = 0.95
"""Share of the differing elements that a finding must explain; the others are outliers."""
WHOLE = 0.999
"""A finding that explains so much explains everything, but for rounding."""
_MOST = 5
_REPRESENTABLE = 0.98
_ROUNDED = 6
"""Distinct numbers that a rounding moves."""
_FEW = 3


@dataclass(frozen=True)
class Explanation:
    """What a check yields of a relation or a note."""

    text: str
    explains: float
    """Share of the differing elements."""


@dataclass(frozen=True)
class PossibleCause:
    """Other inputs, another recipe, or other numbers of the stage, which may be the trainer's."""

    text: str
    inputs: pa.Table | None = None
    recipe: Recipe | None = None
    numbers: Numbers | None = None
    """Without inputs and recipe."""
    options: tuple[str, ...] = ()
    """The change as options, as typed."""
    name: str = ""
    """Of the finding, if the check has several."""


@dataclass(frozen=True)
class ReplayCheck(Check[Callable[..., Any]]):
    """A check of recorded numbers, tested in the order of phases."""

    phase: Phase
    prefix: str = ""
    """Of the name: `input:` if the trainer read something else."""

    @property
    def name(self) -> str:
        """The name of the finding; `option` is that of all options, whose field follows it."""
        return self.prefix + super().name.replace("_", "-")


FINDINGS: Registry[ReplayCheck] = Registry()
"""Every check of recorded stages, by the name of its finding."""
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def check(phase: Phase, prefix: str = "") -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator that adds a check to FINDINGS."""

    def add(function: AnyFunction) -> AnyFunction:
        FINDINGS.add(ReplayCheck(function, phase, prefix))
        return function

    return add


@dataclass(frozen=True)
class ReplayFinding(Finding):
    """What explains the recorded numbers of a stage."""

    stage: str = ""
    explains: float = 1.0
    """Share of the differing elements; of large inputs, of those in a sample."""
    reproduces: tuple[str, ...] = ()
    """The other stages that the change makes equal."""
    breaks: tuple[str, ...] = ()
    """The stages that differ with the change alone."""
    note: bool = False
    """Whether the numbers count as equal."""

    def as_json(self) -> Json:
        """Return the finding as plain data."""
        text = f"{listed([self.stage, *self.reproduces])}: {self.text}"
        if self.breaks:
            text += f"; but {listed(self.breaks)}, equal without it, would differ"
        return {
            **super().as_json(),
            "text": text,
            "advice": self.advice,
            "stage": self.stage,
            "reproduces": [self.stage, *self.reproduces],
            "explains": float(min(1.0, max(0.0, self.explains))),
            "note": self.note,
        }


def listed(names: Sequence[str]) -> str:
    """Return names in backticks, with commas and a last `and`."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)


def findings(stages: Sequence[Replayed], recipe: Recipe, replayer: Replayer) -> list[ReplayFinding]:
    """Return what the first stage that differs looks like, the best explanation first.

    Args:
        stages: each computed from what was recorded before it.
        recipe: as the user sets it.
        replayer: of the recorded stages.

    Returns:
        Numbers that are not compared; then at most five findings of the first stage that differs:
        changes that reproduce it, and relations. If no stage differs: notes about numbers that
        differ and count as equal.
    """
    not_compared = [*_of_stages("not compared", stages, replayer)]
    first = next((stage for stage in stages if not stage.difference.equal), None)
    if first is None:
        return [*not_compared, *_of_stages("note", stages, replayer)]
    sample = Evidence(first, recipe, replayer).sample()
    explanations = [*_changes(sample), *_relations(sample)]
    explanations.sort(key=lambda x: (x.explains < WHOLE, bool(x.breaks)))
    return [*not_compared, *explanations[:_MOST]]


def _of_stages(
    phase: Phase, stages: Sequence[Replayed], replayer: Replayer
) -> Iterator[ReplayFinding]:
    for stage in stages:
        for one_check in _of(phase):
            for explanation in one_check.run(stage, replayer.rollouts):
                yield _finding(one_check, explanation, stage)


def _of(phase: Phase) -> list[ReplayCheck]:
    return [check for check in FINDINGS.values() if check.phase == phase]


def _finding(check: ReplayCheck, explanation: Explanation, stage: Replayed) -> ReplayFinding:
    note, text, share = check.phase == "note", explanation.text, explanation.explains
    return ReplayFinding(
        check.name,
        "warning" if note else "error",
        text,
        check.advice,
        (stage.column,),
        stage=stage.name,
        explains=share,
        note=note,
    )


def _relations(seen: Evidence) -> Iterator[ReplayFinding]:
    for check in _of("relation"):
        explanation = next(check.run(seen), None)
        if explanation is not None:
            yield _finding(check, explanation, seen.stage)


# ---- changes ----


def _changes(seen: Evidence) -> list[ReplayFinding]:
    """Return the changes that reproduce the numbers of a stage, those without side effects first.

    Of changes of one name, the first that explains the most is returned.
    """
    if int(seen.wrong.sum()) < 2:  # noqa: PLR2004 - one number fits anything
        return []
    by_name: dict[str, ReplayFinding] = {}
    equal = _equal_stages(seen.replayer, seen.recipe)
    for check in _of("change"):
        for cause in check.run(seen):
            finding = _tested(check, cause, seen, equal)
            if finding is not None:
                before = by_name.get(finding.check, finding)
                by_name[finding.check] = max(before, finding, key=lambda x: round(x.explains, 3))
    solved = not any(finding.explains >= WHOLE for finding in by_name.values())
    for cause in _solved(seen) if solved else ():
        finding = _tested(FINDINGS["option"], cause, seen, equal)
        if finding is not None:
            by_name[finding.check] = finding
            break
    order = sorted(by_name.values(), key=lambda x: (len(x.breaks), -len(x.reproduces)))
    return sorted(order, key=lambda x: (x.explains < WHOLE, x.option.count("--") > 1))


def _tested(
    check: ReplayCheck, cause: PossibleCause, seen: Evidence, equal: dict[str, bool]
) -> ReplayFinding | None:
    """Return a cause as a finding if it makes the numbers of the stage equal."""
    numbers, recipe = cause.numbers, cause.recipe or seen.recipe
    if numbers is None:
        numbers = seen.numbers(recipe, cause.inputs)
    if numbers is None or len(numbers) != len(seen.computed):
        return None
    share = seen.explains(numbers)
    if share < ENOUGH:
        return None
    after: dict[str, bool] = {}
    if cause.numbers is None:
        replayer = seen.replayer
        replayer = replayer if cause.inputs is None else replayer.reading(cause.inputs)
        after = _equal_stages(replayer, recipe)
    others = [name for name in after if name != seen.stage.name]
    return replace(
        _finding(check, Explanation(cause.text, share), seen.stage),
        check=cause.name or check.name,
        option=" ".join(cause.options),
        reproduces=tuple(name for name in others if after[name] and not equal.get(name, True)),
        breaks=tuple(name for name in others if not after[name] and equal.get(name, False)),
    )


def _equal_stages(replayer: Replayer, recipe: Recipe) -> dict[str, bool]:
    """Return whether each recorded stage is equal; none if the recipe does not fit the inputs."""
    with suppress(UsageError, DataError, pa.ArrowException):
        return {stage.name: stage.difference.equal for stage in replayer.from_recorded(recipe)}
    return {}


@check("change")
def option(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are those of the recipe with another value of an option.

    The trainer has another setting. Add the option to the recipe if the trainer is right, else
    change the trainer.
    """
    for changes in single_changes(seen.resolved.recipe, seen.rollouts, seen.fields):
        cause = _changed(seen, changes)
        if cause is not None:
            yield cause


def _changed(seen: Evidence, changes: dict[str, Any]) -> PossibleCause | None:
    """Return the change of a recipe as a cause; None if its options exclude each other."""
    values = seen.recipe.model_dump(exclude_unset=True)
    try:
        recipe = Recipe.of(merged(values, nested(changes)))
    except UsageError:
        return None
    typed = [" ".join(words_of(name, value)) for name, value in changes.items()]
    before = [" ".join(words_of(name, value_of(seen.recipe, name))) for name in changes]
    options, replaced = " ".join(filter(None, typed)), " ".join(filter(None, before))
    text = f"reproduced by `{options}`" if options else f"reproduced without `{replaced}`"
    text += f", in place of `{replaced}`" if options and replaced else ""
    name = f"option:{next(iter(changes))}"
    return PossibleCause(text, recipe=recipe, options=tuple(filter(None, typed)), name=name)


def _solved(seen: Evidence) -> Iterator[PossibleCause]:
    """Yield values of a number, or of two, by Gauss-Newton, with the fewest digits first."""
    if not seen.enough(seen.wrong):
        return
    names = [n for n in SOLVED if n in seen.fields and number_of(seen.recipe, n) is not None]
    for some in [[name] for name in names] + [[a, b] for a, b in itertools.pairwise(names)]:
        values = _solution(seen, some)
        for digits in DIGITS if values else ():
            rounded = {name: float(f"{x:.{digits}g}") for name, x in values.items()}
            cause = _changed(seen, with_numbers(seen.resolved.recipe, rounded))
            if cause is not None:
                yield cause


def _solution(seen: Evidence, names: Sequence[str]) -> dict[str, float]:
    """Return the values of numbers by Gauss-Newton; none if they do not bring the stage nearer."""

    def computed(values: Mapping[str, float]) -> Numbers | None:
        cause = _changed(seen, with_numbers(seen.resolved.recipe, values))
        return None if cause is None or cause.recipe is None else seen.numbers(cause.recipe)

    start = {name: number_of(seen.recipe, name) or 0.0 for name in names}
    return solved_numbers(start, computed, seen.recorded, seen.chosen)


# ---- other inputs ----


@check("change", prefix="input:")
def other_groups(seen: Evidence) -> Iterator[PossibleCause]:
    """Rewards are normalised in other groups: of a prompt over all steps, or of consecutive rows.

    The baseline mixes responses of several policies, or of several prompts. Group by step and
    prompt, and keep the rows of a prompt together.
    """
    columns, table = seen.rollouts.columns, seen.replayer.inputs
    grouped = "group" in seen.resolved.norm or seen.resolved.estimator.level == "response"
    if not grouped or "group" not in columns:
        return
    zeros = pa.array(np.zeros(table.num_rows, np.int64))
    if "batch" in columns:
        table = with_column(table, columns.column("batch"), zeros)
        yield PossibleCause("reproduced with the groups of prompts over all steps", table)
    size = int(np.bincount(np.bincount(seen.rollouts.groups)).argmax())
    rows = pa.array(np.arange(table.num_rows) // max(size, 1))
    table = with_column(table, columns.column("group"), rows)
    yield PossibleCause(f"reproduced with groups of {size} consecutive rows", table)


@check("change")
def sign(seen: Evidence) -> Iterator[PossibleCause]:
    """The KL penalty has the opposite sign: it is added to the rewards, not subtracted.

    Training moves the policy away from the reference. Subtract β·KL, of log-probs of the policy
    minus those of the reference.
    """
    recipe, stage = seen.recipe, seen.stage.name
    if recipe.kl_coef == 0 or stage == "kl" or "kl_coef" not in seen.fields:
        return
    without = seen.numbers(recipe.model_copy(update={"kl_coef": 0.0}))
    if without is not None:
        text = "the KL penalty has the other sign: it is added to the rewards, not subtracted"
        yield PossibleCause(text, numbers=2 * without - seen.computed)


@check("change", prefix="input:")
def rounded_columns(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed from log-probs or values rounded to bfloat16 or float16.

    They have 8 or 11 significant bits, so that a difference of near numbers, as in a KL, a ratio or
    an advantage, is mostly rounding. Compute them in float32.
    """
    columns = _columns(seen, (*LOG_PROBS, "values"))
    for dtype, rounded in (("bfloat16", to_bfloat16), ("float16", to_float16)):
        for some in (
            [*columns],
            *([name] for name in columns if columns[name] and len(columns) > 1),
        ):
            table = seen.replayer.inputs
            for name in some:
                table = with_column(
                    table, name, _lists(columns[name], rounded(columns[name].values))
                )
            if some and not table.equals(seen.replayer.inputs):
                yield PossibleCause(f"reproduced with {listed(some)} rounded to {dtype}", table)


@check("change", prefix="input:")
def policies_swapped(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed with the log-probs of one policy in place of another's.

    The KL, or the importance weight, is of other policies, or has the other sign. Check in which
    order the trainer passes them.
    """
    table, columns = seen.replayer.inputs, seen.rollouts.columns
    names = [columns.column(role) for role in LOG_PROBS if role in columns]
    for name in _columns(seen, LOG_PROBS):
        for source in names:
            if source == name:
                continue
            read = with_column(table, name, table.column(source))
            yield PossibleCause(f"reproduced with `{source}` read in place of `{name}`", read)
            both = with_column(read, source, table.column(name))
            yield PossibleCause(f"reproduced with `{name}` and `{source}` exchanged", both)


@check("change", prefix="input:")
def column_shifted(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed from log-probs, values or a mask that are one token off.

    Logits predict the next token: those at t-1 give the log-prob of token t; the value of a token
    is that of the state before it. Check how the trainer cuts logits, values, masks and tokens.
    """
    tokens = np.arange(int(seen.rollouts.offsets[-1]))
    for name, column in _columns(seen, (*LOG_PROBS, "values", "mask")).items():
        for by, which in ((1, "next"), (-1, "previous")):
            here, other = neighbours(seen.rollouts.of_tokens, by, tokens)
            for edge in (None, 0.0, 1.0):
                values = column.values.copy() if edge is None else np.full_like(column.values, edge)
                values[here] = column.values[other]
                text = f"reproduced with `{name}` shifted: each token has that of the {which} one"
                yield PossibleCause(text, _with(seen, name, column, values))


@check("change", prefix="input:")
def mask_ones(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed without the mask: every token counts.

    Tokens of tools and of the environment are trained as if the policy had produced them. Pass the
    mask.
    """
    for name, column in _columns(seen, ("mask",)).items():
        if (column.values == 0).any():
            table = _with(seen, name, column, np.ones_like(column.values))
            yield PossibleCause(f"reproduced without `{name}`: every token counts", table)


def _columns(seen: Evidence, roles: Sequence[str]) -> dict[str, NumberColumn]:
    """Return the columns of tokens, by name, that have some roles and that the stage reads."""
    columns, table = seen.rollouts.columns, seen.replayer.inputs
    if seen.resolved.rows_only:
        return {}
    read = [role for role in roles if role in columns and role in {*seen.roles, "mask"}]
    numbers = {
        columns.column(role): NumberColumn.of(table.column(columns.column(role))) for role in read
    }
    return {name: column for name, column in numbers.items() if column.offsets is not None}


def _lists(column: NumberColumn, values: Numbers) -> pa.Array:
    """Return lists of float32 numbers, of the lengths of a column."""
    assert column.offsets is not None
    return pa.ListArray.from_arrays(
        column.offsets.astype(np.int32), pa.array(values.astype(np.float32))
    )


def _with(seen: Evidence, name: str, column: NumberColumn, values: Numbers) -> pa.Table:
    """Return the inputs with other numbers in a column, of its own type."""
    assert column.offsets is not None
    table = seen.replayer.inputs
    kind = table.schema.field(name).type.value_type
    flat = pa.array(values.astype(np.float32)).cast(kind, safe=False)
    lists = pa.ListArray.from_arrays(column.offsets.astype(np.int32), flat)
    return with_column(table, name, lists)


def neighbours(rows: Codes, by: int, among: Codes) -> tuple[Codes, Codes]:
    """Return elements and their neighbours in the same response, among some elements."""
    here, other = (among[:-1], among[1:]) if by > 0 else (among[1:], among[:-1])
    same = rows[here] == rows[other]
    return here[same], other[same]


# ---- relations of recorded and computed numbers ----


def to_float16(values: Numbers) -> Numbers:
    """Round to float16, to the nearest."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float16).astype(np.float64)


def to_bfloat16(values: Numbers) -> Numbers:
    """Round to bfloat16, to the nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    out = rounded.astype(np.uint32).view(np.float32).astype(np.float64)
    return np.where(np.isfinite(values), out, values)


@check("relation")
def rounded(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are the computed ones, rounded to bfloat16, float16 or a few decimals.

    Near numbers become equal, and what is computed from them is as inexact. Compute and record
    them in float32.
    """
    size = np.abs(seen.recorded)
    ways: list[tuple[str, Callable[[Numbers], Numbers], Numbers]] = [
        ("bfloat16", to_bfloat16, size * 2.0**-8),
        ("float16", to_float16, size * 2.0**-11 + 2.0**-25),
    ]
    for digits in range(5):
        half = np.full_like(size, 0.5 * 10.0**-digits)
        ways.append((f"{digits} decimals", lambda x, n=digits: _to_decimals(x, n), half))  # type: ignore[misc]
    elements = seen.chosen & np.isfinite(seen.recorded) & (seen.recorded != 0)
    for title, to_type, half in ways if elements.any() else ():
        same = to_type(seen.recorded)[elements] == seen.recorded[elements].astype(np.float32)
        if same.mean() < _REPRESENTABLE:
            continue
        near = seen.difference.distance <= half * 1.01 + seen.tolerance
        share = seen.explains(np.where(near, seen.recorded, seen.computed))
        moved = seen.wrong & (to_type(seen.computed) != seen.computed)
        if share >= ENOUGH and seen.distinct(moved) >= _ROUNDED:
            yield Explanation(f"recorded = computed, rounded to {title}", share)
            return


def _to_decimals(values: Numbers, digits: int) -> Numbers:
    return np.round(values, digits).astype(np.float32).astype(np.float64)


@check("relation")
def factor(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are the computed ones times a constant.

    It acts as another learning rate, and a negative one as the other sign. Look for a mean in place
    of a sum, or a division too much.
    """
    use = seen.wrong & (np.abs(seen.computed) > 10 * seen.tolerance)
    if not use.any() or not seen.enough(seen.wrong):
        return
    times = float(np.median(seen.recorded[use] / seen.computed[use]))
    share = seen.explains(seen.computed * times)
    if share >= ENOUGH and times != 0:
        inverse = round(1 / abs(times))
        known = inverse > 1 and np.isclose(1 / times, inverse, rtol=1e-4)
        text = f"recorded = computed x {times:.5g}"
        yield Explanation(f"{text}, which is 1/{inverse}" if known else text, share)


@check("relation")
def shift(seen: Evidence) -> Iterator[Explanation]:
    """The recorded numbers are those of the next or the previous token.

    Each token is trained with the number of its neighbour. Check where the trainer cuts prompts
    off, and where it pairs logits with the tokens that follow them.
    """
    sets = {"token": np.arange(len(seen.rows)), "policy token": np.flatnonzero(seen.chosen)}
    for token, among in sets.items() if seen.by_token else ():
        for by, which in (1, "next"), (-1, "previous"):
            here, other = neighbours(seen.rows, by, among)
            inside, predicted = np.zeros(len(seen.rows), np.bool_), seen.recorded.copy()
            inside[here], predicted[here] = True, seen.computed[other]
            share = seen.explains(predicted)
            if share >= ENOUGH and seen.enough(seen.wrong & inside):
                text = f"each recorded number is the computed one of the {which} {token}"
                yield Explanation(text, share)
                return


# ---- numbers that are not compared, or that count as equal ----


@check("not compared")
def not_finite(stage: Replayed, rollouts: Rollouts) -> Iterator[Explanation]:
    """Recorded numbers are NaN, null or infinite.

    One such number makes the loss of its batch NaN. Look for a division by 0, and for tokens that
    the sampler excludes, whose log-prob is -inf.
    """
    rows = rollouts.not_finite(stage.name)
    if len(rows):
        first = ", ".join(str(row) for row in rollouts.rows[rows[:_FEW]])
        more = ", ..." if len(rows) > _FEW else ""
        text = (
            f"recorded numbers of `{stage.column}` are NaN, null or infinite in {len(rows):,} of "
            f"{counted(len(rollouts), 'response')} (rows {first}{more})"
        )
        yield Explanation(text, 1.0)


@check("note")
def constant_groups(stage: Replayed, _: Rollouts) -> Iterator[Explanation]:
    """Only prompt groups of equal rewards differ, by the rounding of their mean, divided by ε.

    A float32 mean of equal numbers can miss them by a rounding, so that a group without a signal
    has advantages near 0, or near 1 if ε is small. They are noise: drop such groups, or take a
    larger ε.
    """
    if stage.rounding:
        text = (
            f"only groups of equal rewards differ, in {counted(stage.rounding, 'number')}: "
            "recorded is the rounding of their float32 mean, divided by ε, where computed is 0"
        )
        yield Explanation(text, 1.0)


@check("note")
def masked_tokens(stage: Replayed, _: Rollouts) -> Iterator[Explanation]:
    """Only tokens outside of the mask differ: observation tokens, or those of dropped responses.

    They do not count if the loss reads the mask. If it does not, set them to 0.
    """
    if stage.outside:
        text = (
            f"only {counted(stage.outside, 'token')} outside the mask differ: observation tokens, "
            "or those of dropped responses; they do not count"
        )
        yield Explanation(text, 1.0)
