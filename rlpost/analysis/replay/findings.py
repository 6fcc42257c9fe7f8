"""What a difference is: an option, other inputs or a relation that reproduce the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.candidates import nested, value_of
from rlpost.analysis.replay.compute import Replayer
from rlpost.analysis.replay.rollouts import NumberColumn
from rlpost.analysis.replay.sample import PROMPT_GROUPS, sampled
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
from rlpost.pipeline.needs import coupling_of
from rlpost.recipe.presets import merged
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.difference import Difference
    from rlpost.analysis.replay.compute import Replayed
    from rlpost.analysis.replay.rollouts import Rollouts

    Numbers = NDArray[np.float64]
    Codes = NDArray[np.int64]

Json = dict[str, Any]
SAMPLE_TOKENS = 150_000
"""Causes are tested on whole steps, or groups, of so many tokens."""
ENOUGH = 0.95
"""Share of the differing elements that a finding must explain; the others are outliers."""
WHOLE = 0.999
"""A finding that explains so much explains everything, but for rounding."""
_DISTINCT = 3
"""Numbers are solved of so many distinct ones."""
_TWO = 2
"""Numbers that differ: one fits anything."""
_SMALL = 1e-5
"""Smaller numbers have no exact ratio."""
_MOST = 5
_FEW = 3


@dataclass(frozen=True)
class PossibleCause:
    """Another recipe, other inputs, or other numbers of a stage, which may be the trainer's."""

    text: str
    recipe: Recipe | None = None
    inputs: pa.Table | None = None
    numbers: Numbers | None = None
    """Without recipe and inputs."""
    option: str = ""
    """The change as options, as typed."""
    name: str = ""
    """Of the finding, if the check has several."""


@dataclass(frozen=True)
class ReplayCheck(Check[Callable[..., Any]]):
    """A check of recorded numbers."""

    prefix: str = ""
    """Of the name: `input:` if the trainer read something else."""

    @property
    def name(self) -> str:
        """The name of the finding; `option` is that of all options, whose field follows it."""
        return self.prefix + super().name.replace("_", "-")


CAUSES: Registry[ReplayCheck] = Registry()
"""Checks of the first stage that differs, which yield causes; by the name of the finding."""
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def check(prefix: str = "") -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator that adds a check to CAUSES."""

    def add(function: AnyFunction) -> AnyFunction:
        CAUSES.add(ReplayCheck(function, prefix))
        return function

    return add


@dataclass(frozen=True)
class ReplayFinding(Finding):
    """What reproduces the recorded numbers of a stage."""

    stage: str = ""
    explains: float = 1.0
    """Share of the differing elements; of large inputs, of those in a sample."""
    reproduces: tuple[str, ...] = ()
    """The other stages that the change makes equal."""
    breaks: tuple[str, ...] = ()
    """The stages that differ with the change alone."""

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
        }


def listed(names: Sequence[str]) -> str:
    """Return names in backticks, with commas and a last `and`."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)


class Evidence:
    """The first stage that differs, and what other recipes and inputs make of all stages.

    Args:
        replayer: of the rollouts; a large input is sampled.
        recipe: as the user sets it.
        name: the stage.
        differing: [N] the responses in which it differs.
    """

    def __init__(
        self, replayer: Replayer, recipe: Recipe, name: str, differing: NDArray[np.bool_]
    ) -> None:
        sample = sampled(replayer.rollouts, SAMPLE_TOKENS, {"differing": differing})
        if coupling_of(replayer.resolved(recipe)).scope not in ("response", "group"):
            alone = sample.scope == PROMPT_GROUPS and sample.around is None
            sample = replayer.rollouts if alone else sample.steps
        replayer = Replayer(sample, replayer.tolerance)
        self.replayer, self.recipe, self.name = replayer, recipe, name
        self.rollouts, self.resolved = replayer.rollouts, replayer.resolved(recipe)
        self.stages = self.computed(recipe)

    def computed(self, recipe: Recipe, inputs: pa.Table | None = None) -> dict[str, Replayed]:
        """Return the recorded stages by a recipe and from inputs; none if these do not fit."""
        replayer = self.replayer if inputs is None else self.replayer.reading(inputs)
        with suppress(UsageError, DataError, pa.ArrowException):
            stages = replayer.from_start(recipe, self.rollouts.recorded)
            return {stage.name: stage for stage in stages}
        return {}

    @property
    def difference(self) -> Difference:
        """Recorded and computed numbers of the stage."""
        return self.stages[self.name].difference

    @property
    def fields(self) -> frozenset[str]:
        """The fields of the recipe that can change the stage."""
        return self.replayer.fields_behind(self.recipe, self.name)

    def numbers(self, recipe: Recipe) -> Numbers | None:
        """Return the stage by another recipe; None if it does not fit."""
        stage = self.computed(recipe).get(self.name)
        return None if stage is None else stage.difference.computed

    def explains(self, numbers: Numbers) -> float:
        """Return the share of the differing elements that other numbers make equal."""
        numbers = np.where(np.isfinite(numbers), numbers, np.inf)
        left = replace(self.difference, computed=numbers).wrong
        return 1.0 - float(left.sum()) / float(self.difference.wrong.sum())

    def columns(self, roles: Sequence[str]) -> dict[str, NumberColumn]:
        """Return the columns of tokens, by name, that have some roles."""
        columns, table = self.rollouts.columns, self.replayer.inputs
        if self.resolved.rows_only:
            return {}
        names = [columns.column(role) for role in roles if role in columns]
        numbers = {name: NumberColumn.of(table.column(name)) for name in names}
        return {name: column for name, column in numbers.items() if column.offsets is not None}

    def with_numbers(self, name: str, column: NumberColumn, values: Numbers) -> pa.Table:
        """Return the inputs with other numbers in a column of tokens, of its own type."""
        assert column.offsets is not None
        table = self.replayer.inputs
        flat = pa.array(values).cast(table.schema.field(name).type.value_type, safe=False)
        lists = pa.ListArray.from_arrays(column.offsets.astype(np.int32), flat)
        return with_column(table, name, lists)


def findings(stages: Sequence[Replayed], recipe: Recipe, replayer: Replayer) -> list[ReplayFinding]:
    """Return what the first stage that differs looks like, the best explanation first.

    Args:
        stages: each computed from what was recorded before it.
        recipe: as the user sets it.
        replayer: of the recorded stages.

    Returns:
        Numbers that are not compared; then at most five causes that reproduce the first stage that
        differs: those without outliers, then those without side effects first. Of causes of one
        name, the first that explains the most.
    """
    wrong = filter(None, (not_finite(stage, replayer.rollouts) for stage in stages))
    first = next((stage for stage in stages if not stage.difference.equal), None)
    return [*wrong, *([] if first is None else _causes(first, recipe, replayer))]


def _causes(first: Replayed, recipe: Recipe, replayer: Replayer) -> list[ReplayFinding]:
    seen = Evidence(replayer, recipe, first.name, first.differing(replayer.rollouts))
    if first.name not in seen.stages or seen.difference.wrong.sum() < _TWO:
        return []
    by_name: dict[str, ReplayFinding] = {}
    for check in CAUSES.values():
        for finding in (_tested(check, cause, seen) for cause in check.run(seen)):
            if finding is not None:
                before = by_name.get(finding.check, finding)
                by_name[finding.check] = max(before, finding, key=lambda x: round(x.explains, 3))
    if not any(finding.explains >= WHOLE for finding in by_name.values()):
        solved = (_tested(CAUSES["option"], cause, seen) for cause in _solved(seen))
        finding = next((finding for finding in solved if finding is not None), None)
        by_name |= {} if finding is None else {finding.check: finding}

    def order(finding: ReplayFinding) -> tuple[bool, bool, int, int]:
        several = finding.option.count("--") > 1
        effects = len(finding.breaks), -len(finding.reproduces)
        return (finding.explains < WHOLE, several, *effects)

    return sorted(by_name.values(), key=order)[:_MOST]


def _tested(check: ReplayCheck, cause: PossibleCause, seen: Evidence) -> ReplayFinding | None:
    """Return a cause as a finding if it makes the numbers of the stage equal."""
    numbers, after = cause.numbers, {}
    if numbers is None:
        after = seen.computed(cause.recipe or seen.recipe, cause.inputs)
        numbers = after[seen.name].difference.computed if seen.name in after else None
    if numbers is None or numbers.shape != seen.difference.computed.shape:
        return None
    share = seen.explains(numbers)
    if share < ENOUGH:
        return None
    equal = {name: stage.difference.equal for name, stage in after.items() if name != seen.name}
    before = {name: stage.difference.equal for name, stage in seen.stages.items()}
    return replace(
        _finding(check, seen.stages[seen.name], cause.text),
        check=cause.name or check.name,
        option=cause.option,
        explains=share,
        reproduces=tuple(x for x in equal if equal[x] and not before.get(x, True)),
        breaks=tuple(x for x in equal if not equal[x] and before.get(x, False)),
    )


@check()
def option(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are those of the recipe with another value of an option.

    The trainer has another setting. Add the option to the recipe if the trainer is right, else
    change the trainer.
    """
    for changes in single_changes(seen.resolved.recipe, seen.rollouts, seen.fields):
        yield from _changed(seen, changes)


def _changed(seen: Evidence, changes: Mapping[str, Any]) -> Iterator[PossibleCause]:
    """Yield the change of a recipe as a cause, unless its options exclude each other."""
    values = seen.recipe.model_dump(exclude_unset=True)
    with suppress(UsageError):
        recipe = Recipe.of(merged(values, nested(changes)))
        typed = [" ".join(Recipe.words_of(name, value)) for name, value in changes.items()]
        before = [" ".join(Recipe.words_of(name, value_of(seen.recipe, name))) for name in changes]
        options, replaced = " ".join(filter(None, typed)), " ".join(filter(None, before))
        text = f"reproduced by `{options}`" if options else f"reproduced without `{replaced}`"
        text += f", in place of `{replaced}`" if options and replaced else ""
        name = f"option:{next(iter(changes))}"
        yield PossibleCause(text, recipe, option=options, name=name)


def _solved(seen: Evidence) -> Iterator[PossibleCause]:
    """Yield values of a number, or of two, by Gauss-Newton, with the fewest digits first."""
    recorded = seen.difference.recorded
    if len(np.unique(recorded[seen.difference.wrong].round(6))) < _DISTINCT:
        return

    def computed(values: Mapping[str, float]) -> Numbers | None:
        causes = _changed(seen, with_numbers(seen.resolved.recipe, values))
        return next((seen.numbers(cause.recipe) for cause in causes if cause.recipe), None)

    names = [n for n in SOLVED if n in seen.fields and number_of(seen.recipe, n) is not None]
    for some in [[name] for name in names] + [[*pair] for pair in pairwise(names)]:
        start = {name: number_of(seen.recipe, name) or 0.0 for name in some}
        values = solved_numbers(start, computed, recorded, seen.difference.chosen)
        for digits in DIGITS if values else ():
            rounded = {name: float(f"{x:.{digits}g}") for name, x in values.items()}
            yield from _changed(seen, with_numbers(seen.resolved.recipe, rounded))


@check(prefix="input:")
def other_groups(seen: Evidence) -> Iterator[PossibleCause]:
    """Rewards are normalised in other groups: of a prompt over all steps, or of consecutive rows.

    The baseline mixes responses of several policies, or of several prompts. Group by step and
    prompt, and keep the rows of a prompt together.
    """
    columns, table = seen.rollouts.columns, seen.replayer.inputs
    if "group" not in columns or not seen.resolved.grouped:
        return
    if "batch" in columns:
        steps = pa.array(np.zeros(len(table), np.int64))
        table = with_column(table, columns.column("batch"), steps)
        yield PossibleCause("reproduced with the groups of prompts over all steps", inputs=table)
    size = int(np.bincount(np.bincount(seen.rollouts.groups)).argmax())
    groups = pa.array(np.arange(len(table)) // max(size, 1))
    table = with_column(seen.replayer.inputs, columns.column("group"), groups)
    yield PossibleCause(f"reproduced with groups of {size} consecutive rows", inputs=table)


@check(prefix="input:")
def policies_swapped(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed with the log-probs of one policy in place of another's.

    The KL, or the importance weight, is of other policies, or has the other sign. Check in which
    order the trainer passes them.
    """
    table, names = seen.replayer.inputs, [*seen.columns(LOG_PROBS)]
    for name in names:
        for source in (other for other in names if other != name):
            read = with_column(table, name, table.column(source))
            yield PossibleCause(
                f"reproduced with `{source}` read in place of `{name}`", inputs=read
            )
            both = with_column(read, source, table.column(name))
            yield PossibleCause(f"reproduced with `{name}` and `{source}` exchanged", inputs=both)


@check(prefix="input:")
def column_shifted(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed from log-probs, values or a mask that are one token off.

    Logits predict the next token: those at t-1 give the log-prob of token t; the value of a token
    is that of the state before it. Check how the trainer cuts logits, values, masks and tokens.
    """
    for name, column in seen.columns((*LOG_PROBS, "values", "mask")).items():
        for by, which in ((1, "next"), (-1, "previous")):
            text = f"reproduced with `{name}` shifted: each token has that of the {which} one"
            for edge in (column.values, np.zeros_like(column.values), np.ones_like(column.values)):
                values = _neighbours(seen.rollouts, column.values, by, edge)
                yield PossibleCause(text, inputs=seen.with_numbers(name, column, values))


@check(prefix="input:")
def mask_ones(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are computed without the mask: every token counts.

    Tokens of tools and of the environment are trained as if the policy had produced them. Pass the
    mask.
    """
    for name, column in seen.columns(("mask",)).items():
        if (column.values == 0).any():
            table = seen.with_numbers(name, column, np.ones_like(column.values))
            yield PossibleCause(f"reproduced without `{name}`: every token counts", inputs=table)


@check()
def sign(seen: Evidence) -> Iterator[PossibleCause]:
    """The KL penalty has the opposite sign: it is added to the rewards, not subtracted.

    Training moves the policy away from the reference. Subtract β·KL, of log-probs of the policy
    minus those of the reference.
    """
    if seen.recipe.kl_coef == 0 or seen.name == "kl" or "kl_coef" not in seen.fields:
        return
    without = seen.numbers(seen.recipe.model_copy(update={"kl_coef": 0.0}))
    if without is not None:
        text = "the KL penalty has the other sign: it is added to the rewards, not subtracted"
        yield PossibleCause(text, numbers=2 * without - seen.difference.computed)


@check()
def rounded(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are the computed ones, rounded to bfloat16 or float16.

    Near numbers become equal, and what is computed from them is as inexact. Compute and record
    them in float32.
    """
    single = seen.difference.computed.astype(np.float32)
    bits = single.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)  # ties to even
    with np.errstate(over="ignore"):
        half = single.astype(np.float16)
    for kind, numbers in (("bfloat16", nearest.view(np.float32)), ("float16", half)):
        text = f"recorded = computed, rounded to {kind}"
        yield PossibleCause(text, numbers=numbers.astype(np.float64))


@check()
def factor(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are the computed ones times a constant.

    It acts as another learning rate, and a negative one as the other sign. Look for a mean in place
    of a sum, or a division too much.
    """
    computed, recorded = seen.difference.computed, seen.difference.recorded
    used = seen.difference.wrong & (abs(computed) > _SMALL)
    if used.sum() >= _DISTINCT and len(np.unique(computed[used].round(6))) >= _TWO:
        times = float(np.median(recorded[used] / computed[used]))
        yield PossibleCause(f"recorded = computed x {times:.5g}", numbers=computed * times)


@check()
def shift(seen: Evidence) -> Iterator[PossibleCause]:
    """The recorded numbers are those of the next or the previous token.

    Each token is trained with the number of its neighbour. Check where the trainer cuts prompts
    off, and where it pairs logits with the tokens that follow them.
    """
    computed, recorded = seen.difference.computed, seen.difference.recorded
    for by, which in ((1, "next"), (-1, "previous")):
        if seen.stages[seen.name].by_token(seen.rollouts):
            text = f"each recorded number is the computed one of the {which} token"
            yield PossibleCause(text, numbers=_neighbours(seen.rollouts, computed, by, recorded))


def _neighbours(rollouts: Rollouts, values: Numbers, by: int, edge: Numbers) -> Numbers:
    """Return the value of the next or previous token of a response, [T]; `edge` where none is."""
    rows, shifted = rollouts.of_tokens, edge.copy()
    here, other = (slice(-1), slice(1, None)) if by > 0 else (slice(1, None), slice(-1))
    same = rows[here] == rows[other]
    shifted[here][same] = values[other][same]
    return shifted


def not_finite(stage: Replayed, rollouts: Rollouts) -> ReplayFinding | None:
    """Recorded numbers are NaN, null or infinite.

    One such number makes the loss of its batch NaN. Look for a division by 0, and for tokens that
    the sampler excludes, whose log-prob is -inf.
    """
    rows = rollouts.not_finite(stage.name)
    if not len(rows):
        return None
    first = ", ".join(str(row) for row in rollouts.rows[rows[:_FEW]])
    text = (
        f"recorded numbers of `{stage.column}` are NaN, null or infinite in {len(rows):,} of "
        f"{counted(len(rollouts), 'response')} (rows {first}{', ...' * (len(rows) > _FEW)})"
    )
    return _finding(NOT_FINITE, stage, text)


NOT_FINITE = ReplayCheck(not_finite)
"""Of every stage, whether it differs or not."""


def _finding(check: ReplayCheck, stage: Replayed, text: str) -> ReplayFinding:
    columns = (stage.column,)
    return ReplayFinding(check.name, "error", text, check.advice, columns, stage=stage.name)
