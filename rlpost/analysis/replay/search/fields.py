"""What a search does with each field of a recipe: values to try, bounds to solve.

Which fields a recipe reads is a fact of its stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

from rlpost.analysis.replay.search.candidates import DETAIL, value_of
from rlpost.analysis.replay.search.sample_facts import plain
from rlpost.recipe.base import KlEstimator, Range, Symmetric
from rlpost.recipe.numerics import EstimateClamp, Numerics
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from rlpost.analysis.replay.search.sample_facts import SampleFacts
    from rlpost.pipeline.resolved import ResolvedRecipe

Changes = dict[str, Any]
Values = Callable[["ResolvedRecipe", "SampleFacts"], Iterable[Any]]
Solving = Literal["together", "alone", "values", "floor"]

# What a sample has if values of a field can have other numbers on it.
STEPS = methodcaller("distinct", "batch")
DOMAINS = methodcaller("distinct", "batch", "domain")
UNEQUAL = attrgetter("unequal_groups")
LENGTHS = attrgetter("unequal_lengths_in_groups")
MEANS = methodcaller("groups_differ", 1)
DEVIATIONS = methodcaller("groups_differ", 2)
EQUAL = attrgetter("equal_groups")
SINGLE = attrgetter("singles")
TRUNCATED = methodcaller("distinct", "truncated")
CUT = attrgetter("truncated_values")
EMPTY = attrgetter("empty_responses")
OBSERVATIONS = attrgetter("observations")
ENDS = attrgetter("ends_observed")
UNEQUAL_LENGTHS = attrgetter("unequal_lengths")
SCATTERED = attrgetter("scattered")
TOKEN_REWARDS = methodcaller("has", "token_rewards")
VALUES = methodcaller("has", "values")
TURNS = methodcaller("has", "rollout")
ROLLOUTS = attrgetter("rollout_ids")
FAILURES = methodcaller("has", "failure")
ATTEMPTS = methodcaller("has", "run_attempt")
POLICIES = methodcaller("differ", "log_probs", "old_log_probs")
LOG_RATIOS = attrgetter("log_ratios")
ENGINE = methodcaller("differ", "infer_log_probs", "old_log_probs")


class SearchedField(NamedTuple):
    """What a search does with a field."""

    values: tuple[Any, ...] | Values | None = None
    """Values to try, or a function that returns them; a mapping changes several fields. None: all
    values of a choice, the other value of a flag, and none of other fields."""
    bounds: tuple[float, float] | None = None
    """Least and largest value of a number that is solved."""
    data: tuple[Callable[[SampleFacts], Any], ...] = ()
    """What a sample may have; without any of it values have the same numbers, and none is tried."""
    start: Any = None
    """Another value from which all numbers are solved: they depend on it too much for one step."""
    solved: Solving = "together"
    """How a number with bounds is solved. together: with others, by the slopes of least squares.
    alone: beside others it takes their part. values: usual numbers have no slope, so that a search
    tries `values` alone. floor: the same, and findings compare it with the smallest deviation."""
    step: float | None = None
    """The step with which a slope is measured; None: a usual one."""

    def changes(
        self, name: str, resolved: ResolvedRecipe, sample: SampleFacts
    ) -> Iterator[Changes]:
        """Yield the changes to try of a recipe, each other than what it has."""
        recipe = resolved.recipe
        if self.data and not any(present(sample) for present in self.data):
            return
        values = self.values(resolved, sample) if callable(self.values) else self.values
        for value in choices(name) if values is None else values:
            changes = value if isinstance(value, dict) else {name: value}
            if any(value_of(recipe, field) != own for field, own in changes.items()):
                yield changes


def choices(name: str) -> tuple[Any, ...]:
    """Return the values of a field that is a choice or a flag; none for other fields."""
    model = Numerics if name.startswith(DETAIL) else Recipe
    kind = model.model_fields[name.removeprefix(DETAIL)].annotation
    if kind is bool:
        return (True, False)
    kinds = (kind, *get_args(kind))
    return next((get_args(one) for one in kinds if get_origin(one) is _LITERAL), ())


_LITERAL = get_origin(get_args(KlEstimator)[0])
KL = ("k1", "k2", "k3", "abs", "k4")
EPSILONS = (1e-4, 1e-5, 1e-6, 1e-8, 1e-9, 0.0)
DISCOUNTS = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)
_UNIT = (0.0, 1.0)
_WEIGHT = (-100.0, 100.0)
_POSITIVE = (0.0, 100.0)
_CLAMPS = (10.0, 20.0, 40.0, math.inf)
_SCOPES = ("group", "others", "batch", "running", "none")
_LEVELS = ("token", "segment", "geometric", "sequence")
_LEAST_LIMIT = 8
"""Tokens of a limit with a buffer before it."""


def _lambdas(resolved: ResolvedRecipe, _: SampleFacts) -> Iterator[Any]:
    yield from DISCOUNTS
    if resolved.recipe.gamma == 1:
        yield from ({"gamma": 0.99, "lam": one} for one in DISCOUNTS)


def _bootstraps(_: ResolvedRecipe, sample: SampleFacts) -> Iterator[Any]:
    yield None
    roles = {"column": "next_value", "last": "values"}
    yield from (name for name, role in roles.items() if sample.has(role))


def _scans(_: ResolvedRecipe, sample: SampleFacts) -> list[Any]:
    return ["row", "rollout"] if sample.has("rollout") and sample.has("turn") else ["row"]


def _domains(_: ResolvedRecipe, sample: SampleFacts) -> list[Any]:
    return [*((one,) for one in sample.domains), tuple(sample.domains)]


def teachers(sample: SampleFacts) -> Iterator[Changes]:
    """Yield teachers, with every policy that they can be compared with, and every KL."""
    columns = sample.rollouts.columns
    for teacher in sample.teachers:
        yield {"teachers": {teacher: 1.0}}
        for role in LOG_PROBS:
            student = columns.column(role) if role in columns else teacher
            if student not in sample.teachers:
                own = {"teachers": {teacher: 1.0}, "columns": {"old_log_probs": student}}
                yield from ({**own, "kl_estimator": one} for one in KL)


def components(sample: SampleFacts) -> Iterator[Any]:
    """Yield columns that can be reward components: all, and the first two."""
    every = sample.components
    if len(every) > 1:
        yield from dict.fromkeys((every, every[:2]))


def _component_weights(resolved: ResolvedRecipe, _: SampleFacts) -> Iterator[Any]:
    count = len(resolved.recipe.reward_components or ())
    own = resolved.recipe.component_weights or (1.0,) * count
    if count > 1:
        yield (1.0,) * count
        for n in range(count):
            yield tuple(0.0 if k == n else weight for k, weight in enumerate(own))


def _overlong(resolved: ResolvedRecipe, sample: SampleFacts) -> Iterator[Any]:
    if resolved.recipe.overlong_penalty is None:
        yield from ((one, one // 4, 1.0) for one in sample.limits if one >= _LEAST_LIMIT)
        return
    length, buffer, factor = resolved.recipe.overlong_penalty
    yield None
    for times in (0.25, 0.5, 2, 4):
        yield (length, int(buffer * times) or 1, factor)
        yield (length, buffer, factor * times)
    yield from ((length + by, buffer, factor) for by in (-buffer, buffer) if length + by >= buffer)


def _scopes(resolved: ResolvedRecipe, sample: SampleFacts) -> Iterator[Changes]:
    """Yield other scopes of mean and deviation: the deviation's is the mean's, batch or none."""
    own = resolved.norm
    if resolved.estimator.normalises:
        own = (resolved.recipe.norm_mean or own[0], resolved.recipe.norm_std or own[1])
    batches = choices(f"{DETAIL}batch") if DOMAINS(sample) else ()
    for mean in _SCOPES if resolved.grouped else ("batch", "running", "none"):
        for std in dict.fromkeys((mean, own[1], "batch", "none")):
            both = {"norm_mean": mean, "norm_std": std}
            if (mean, std) != own:
                yield both
            if "batch" in (mean, std):
                yield from ({**both, f"{DETAIL}batch": one} for one in batches)


def _reward_clips(resolved: ResolvedRecipe, sample: SampleFacts) -> Iterator[Any]:
    """Yield bounds of rewards: the recorded extremes that several share, and usual ones."""
    for stage in ("response_level_rewards", "token_level_rewards", "advantages"):
        extremes = sample.extremes(stage)
        if extremes and extremes[1] > 0:
            low, high = extremes
            yield Symmetric.of(max(high, -low))
            if low < high and low != -high:
                yield Symmetric(low, high)
    yield from map(Symmetric.of, sample.reward_bounds)
    if resolved.recipe.reward_clip is not None:
        yield None


def _advantage_clips(_: ResolvedRecipe, sample: SampleFacts) -> Iterator[Any]:
    extremes = sample.extremes("advantages")
    if extremes and (bound := max(map(abs, extremes))) > 0:
        yield bound
    yield None


def _kl_coefs(resolved: ResolvedRecipe, _: SampleFacts) -> Iterator[Any]:
    if resolved.recipe.kl_coef > 0:
        yield 0.0
    else:
        yield from ({"kl_coef": 0.05, "kl_estimator": one} for one in KL)


def _clamps(name: str) -> Values:
    """Return the function of a clamp's values: usual bounds of the same, and the same of others."""

    def values(resolved: ResolvedRecipe, _: SampleFacts) -> Iterator[Any]:
        clamp = getattr(resolved.recipe.numerics, name)
        yield from (clamp.of((clamp.which, bound)) for bound in _CLAMPS)
        yield from (clamp.of((which, clamp.bound)) for which in clamp.choices)

    return values


def _kl_bounds(resolved: ResolvedRecipe, sample: SampleFacts) -> Iterator[Any]:
    """Yield usual bounds of KL, and the largest recorded KL, if several share it."""
    yield from _clamps("kl_clamp")(resolved, sample)
    extremes = sample.extremes("kl")
    if extremes and extremes[1] > 0:
        yield from (EstimateClamp.of((which, extremes[1])) for which in EstimateClamp.choices)


def _whitened(resolved: ResolvedRecipe, _: SampleFacts) -> Iterator[Any]:
    yield not resolved.whiten
    if not resolved.whiten:
        for detail, value in (("whiten_ddof", 0), ("whiten_ddof", 1), ("whiten_scale", "none")):
            yield {"whiten_advantages": True, DETAIL + detail: value}


def _limits(_: ResolvedRecipe, sample: SampleFacts) -> Iterator[Any]:
    yield None
    yield from sample.limits


def _weights(resolved: ResolvedRecipe, sample: SampleFacts) -> Iterator[Changes]:
    """Yield levels of importance weights, with the caps and bounds that recorded ones show."""
    values = sample.weights
    shapes: list[Changes] = [{}]
    if len(values):
        low, high, positive = plain(values.min()), plain(values.max()), values[values > 0]
        shapes.append({"is_cap": high})
        if len(positive) == len(values):
            shapes += [{"is_floor": low}, {"is_floor": low, "is_cap": high}]
        elif len(positive):
            least, most = (
                math.floor(positive.min() * 20) / 20,
                math.ceil(positive.max() * 20) / 20,
            )
            shapes += [{"is_mask": one} for one in ((least, most), (0.0, most), (least, math.inf))]
    for level in _LEVELS:
        yield from ({"is_weight": level, **shape} for shape in shapes)
    if resolved.recipe.is_weight:
        yield {"is_cap": None, "is_floor": None, "is_mask": None}


def _otb_caps(_: ResolvedRecipe, sample: SampleFacts) -> tuple[Any, ...]:
    return (1.0, 2.0, 5.0, 10.0, None) if sample.has("infer_log_probs") else ()


def _rollouts(_: ResolvedRecipe, sample: SampleFacts) -> Iterator[Any]:
    """Yield rows as responses, and as turns of rollouts."""
    yield "row"
    columns = sample.rollouts.columns
    for name in sample.rollout_ids:
        chosen = {} if columns.columns.get("rollout") == name else {"columns": {"rollout": name}}
        yield {"unit": "rollout", **chosen}
        yield {"unit": "rollout", "rollout_reward": "last", **chosen}


_OTHER_COLUMNS = {
    "reward": ("step_score", "episode_score"),
    "group": ("rollout",),
    "batch": ("domain",),
}
"""Roles whose columns other estimators, or agentic trainers, read in their place."""


def _columns(_: ResolvedRecipe, sample: SampleFacts) -> Iterator[Changes]:
    """Yield other columns of roles."""
    columns = sample.rollouts.columns
    for role, others in _OTHER_COLUMNS.items():
        own = (columns.column(name) for name in others if name in columns)
        yield from ({"columns": {role: column}} for column in own)


def rank_batches(sample: SampleFacts) -> Iterator[Changes]:
    """Yield columns of few whole numbers, such as the rank of a response, as batches of a step."""
    for name in sample.rollouts.sets:
        yield {"columns": {"domain": name}, f"{DETAIL}batch": "step_domain"}


_LAMBDA = SearchedField((), _UNIT, (VALUES,))
_EPSILON = SearchedField(EPSILONS, (0.0, 10.0), solved="alone", step=0.01)
_WEIGHTS = SearchedField(data=(ENGINE,))
_RATIO_CAP = SearchedField((1.0, 2.0, 5.0, 10.0), data=(ENGINE,))
_DISCOUNT_OF_STEPS = SearchedField(DISCOUNTS, _UNIT, (TURNS,))

FIELDS: dict[str, SearchedField] = {
    "estimator": SearchedField((), data=(STEPS, UNEQUAL, LENGTHS, TOKEN_REWARDS)),
    "gamma": SearchedField(DISCOUNTS, _UNIT, start=0.9),
    "lam": SearchedField(_lambdas, _UNIT, (VALUES,), start=0.0),
    "lambda_policy": _LAMBDA,
    "lambda_value": _LAMBDA,
    "length_adaptive_alpha": SearchedField((0.05,), (0.0, 10.0), (VALUES,)),
    "bootstrap": SearchedField(_bootstraps, data=(CUT,)),
    "scan": SearchedField(_scans, data=(ROLLOUTS,)),
    "step_gamma": _DISCOUNT_OF_STEPS,
    "episode_weight": SearchedField((0.0, 0.5, 1.0), _WEIGHT, (UNEQUAL,)),
    "step_weight": SearchedField((0.0, 0.5, 1.0), _WEIGHT, (TURNS,)),
    "f_norm": SearchedField((0.5, 2.0), (1e-3, 1e3), (UNEQUAL,)),
    "ema_decay": SearchedField((*DISCOUNTS, 0.5), _UNIT),
    "otb_is_cap": SearchedField(_otb_caps, data=(ENGINE,)),
    "vtrace_rho_cap": _RATIO_CAP,
    "vtrace_c_cap": _RATIO_CAP,
    "episode_domains": SearchedField(_domains, data=(DOMAINS,)),
    "teachers": SearchedField(lambda _, sample: teachers(sample), _WEIGHT, (LOG_RATIOS,)),
    "reward_components": SearchedField(lambda _, sample: components(sample)),
    "component_weights": SearchedField(_component_weights, _WEIGHT),
    "reward_scale": SearchedField((None,)),
    "truncation_penalty": SearchedField((None, 0.0, 0.5, -1.0), _WEIGHT, (TRUNCATED,)),
    "group_length_penalty": SearchedField((None,), data=(LENGTHS,)),
    "overlong_penalty": SearchedField(_overlong, (0.0, 1e9), (UNEQUAL_LENGTHS,), step=2.0),
    "norm_mean": SearchedField(_scopes, data=(MEANS, UNEQUAL, EQUAL, STEPS)),
    "norm_std": SearchedField(("none",), data=(DEVIATIONS, UNEQUAL), start="none"),
    "reward_clip": SearchedField(_reward_clips),
    "is_weight": SearchedField(_weights, data=(ENGINE,)),
    "is_normalise": _WEIGHTS,
    "is_filter_where": _WEIGHTS,
    "drop_longer": SearchedField(_limits),
    "drop_difficulty": SearchedField((None, Range(0.1, 0.95)), data=(MEANS,)),
    "drop_equal_rewards": SearchedField(data=(EQUAL,)),
    "drop_single": SearchedField(data=(SINGLE,)),
    "drop_truncated": SearchedField(data=(TRUNCATED,)),
    "mask_before_norm": SearchedField(),
    "kl_coef": SearchedField(_kl_coefs, _POSITIVE, (LOG_RATIOS,), start=0.001, step=0.05),
    "kl_estimator": SearchedField(KL, data=(LOG_RATIOS,)),
    "whiten_rewards": SearchedField(start=True),
    "whiten_advantages": SearchedField(_whitened),
    "advantage_clip": SearchedField(_advantage_clips),
    "difficulty_weight": SearchedField(),
    "length_weight": SearchedField(data=(UNEQUAL_LENGTHS,)),
    "columns": SearchedField(_columns),
    "unit": SearchedField(_rollouts, data=(ROLLOUTS,)),
    "rollout_reward": SearchedField(data=(ROLLOUTS,)),
    "failures": SearchedField(data=(FAILURES,)),
    "attempts": SearchedField(data=(ATTEMPTS,)),
    "numerics.batch": SearchedField(data=(DOMAINS,)),
    "numerics.penalty_length": SearchedField(data=(OBSERVATIONS,)),
    "numerics.penalty_floor": SearchedField(),
    "numerics.norm_eps": _EPSILON,
    "numerics.norm_ddof": SearchedField(data=(UNEQUAL,)),
    "numerics.norm_floor": SearchedField((0.0, 1e-3), (0.0, 100.0), solved="floor"),
    "numerics.single": SearchedField(data=(SINGLE,)),
    "numerics.constant": SearchedField(data=(EQUAL,)),
    "numerics.empty": SearchedField(data=(EMPTY,)),
    "numerics.failed": SearchedField(data=(FAILURES,)),
    "numerics.missing_components": SearchedField(),
    "numerics.clip_stages": SearchedField(),
    "numerics.log_ratio_clamp": SearchedField(_clamps("log_ratio_clamp")),
    "numerics.kl_clamp": SearchedField(_kl_bounds),
    "numerics.kl_policy": SearchedField(data=(POLICIES,)),
    "numerics.kl_credit": SearchedField(data=(LOG_RATIOS,)),
    "numerics.process_rewards": SearchedField(data=(TOKEN_REWARDS,)),
    "numerics.terminal_reward": SearchedField(data=(ENDS,)),
    "numerics.observations": SearchedField(data=(OBSERVATIONS,)),
    "numerics.outcome": SearchedField(),
    "numerics.segment_reward": SearchedField(),
    "numerics.turn_value": SearchedField(data=(VALUES,)),
    "numerics.turn_baseline": SearchedField(data=(TURNS,)),
    "numerics.gar_floor": SearchedField((0.25, 0.5), _UNIT, (UNEQUAL,)),
    "numerics.gar_cap": SearchedField((2.0, 4.0), (1.0, 100.0), (UNEQUAL,)),
    "numerics.whiten_eps": SearchedField(EPSILONS, (0.0, 10.0), solved="values"),
    "numerics.whiten_floor": SearchedField(),
    "numerics.whiten_ddof": SearchedField(),
    "numerics.whiten_scale": SearchedField(),
    "numerics.gdpo_batch": SearchedField(data=(UNEQUAL_LENGTHS,)),
    "numerics.batch_eps": SearchedField(EPSILONS),
    "numerics.otb_position": SearchedField(data=(OBSERVATIONS,)),
    "numerics.otb_lone": SearchedField(data=(LENGTHS,)),
    "numerics.otb_eps": SearchedField(EPSILONS),
    "numerics.episodes": SearchedField(data=(TURNS,)),
    "numerics.states": SearchedField(),
    "numerics.rae_order": SearchedField(data=(SCATTERED,)),
    "numerics.correction": SearchedField(data=(ENGINE,)),
    "numerics.is_clamp": SearchedField(_clamps("is_clamp"), data=(ENGINE,)),
    "numerics.is_filter_clamp": SearchedField((), data=(ENGINE,)),
    "numerics.is_observations": SearchedField(data=(OBSERVATIONS,)),
}
"""By field of Recipe, and `numerics.NAME`; a search changes no other field."""
