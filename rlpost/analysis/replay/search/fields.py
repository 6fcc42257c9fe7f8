"""What a search does with each field of a recipe: values to try, bounds to solve, separating data.

Which fields a recipe reads is a fact of its stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

from rlpost.analysis.replay.search.candidates import DETAIL, value_of
from rlpost.analysis.replay.search.sample_facts import SeparatingData, plain
from rlpost.recipe.base import KlEstimator
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from rlpost.analysis.replay.search.sample_facts import SampleFacts
    from rlpost.pipeline.resolved import ResolvedRecipe

Changes = dict[str, Any]
Values = Callable[["ResolvedRecipe", "SampleFacts"], Iterable[Any]]
Solving = Literal["together", "alone", "values", "floor"]

STEPS = SeparatingData("several steps", lambda s: s.distinct("batch"))
DOMAINS = SeparatingData(
    "several steps, or several domains in a step", lambda s: s.distinct("batch", "domain")
)
UNEQUAL = SeparatingData("a prompt group of unequal rewards", lambda s: s.unequal_groups)
LENGTHS = SeparatingData("a prompt group of unequal lengths", lambda s: s.unequal_lengths_in_groups)
MEANS = SeparatingData("prompt groups of unequal mean rewards", lambda s: s.groups_differ(1))
DEVIATIONS = SeparatingData(
    "prompt groups of unequal standard deviations of rewards", lambda s: s.groups_differ(2)
)
EQUAL = SeparatingData("a prompt group of equal rewards", lambda s: s.equal_groups)
SINGLE = SeparatingData("a prompt group of one response", lambda s: s.singles)
TRUNCATED = SeparatingData("a truncated response", lambda s: s.distinct("truncated"))
CUT = SeparatingData(
    "a truncated response with critic values",
    lambda s: s.distinct("truncated") and (s.has("values") or s.has("next_value")),
)
EMPTY = SeparatingData("a response without policy tokens", lambda s: not s.policy_lengths.all())
OBSERVATIONS = SeparatingData("observation tokens between policy tokens", lambda s: s.observations)
ENDS = SeparatingData("a response that ends with an observation token", lambda s: s.ends_observed)
UNEQUAL_LENGTHS = SeparatingData(
    "responses of unequal lengths", lambda s: len(set(s.policy_lengths.tolist())) > 1
)
SCATTERED = SeparatingData(
    "prompt groups whose rows are not beside each other", lambda s: s.scattered
)
TOKEN_REWARDS = SeparatingData("token rewards", lambda s: s.has("token_rewards"))
VALUES = SeparatingData("responses of several tokens with critic values", lambda s: s.has("values"))
TURNS = SeparatingData("trajectories of several turns", lambda s: s.has("rollout"))
ROLLOUTS = SeparatingData("rollouts of several rows", lambda s: bool(s.rollout_ids))
FAILURES = SeparatingData("a response that failed", lambda s: s.has("failure"))
ATTEMPTS = SeparatingData("a step of several attempts", lambda s: s.has("run_attempt"))
POLICIES = SeparatingData(
    "log-probs of the current policy that differ from the old ones",
    lambda s: s.differ("log_probs", "old_log_probs"),
)
LOG_RATIOS = SeparatingData(
    "log-probs of old and reference policy that differ",
    lambda s: bool(s.teachers) or s.differ("old_log_probs", "ref_log_probs"),
)
ENGINE = SeparatingData(
    "log-probs of the rollout engine that differ from the trainer's",
    lambda s: s.differ("infer_log_probs", "old_log_probs"),
)


def _by_recipe(
    text: str, present: Callable[[SampleFacts], bool] = lambda _: True
) -> SeparatingData:
    """Return data of which a recipe decides whether a sample has it, if it can have it at all."""
    return SeparatingData(text, present, by_recipe=True)


BEYOND_BOUND = _by_recipe("rewards beyond the bound")
LOG_RATIO_BOUND = _by_recipe("a token whose log-probs differ by more than the bound")
KL_BOUND = _by_recipe("a token whose KL estimate is above the bound")
LITTLE = _by_recipe("a prompt group whose rewards differ little")
LITTLE_BATCH = _by_recipe("a batch whose advantages differ little")
FEW_TOKENS = _by_recipe("a batch of few policy tokens")
DISCOUNTED = _by_recipe("responses of several tokens with a critic or rewards on several tokens")
CONNECTED = _by_recipe(
    "responses with observation tokens, and a discount, a critic or rewards on several tokens",
    lambda s: s.observations,
)
COMPONENTS = _by_recipe("responses of several reward components that are not equal multiples")
TURNS_REWARDED = _by_recipe(
    "rollouts whose rows have unequal rewards", lambda s: bool(s.rollout_ids)
)


class SearchedField(NamedTuple):
    """What a search does with a field."""

    values: tuple[Any, ...] | Values | None = None
    """Values to try, or a function that returns them; a mapping changes several fields. None: all
    values of a choice, the other value of a flag, and none of other fields."""
    bounds: tuple[float, float] | None = None
    """Least and largest value of a number that is solved."""
    data: tuple[SeparatingData, ...] = ()
    """Data on which its values have other numbers; a sample without any need not try them."""
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
        if self.data and not any(one.present(sample) for one in self.data):
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
    batches = choices(f"{DETAIL}batch") if DOMAINS.present(sample) else ()
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
            yield max(high, -low)
            if low < high and low != -high:
                yield {"reward_clip": high, "reward_clip_low": low}
    yield from sample.reward_bounds
    if resolved.recipe.reward_clip is not None:
        yield {"reward_clip": None, "reward_clip_low": None}


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


def _kl_bounds(_: ResolvedRecipe, sample: SampleFacts) -> Iterator[Any]:
    """Yield usual bounds of KL, and the largest recorded KL, if several share it."""
    yield from _CLAMPS
    extremes = sample.extremes("kl")
    if extremes and extremes[1] > 0:
        yield extremes[1]
        yield {f"{DETAIL}kl_clamp": extremes[1], f"{DETAIL}kl_clamps": "all"}


def _whitened(resolved: ResolvedRecipe, _: SampleFacts) -> Iterator[Any]:
    yield not resolved.whiten
    if not resolved.whiten:
        for detail, value in (("whiten_ddof", 0), ("whiten_ddof", 1), ("whiten_scale", "none")):
            yield {"whiten_advantages": True, DETAIL + detail: value}


def _max_len(_: ResolvedRecipe, sample: SampleFacts) -> Iterator[Any]:
    yield False
    yield from ({"max_len_mask": True, "max_response_length": one} for one in sample.limits)


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
_EPSILON = SearchedField(EPSILONS, (0.0, 10.0), (LITTLE,), solved="alone", step=0.01)
_WHITENING = SearchedField(data=(FEW_TOKENS,))
_WEIGHTS = SearchedField(data=(ENGINE,))
_RATIO_CAP = SearchedField((1.0, 2.0, 5.0, 10.0), data=(ENGINE,))
_DISCOUNT_OF_STEPS = SearchedField(DISCOUNTS, _UNIT, (TURNS,))

FIELDS: dict[str, SearchedField] = {
    "estimator": SearchedField((), data=(STEPS, UNEQUAL, LENGTHS, TOKEN_REWARDS)),
    "gamma": SearchedField(DISCOUNTS, _UNIT, (DISCOUNTED,), start=0.9),
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
    "ema_decay": SearchedField(
        (*DISCOUNTS, 0.5), _UNIT, (_by_recipe("several responses of a domain"),)
    ),
    "otb_is_cap": SearchedField(_otb_caps, data=(ENGINE,)),
    "vtrace_rho_cap": _RATIO_CAP,
    "vtrace_c_cap": _RATIO_CAP,
    "episode_domains": SearchedField(_domains, data=(DOMAINS,)),
    "teachers": SearchedField(lambda _, sample: teachers(sample), _WEIGHT, (LOG_RATIOS,)),
    "reward_components": SearchedField(lambda _, sample: components(sample), data=(COMPONENTS,)),
    "component_weights": SearchedField(_component_weights, _WEIGHT, (COMPONENTS,)),
    "reward_scale": SearchedField(
        (None,), data=(LITTLE, _by_recipe("rewards that are not normalised"))
    ),
    "truncation_penalty": SearchedField((None, 0.0, 0.5, -1.0), _WEIGHT, (TRUNCATED,)),
    "group_length_penalty": SearchedField((None,), data=(LENGTHS,)),
    "overlong_penalty": SearchedField(_overlong, (0.0, 1e9), (UNEQUAL_LENGTHS,), step=2.0),
    "norm_mean": SearchedField(_scopes, data=(MEANS, UNEQUAL, EQUAL, STEPS)),
    "norm_std": SearchedField(("none",), data=(DEVIATIONS, UNEQUAL), start="none"),
    "reward_clip": SearchedField(_reward_clips, data=(BEYOND_BOUND,)),
    "reward_clip_low": SearchedField((), data=(BEYOND_BOUND,)),
    "is_weight": SearchedField(_weights, data=(ENGINE,)),
    "is_normalise": _WEIGHTS,
    "is_filter_where": _WEIGHTS,
    "max_len_mask": SearchedField(_max_len, data=(_by_recipe("a response as long as the limit"),)),
    "difficulty_mask": SearchedField(data=(MEANS,)),
    "drop_zero_variance": SearchedField(data=(EQUAL,)),
    "drop_single": SearchedField(data=(SINGLE,)),
    "drop_truncated": SearchedField(data=(TRUNCATED,)),
    "mask_before_norm": SearchedField(data=(_by_recipe("a response that a mask drops"),)),
    "kl_coef": SearchedField(_kl_coefs, _POSITIVE, (LOG_RATIOS,), start=0.001, step=0.05),
    "kl_estimator": SearchedField(KL, data=(LOG_RATIOS,)),
    "whiten_rewards": SearchedField(
        data=(_by_recipe("token rewards whose deviation over a batch is not 1"),), start=True
    ),
    "whiten_advantages": SearchedField(
        _whitened,
        data=(_by_recipe("advantages whose mean is not 0, or whose deviation is not 1"),),
    ),
    "advantage_clip": SearchedField(
        _advantage_clips, data=(_by_recipe("advantages beyond the bound"),)
    ),
    "difficulty_weight": SearchedField(data=(_by_recipe("responses of unequal difficulty"),)),
    "length_weight": SearchedField(data=(UNEQUAL_LENGTHS,)),
    "columns": SearchedField(_columns, data=(_by_recipe("rows in which both columns differ"),)),
    "unit": SearchedField(_rollouts, data=(ROLLOUTS,)),
    "rollout_reward": SearchedField(data=(ROLLOUTS, TURNS_REWARDED)),
    "failures": SearchedField(data=(FAILURES,)),
    "attempts": SearchedField(data=(ATTEMPTS,)),
    "numerics.batch": SearchedField(data=(DOMAINS,)),
    "numerics.penalty_length": SearchedField(data=(OBSERVATIONS,)),
    "numerics.penalty_floor": SearchedField(
        data=(_by_recipe("responses beyond the length limit"),)
    ),
    "numerics.norm_eps": _EPSILON,
    "numerics.norm_ddof": SearchedField(data=(UNEQUAL,)),
    "numerics.norm_floor": SearchedField((0.0, 1e-3), (0.0, 100.0), (LITTLE,), solved="floor"),
    "numerics.single": SearchedField(data=(SINGLE,)),
    "numerics.constant": SearchedField(data=(EQUAL,)),
    "numerics.empty": SearchedField(data=(EMPTY,)),
    "numerics.failed": SearchedField(data=(FAILURES,)),
    "numerics.missing_components": SearchedField(
        data=(_by_recipe("a response without one of its reward components"),)
    ),
    "numerics.clip_stages": SearchedField(
        data=(_by_recipe("token rewards beyond the bound of the reward clip"),)
    ),
    "numerics.log_ratio_clamp": SearchedField(_CLAMPS, data=(LOG_RATIO_BOUND,)),
    "numerics.log_ratio_clamps": SearchedField(data=(LOG_RATIO_BOUND,)),
    "numerics.kl_clamp": SearchedField(_kl_bounds, data=(KL_BOUND,)),
    "numerics.kl_clamps": SearchedField(data=(KL_BOUND,)),
    "numerics.kl_policy": SearchedField(data=(POLICIES,)),
    "numerics.kl_credit": SearchedField(data=(LOG_RATIOS,)),
    "numerics.process_rewards": SearchedField(data=(TOKEN_REWARDS,)),
    "numerics.terminal_reward": SearchedField(data=(ENDS,)),
    "numerics.observations": SearchedField(data=(CONNECTED,)),
    "numerics.outcome": SearchedField(
        data=(_by_recipe("rewards or KL on several tokens of a response, or a discount below 1"),)
    ),
    "numerics.segment_reward": SearchedField(
        data=(_by_recipe("rewards on several tokens of a policy segment"),)
    ),
    "numerics.turn_value": SearchedField(data=(VALUES,)),
    "numerics.turn_baseline": SearchedField(data=(TURNS,)),
    "numerics.gar_floor": SearchedField((0.25, 0.5), _UNIT, (UNEQUAL,)),
    "numerics.gar_cap": SearchedField((2.0, 4.0), (1.0, 100.0), (UNEQUAL,)),
    "numerics.whiten_eps": SearchedField(EPSILONS, (0.0, 10.0), (LITTLE_BATCH,), solved="values"),
    "numerics.whiten_floor": SearchedField(data=(LITTLE_BATCH,)),
    "numerics.whiten_ddof": _WHITENING,
    "numerics.whiten_scale": SearchedField(
        data=(_by_recipe("advantages whose deviation over a batch is not 1"),)
    ),
    "numerics.gdpo_batch": SearchedField(data=(UNEQUAL_LENGTHS,)),
    "numerics.batch_eps": SearchedField(EPSILONS, data=(LITTLE_BATCH,)),
    "numerics.otb_position": SearchedField(data=(OBSERVATIONS,)),
    "numerics.otb_lone": SearchedField(data=(LENGTHS,)),
    "numerics.otb_eps": SearchedField(EPSILONS, data=(_by_recipe("positions with small weights"),)),
    "numerics.episodes": SearchedField(data=(TURNS,)),
    "numerics.states": SearchedField(data=(_by_recipe("equal states in several prompt groups"),)),
    "numerics.rae_order": SearchedField(data=(SCATTERED,)),
    "numerics.correction": SearchedField(data=(ENGINE,)),
    "numerics.is_clamp": SearchedField(_CLAMPS, data=(ENGINE,)),
    "numerics.is_clamp_at": _WEIGHTS,
    "numerics.is_filter_clamp": SearchedField((), data=(ENGINE,)),
    "numerics.is_observations": SearchedField(data=(OBSERVATIONS,)),
}
"""By field of Recipe, and `numerics.NAME`; a search changes no other field."""


def data_of(names: Iterable[str]) -> list[SeparatingData]:
    """Return the data on which values of some fields have other numbers."""
    return [*dict.fromkeys(one for name in names if name in FIELDS for one in FIELDS[name].data)]
