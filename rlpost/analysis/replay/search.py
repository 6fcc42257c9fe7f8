"""Search for the recipe that made recorded numbers: presets, a grid of single values, a solver.

Every preset with each of its estimators is computed on a sample. From the nearest recipes on,
single values of GRID are tried, and up to three numbers of SOLVED are solved by least squares,
until the first recorded column that differs is equal; then the next one is. Changes that the result
does not need are taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

import numpy as np

from rlpost.analysis.replay.candidates import bases, presets_of, value_of
from rlpost.analysis.replay.sample import LARGEST, PROMPT_GROUPS, sampled
from rlpost.analysis.replay.trials import Trial, Trials
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError
from rlpost.estimators import ESTIMATORS
from rlpost.recipe.base import Symmetric
from rlpost.recipe.numerics import EstimateClamp, Numerics
from rlpost.recipe.recipe import Recipe, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from rlpost.analysis.replay.candidates import Candidate
    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.display.reporter import Reporter

    Numbers = NDArray[np.float64]

Json = dict[str, Any]
Changes = dict[str, Any]
RECIPES = 1500
"""Recipes after which no others are tried."""
ROUNDS = 5
"""Changes of a recipe that make one more column equal, at most."""
NEAREST = 4
"""Recipes whose neighbours are tried in a round: as many by each of ORDERS."""
ORDERS: tuple[Callable[[Trial], Any], ...] = (
    lambda trial: trial.by_share,
    lambda trial: trial.by_distance,
    lambda trial: (-round(trial.share, 4), *trial.by_distance),
)
"""By equal numbers, by distance, and by the equal numbers of all stages, whichever differ."""
_SOLUTIONS = 9
"""Of these, the ones whose numbers are solved."""
_STEPS = 6
DIGITS = (1, 2, 3, 4, 6)
"""Significant digits to which a solved number is rounded, the fewest that do first."""
_SOLVED_ELEMENTS = 200_000
_WORST = 0.1
"""Share of the elements that a step of least squares leaves out."""
_LATER = "sample_weight"
"""A stage that no preset computes without an option of the grid."""
_FEW = 3
"""Equal numbers that can be those of a clip."""

_CLAMPS = tuple(
    EstimateClamp.of((which, bound))
    for which in ("k3", "all")
    for bound in (10.0, 20.0, 40.0, np.inf)
)
_CHOICES = (
    "kl_estimator", "norm_mean", "norm_std", "whiten_advantages", "whiten_rewards",
    "drop_equal_rewards", "drop_single", "drop_truncated", "difficulty_weight", "length_weight",
    "unit", "rollout_reward", "scan", "bootstrap", "numerics.norm_ddof", "numerics.single",
    "numerics.constant", "numerics.batch", "numerics.kl_credit", "numerics.kl_policy",
    "numerics.terminal_reward",
    "numerics.observations", "numerics.outcome", "numerics.process_rewards",
    "numerics.whiten_ddof", "numerics.whiten_scale",
)  # fmt: skip
_TYPES = {
    **{name: field.annotation for name, field in Recipe.model_fields.items()},
    **{f"numerics.{name}": field.annotation for name, field in Numerics.model_fields.items()},
}
_OPTIONS = {
    f"options.{name}": option.kind
    for estimator in ESTIMATORS.values()
    for name, option in estimator.options.items()
}


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the values of a type that has some few; none of any other type."""
    if kind is bool:
        return (True, False)
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(chain.from_iterable(map(_choices, get_args(kind))))


KL_KINDS = _choices(_TYPES["kl_estimator"])
_SCOPES = get_args(Scope)
GRID: dict[str, tuple[Any, ...]] = {
    **{name: _choices(_TYPES[name]) for name in _CHOICES},
    **{name: values for name, kind in _OPTIONS.items() if (values := _choices(kind))},
    "kl_coef": (5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.0),
    "gamma": (0.9, 0.95, 0.97, 0.99, 0.995, 1.0),
    "lam": (0.0, 0.9, 0.95, 0.98, 0.99, 1.0),
    "reward_clip": tuple(map(Symmetric.of, (0.5, 1.0, 2.0, 5.0, 10.0))),
    "advantage_clip": (0.5, 1.0, 2.0, 5.0, 10.0),
    "reward_scale": ((0.0, 1.0, 0.0, 1.0), (0.0, 1.0, -1.0, 1.0), (-1.0, 1.0, 0.0, 1.0)),
    "truncation_penalty": (0.0, 0.5, -1.0),
    "options.length_adaptive_alpha": (0.05, 0.1),
    "numerics.norm_eps": (0.0, 1e-9, 1e-8, 1e-6, 1e-5, 1e-4),
    "numerics.log_ratio_clamp": _CLAMPS,
    "numerics.kl_clamp": _CLAMPS,
}
"""Values that are tried of a field, one at a time: all choices, numbers that frameworks use."""
SOLVED = {
    "teachers": (-100.0, 100.0),
    "component_weights": (-100.0, 100.0),
    "truncation_penalty": (-100.0, 1.0),
    "kl_coef": (0.0, 100.0),
    "gamma": (0.0, 1.0),
    "lam": (0.0, 1.0),
    "options.f_norm": (1e-3, 1e3),
    "options.step_gamma": (0.0, 1.0),
    "options.step_weight": (-100.0, 100.0),
    "options.ema_decay": (0.0, 1.0),
    "numerics.norm_eps": (0.0, 10.0),
}
"""Numbers that are solved, with their bounds; the first three that can change a column. Of several
weights it is the last."""
MOST_SOLVED = 3


class Nearest(NamedTuple):
    """The recipe that is nearest to recorded numbers."""

    candidate: Candidate
    facts: Json


def search(
    rollouts: Rollouts,
    *,
    tolerance: float,
    given: Mapping[str, Any] | None = None,
    framework: str = "",
    reporter: Reporter | None = None,
) -> Nearest:
    """Return the smallest recipe that reproduces recorded numbers, or the nearest one.

    Args:
        rollouts: the input, with recorded columns.
        tolerance: relative tolerance.
        given: fields of a recipe that the user typed; they stay.
        framework: the framework that wrote the input, whose presets come before others that
            reproduce.
        reporter: receives the recipes tried.

    Returns:
        The recipe, and plain facts: `tried`, `reproduces`, `share_equal`, `best` (as
        `Candidate.facts`), and `same_numbers` (other recipes that reproduce, likewise).

    Raises:
        DataError: no recipe fits the input.
    """
    reports = reporter or SilentReporter()
    reports.start("search", None)
    sample = sampled(rollouts)
    if sample.scope == PROMPT_GROUPS and sample.around is None:
        rollouts.warnings.append(
            f"every step has more tokens than --sample, or than {LARGEST:,}: the search computed "
            "recipes on prompt groups alone, so one with statistics of a batch, such as whitening, "
            "is not found; --preset and --estimator compare it"
        )
    trials = _Search(sample, tolerance, dict(given or {}), reports, framework)
    best = trials.best()
    return Nearest(best.candidate, trials.facts(best))


class _Search:
    """A search over a sample."""

    def __init__(
        self,
        sample: Rollouts,
        tolerance: float,
        given: Json,
        reporter: Reporter,
        framework: str,
    ) -> None:
        self.given, self.framework = given, framework
        self.trials = Trials(sample, tolerance, lambda: reporter.advance(1))
        self.starts = self._starts()
        computed = {name for trial in self.starts for name in trial.stages}
        missing = [n for n in sample.recorded if n not in {*computed, _LATER}]
        if missing and len(missing) < len(sample.recorded):
            left = sample.without(missing)
            self.trials = Trials(left, tolerance, lambda: reporter.advance(1))
            self.starts = self._starts()
        self.equivalent: list[Trial] = []

    def _starts(self) -> list[Trial]:
        """Return the trials of presets and estimators without changes, the nearest first."""
        candidates = bases(self.given)
        if "rollout" in self.trials.rollouts.columns:
            candidates += [candidate.changed({"unit": "row"}) for candidate in candidates]
        trials = [*self._tried(candidates)]
        if not trials:
            name = self.trials.rollouts.name
            reasons = (x.removeprefix(f"{name}: ") for x, _ in self.trials.skipped.most_common(3))
            raise DataError(f"{name}: no recipe fits this input: {'; '.join(reasons)}")
        return sorted(trials, key=lambda trial: trial.by_share)

    def best(self) -> Trial:
        """Return the trial of the plainest recipe that reproduces, or the nearest one."""
        best = self.starts[0]
        while not best.reproduces:
            further = self._further(best)
            if further is None:
                return best
            best = further
        self.equivalent = self._equivalent(self._pruned(best))
        exact = min(self.equivalent, key=lambda trial: trial.inexact)
        fitting = [trial for trial in self.equivalent if trial.as_exact_as(exact)]
        return min(
            fitting, key=lambda x: (x.candidate.preset != self.framework, *x.candidate.order)
        )

    def _further(self, best: Trial) -> Trial | None:
        """Return a trial with more equal stages than a trial; None if none is found."""
        changes = best.candidate.changes
        others = [x.candidate.changed(changes) for x in self.starts] if changes else []
        by_numbers = {trial.numbers: trial for trial in reversed(self.starts)}
        self._add(by_numbers, [best, *self._tried(others)])
        expanded: set[Any] = set()
        for _ in range(ROUNDS):
            waiting = [trial for key, trial in by_numbers.items() if key not in expanded]
            nearest = [sorted(waiting, key=order)[:NEAREST] for order in ORDERS]
            ranks = zip(*nearest, strict=True)
            turns = {trial.numbers: trial for trial in chain.from_iterable(ranks)}
            for number, trial in enumerate(turns.values()):
                if self.trials.count > RECIPES:
                    return None
                expanded.add(trial.numbers)
                self._add(by_numbers, self._tried(self._neighbours(trial)))
                if number < _SOLUTIONS:
                    self._add(by_numbers, self._solved(trial))
                nearer = min(by_numbers.values(), key=lambda x: x.by_share)
                if nearer.equal_stages > best.equal_stages:
                    return nearer
        return None

    def _tried(self, candidates: Iterable[Candidate]) -> Iterator[Trial]:
        yield from (trial for trial in map(self.trials.of, candidates) if trial is not None)

    @staticmethod
    def _add(by_numbers: dict[Any, Trial], trials: Iterable[Trial]) -> None:
        """Add trials, the plainest of those with the same numbers."""
        for trial in trials:
            before = by_numbers.get(trial.numbers, trial)
            by_numbers[trial.numbers] = min(before, trial, key=lambda x: x.candidate.order)

    def _neighbours(self, trial: Trial) -> Iterator[Candidate]:
        """Yield the candidates of single changes of a trial."""
        candidate, fields = trial.candidate, self.fields_behind(trial)
        for changes in single_changes(trial.resolved.recipe, self.trials.rollouts, fields):
            if self.given.keys().isdisjoint(changes):
                yield candidate.changed(changes)
        yield from (candidate.without([name]) for name in candidate.changes)
        for preset in presets_of(trial.resolved.recipe.estimator, self.given):
            yield preset.changed(candidate.changes)

    def fields_behind(self, trial: Trial) -> frozenset[str]:
        """Return the fields that can change the first stage that differs."""
        return self.trials.replayer.fields_behind(trial.candidate.recipe, trial.first_differing)

    # ---- numbers ----

    def _solved(self, trial: Trial) -> Iterator[Trial]:
        """Yield trials whose numbers are solved from the first stage that differs.

        Numbers have the fewest digits that make more stages equal, or else all.
        """
        fields = self.fields_behind(trial) - {*self.given}
        recipe, stage = trial.resolved.recipe, trial.first_differing
        names = [n for n in SOLVED if n in fields and number_of(recipe, n) is not None]
        if not names:
            return
        starts: list[Changes] = [{}]
        if "kl_coef" in names and recipe.kl_coef == 0 and "kl_estimator" not in self.given:
            starts = [{"kl_estimator": kind} for kind in KL_KINDS]
        for candidate in (trial.candidate.changed(start) for start in starts):
            solutions = self._solutions(candidate, names[:MOST_SOLVED], stage)
            equal = [other for other in solutions if other.equal_stages > trial.equal_stages]
            yield from equal[:1] or solutions[-1:]

    def _solutions(self, candidate: Candidate, names: list[str], stage: str) -> list[Trial]:
        """Return a candidate with numbers by Gauss-Newton, the fewest digits first."""
        trial = self.trials.of(candidate)
        first = None if trial is None else self.trials.difference(trial, stage)
        if trial is None or first is None:
            return []
        recipe = trial.resolved.recipe

        def with_values(values: Mapping[str, float]) -> Candidate:
            return candidate.changed(with_numbers(recipe, values))

        def computed(values: Mapping[str, float]) -> Numbers | None:
            trial = self.trials.of(with_values(values))
            difference = None if trial is None else self.trials.difference(trial, stage)
            return None if difference is None else difference.computed

        start = {name: number_of(recipe, name) or 0.0 for name in names}
        use = first.chosen & ~saturated(first.recorded, first.chosen)
        values = solved_numbers(start, computed, first.recorded, use)
        rounded = [{x: float(f"{n:.{digits}g}") for x, n in values.items()} for digits in DIGITS]
        return [*self._tried(map(with_values, [*rounded, values] if values else []))]

    # ---- the result ----

    def _pruned(self, trial: Trial) -> Trial:
        """Return a trial that reproduces without the changes that it does not need."""
        for name in sorted(trial.candidate.changes, key=lambda name: "." not in name):
            plainer = self.trials.of(trial.candidate.without([name]))
            if plainer is not None and plainer.as_exact_as(trial):
                trial = plainer
        return trial

    def _equivalent(self, best: Trial) -> list[Trial]:
        """Return the presets that reproduce, and those that do with a trial's changes."""
        presets = presets_of(best.resolved.recipe.estimator, self.given)
        changed = self._tried(x.changed(best.candidate.changes) for x in presets)
        pruned = [self._pruned(trial) for trial in changed if trial.reproduces]
        return [x for x in chain([best], self.starts, pruned) if x.reproduces]

    def _same_numbers(self, best: Trial) -> list[Trial]:
        """Return the plainest other recipe of each framework and estimator that is as exact."""
        plainest: dict[tuple[str, str], Trial] = {best.key: best}
        for trial in sorted(self.equivalent, key=lambda trial: trial.candidate.order):
            if trial.as_exact_as(best):
                plainest.setdefault(trial.key, trial)
        return [trial for trial in plainest.values() if trial is not best]

    def facts(self, best: Trial) -> Json:
        """Return the result of the search as plain data."""
        return {
            "tried": self.trials.count,
            "reproduces": best.reproduces,
            "share_equal": best.share_equal,
            "best": {**best.candidate.facts, "by_metadata": False},
            "same_numbers": [trial.candidate.facts for trial in self._same_numbers(best)],
        }


def number_of(recipe: Recipe, name: str) -> float | None:
    """Return a number of SOLVED; None if the recipe has none."""
    value = value_of(recipe, name)
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        value = value[-1] if value else None
    return value if value is None else float(value)


def with_numbers(recipe: Recipe, numbers: Mapping[str, float]) -> Changes:
    """Return the changes that set numbers of SOLVED."""
    changes: Changes = {}
    for name, number in numbers.items():
        value: Any = value_of(recipe, name)
        if isinstance(value, Mapping):
            changes[name] = {**value, [*value][-1]: number}
        else:
            changes[name] = (*value[:-1], number) if isinstance(value, tuple) else number
    return changes


def solved_numbers(
    start: Mapping[str, float],
    computed: Callable[[Mapping[str, float]], Numbers | None],
    recorded: Numbers,
    use: NDArray[np.bool_],
) -> dict[str, float]:
    """Return the values of numbers that come nearest, by Gauss-Newton; none if they do not.

    Args:
        start: numbers of SOLVED.
        computed: returns [n] with some values; None if they do not fit.
        recorded: [n].
        use: [n] which count.
    """
    values, best, before = {**start}, {**start}, np.inf
    for _ in range(_STEPS if use.any() else 0):
        base = computed(values)
        distance = np.inf if base is None else float(np.nanmean(np.abs(base - recorded)[use]))
        if base is None or not distance < before:
            break
        best, before, slopes = values, distance, []
        for name, value in values.items():
            step = max(abs(value) * 0.01, 1e-3)
            step = -step if value + step > SOLVED[name][1] else step
            moved = computed({**values, name: value + step})
            if moved is not None:
                slopes.append((moved - base) / step)
        apart = recorded - base
        rows = use & np.isfinite(apart)
        for slope in slopes:
            rows &= np.isfinite(slope)
        if len(slopes) == len(values):
            rows &= np.logical_or.reduce([slope != 0 for slope in slopes])
        indices = np.flatnonzero(rows)[:: max(1, int(rows.sum()) // _SOLVED_ELEMENTS)]
        if len(slopes) < len(values) or not len(indices):
            break
        far = np.quantile(np.abs(apart[indices]), 1 - _WORST)
        near = indices[np.abs(apart[indices]) <= far]
        by = np.linalg.lstsq(np.column_stack(slopes)[near], apart[near], rcond=1e-8)[0]
        values = {
            name: float(np.clip(value + step, *SOLVED[name]))
            for (name, value), step in zip(values.items(), by, strict=True)
        }
    return best if best != start else {}


def saturated(values: Numbers, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which numbers are the extreme one that several share: those that a clip bounds."""
    size = np.abs(np.nan_to_num(values))
    at = chosen & (size >= size[chosen].max(initial=0.0) * (1 - 1e-6))
    return at if _FEW <= at.sum() < chosen.sum() / 2 else np.zeros_like(at)


# ---- single changes ----


def single_changes(recipe: Recipe, rollouts: Rollouts, fields: frozenset[str]) -> Iterator[Changes]:
    """Yield the single changes of a recipe that are tried, of fields that can change a number.

    Args:
        recipe: with other values.
        rollouts: whose recorded extremes and columns are values to try.
        fields: those that can change a number.
    """
    for name, values in GRID.items():
        if name in fields:
            yield from ({name: x} for x in values if x != value_of(recipe, name))
            if name in _OPTIONAL and value_of(recipe, name) is not None:
                yield {name: None}
    if "norm_mean" in fields:
        yield from ({"norm_mean": scope, "norm_std": scope} for scope in _SCOPES)
    if "kl_coef" in fields and recipe.kl_coef == 0:
        yield from ({"kl_coef": 0.05, "kl_estimator": kind} for kind in KL_KINDS)
    for name, stages in _CLIPPED.items():
        bounds = (_extreme(rollouts, stage) for stage in stages)
        wrapped = Symmetric.of if name == "reward_clip" else float
        yield from ({name: wrapped(x)} for x in bounds if x and name in fields)
    if "overlong_penalty" in fields:
        yield from ({"overlong_penalty": x} for x in _penalties(recipe))


_OPTIONAL = ("bootstrap", "reward_clip", "advantage_clip", "reward_scale", "truncation_penalty")
_CLIPPED = {
    "reward_clip": ("response_level_rewards", "token_level_rewards", "advantages"),
    "advantage_clip": ("advantages",),
}


def _extreme(rollouts: Rollouts, stage: str) -> float | None:
    """Return the largest recorded size, if several numbers share it."""
    if stage not in rollouts.recorded:
        return None
    values = np.abs(rollouts.column(stage).values)
    values = values[np.isfinite(values)]
    largest = values.max(initial=0.0)
    return float(f"{largest:.6g}") if (values >= largest * (1 - 1e-6)).sum() >= _FEW else None


def _penalties(recipe: Recipe) -> Iterator[tuple[int, int, float] | None]:
    """Yield other penalties than that of a recipe."""
    if recipe.overlong_penalty is None:
        return
    length, buffer, factor = recipe.overlong_penalty
    yield None
    for times in (0.25, 0.5, 2.0, 4.0):
        yield length, min(max(int(buffer * times), 1), length), factor
        yield length, buffer, factor * times
