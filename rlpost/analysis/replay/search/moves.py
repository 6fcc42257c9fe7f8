"""Moves of a search: changes of a recipe that can matter for its input, one option at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import numpy as np

from rlpost.analysis.replay.search.candidates import DETAIL, value_of
from rlpost.analysis.responses.columns import numbers
from rlpost.io.arrow import is_list, is_number
from rlpost.recipe.estimators import READERS
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.analysis.replay.search.trials import Trial
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.recipe import Recipe

Changes = dict[str, Any]
KL = ("k1", "k2", "k3", "abs", "k4")
EPSILONS = (1e-4, 1e-5, 1e-6, 1e-8, 1e-9, 0.0)
DISCOUNTS = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)
UNSCALED: list[Changes] = [{"norm_std": "none"}, {"norm_mean": "none", "norm_std": "none"}]
"""Scopes of estimators that normalise rewards themselves."""
_SCOPES = ("group", "others", "batch", "running", "none")
_OTHER_COLUMNS = {
    "reward": ("step_score", "episode_score"),
    "group": ("traj_id",),
    "batch": ("domain",),
    "old_log_probs": LOG_PROBS,
}
"""Roles whose columns other estimators, or agentic trainers, read in their place."""
_LEVELS = ("token", "segment", "geometric", "sequence")
_CLAMPS = (10.0, 20.0, 40.0, math.inf)
_BOUNDS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_SHARED = 3
"""Equal numbers that can be those of a clip."""
_LEAST_LIMIT = 8
"""Tokens of a limit with a buffer before it."""
_SOME = 5
"""Columns of components, or domains, that are tried at most."""


@dataclass
class Facts:
    """What the sample has: the data for which options matter."""

    rollouts: Rollouts

    @cached_property
    def sizes(self) -> Any:
        """The responses of each response's group."""
        return np.bincount(self.rollouts.groups)[self.rollouts.groups]

    @cached_property
    def singles(self) -> bool:
        """There are groups of one response."""
        return bool((self.sizes == 1).any())

    @cached_property
    def equal_groups(self) -> bool:
        """There are groups of several equal rewards."""
        groups, reward = self.rollouts.groups, self.rollouts.reward
        low, high = np.full(groups.max() + 1, np.inf), np.full(groups.max() + 1, -np.inf)
        np.minimum.at(low, groups, reward)
        np.maximum.at(high, groups, reward)
        return bool(((low == high)[groups] & (self.sizes > 1)).any())

    @cached_property
    def observations(self) -> bool:
        """There are observation tokens."""
        return not bool(self.rollouts.mask.all())

    @cached_property
    def policy_lengths(self) -> Any:
        """[N] policy tokens of responses."""
        rows = np.repeat(np.arange(len(self.rollouts)), self.rollouts.lengths)
        return np.bincount(rows, self.rollouts.mask, len(self.rollouts)).astype(int)

    def has(self, *roles: str) -> bool:
        """Return whether the input has columns for all these roles."""
        return all(role in self.rollouts.columns for role in roles)

    @cached_property
    def components(self) -> list[str]:
        """Columns that can be reward components: numbers for each response that serve no role."""
        free = self._free
        names = [n for n in free if not is_list(free[n]) and is_number(free[n])]
        return [n for n in names if "reward" in n or "score" in n or "component" in n][:_SOME]

    @cached_property
    def teachers(self) -> list[str]:
        """Columns that can be the log-probs of a teacher."""
        free = self._free
        own = [n for n in free if is_list(free[n]) and ("teacher" in n or "logp" in n)]
        columns = self.rollouts.columns
        return own + [columns.column(r) for r in ("ref_log_probs",) if r in columns]

    @cached_property
    def _free(self) -> dict[str, Any]:
        own = self.rollouts
        used = {*own.columns.columns.values(), *own.recorded.values()}
        return {one.name: one.type for one in own.table.schema if one.name not in used}

    @cached_property
    def domains(self) -> list[str]:
        """The domains of the responses."""
        columns = self.rollouts.columns
        if "domain" not in columns:
            return []
        found = self.rollouts.table.column(columns.column("domain")).unique().to_pylist()
        return sorted(str(one) for one in found)[:_SOME]

    @cached_property
    def limits(self) -> list[int]:
        """Lengths that can be the limit of generation: the largest, and constant columns."""
        table = self.rollouts.table
        found = {int(self.policy_lengths.max(initial=1))}
        for name, kind in self._free.items():
            if "max" in name and is_number(kind):
                values = np.unique(numbers(table.column(name).combine_chunks()))
                found |= {int(v) for v in values[:_SOME] if v >= 1}
        return sorted(found)

    def extremes(self, stage: str) -> tuple[float, float] | None:
        """Return the least and largest recorded number, if several share the larger one."""
        if stage not in self.rollouts.recorded:
            return None
        values = self.rollouts.column(stage).values
        values = values[np.isfinite(values)]
        size = np.abs(values)
        shared = (size >= size.max(initial=0.0) * (1 - 1e-6)).sum() >= _SHARED
        return (float(values.min()), float(values.max())) if shared else None

    @cached_property
    def bounds(self) -> list[float]:
        """Usual bounds of rewards that some rewards exceed."""
        largest = float(np.abs(np.nan_to_num(self.rollouts.reward)).max(initial=0.0))
        return [one for one in _BOUNDS if one < largest]


def needed(estimator: str, facts: Facts) -> list[Changes]:
    """Return the options without which an estimator is an error, by the columns of the input."""
    components = tuple(facts.components)
    if estimator == "gdpo" and len(components) > 1:
        return [{"reward_components": some} for some in dict.fromkeys((components, components[:2]))]
    return [{"teachers": {name: 1.0}} for name in facts.teachers] if estimator == "opd" else []


def shapes(facts: Facts) -> list[Changes]:
    """Return changes of rewards whose numbers are solved, and bounds, to begin a search with."""
    found: list[Changes] = [{"reward_clip": one} for one in facts.bounds]
    stops: list[Changes] = []
    if facts.has("truncated"):
        stops = [{"truncation_penalty": one} for one in (0.5, -0.5)]
    limits = [limit for limit in facts.limits if limit >= _LEAST_LIMIT]
    long: list[Changes] = [{"overlong_penalty": (one, one // 4, 1.0)} for one in limits]
    found += [*stops, *long, *({**one, **stop} for one in long for stop in stops[:1])]
    return found + needed("gdpo", facts) + needed("opd", facts)


def students(facts: Facts) -> list[Changes]:
    """Return the policies whose log-probs distillation can compare, each with every KL."""
    columns = facts.rollouts.columns
    names = [columns.column(role) for role in LOG_PROBS if role in columns]
    names = [name for name in names if name not in facts.teachers]
    own = [{"columns": {"old_log_probs": name}} for name in names]
    return [{**one, "kl_estimator": kind} for one in own for kind in KL]


def moves(trial: Trial, facts: Facts) -> Iterator[Changes]:
    """Yield changes of a candidate that can matter for the last stage that counts.

    Each is of one thing; some equal what the candidate has already.
    """
    *before, stage = trial.focus
    shaping = () if "token_level_rewards" in before else (_penalty, _shaping)
    every = (_rewards, _tokens, _own, _whitening, *shaping, _masks)
    parts = {
        "sample_mask": (_masks,),
        "final_response_mask": (_masks,),
        "response_level_rewards": (_rewards, _own, _shaping, _penalty, _masks),
        "kl": (_penalty,),
        "token_level_rewards": (_penalty, _rewards, _tokens, _shaping, _masks),
        "sample_weight": (_weights,),
        "is_weight": (_corrections,),
    }.get(stage, every)
    if stage == "advantages" and "raw_advantages" in before:
        parts = (_whitening, _batches, _masks)
    for part in parts:
        yield from part(trial.resolved, facts)


def changes_of(resolved: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    """Yield changes of a recipe, each of one thing; some equal what it has already."""
    later = {"sample_weight": _weights, "is_weight": _corrections}
    own = (part for stage, part in later.items() if stage in facts.rollouts.recorded)
    for part in (_rewards, _tokens, _penalty, _own, _whitening, _shaping, _masks, *own):
        yield from part(resolved, facts)


def _details(recipe: Recipe, *names: str) -> Iterator[Changes]:
    """Yield the other values of numerical details that are names."""
    for name in names:
        for value in choices(name):
            if getattr(recipe.numerics, name) != value:
                yield {DETAIL + name: value}


def choices(detail: str) -> tuple[Any, ...]:
    """Return the values of a numerical detail that is a name; none for numbers."""
    kind = Numerics.model_fields[detail].annotation
    kinds = (kind, *get_args(kind))
    return next((get_args(one) for one in kinds if get_origin(one) is Literal), ())


def _rewards(resolved: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    recipe = resolved.recipe
    yield from _scopes(resolved, facts)
    if resolved.norm[1] != "none":
        yield {f"{DETAIL}norm_ddof": 1 - recipe.numerics.norm_ddof}
        yield from ({f"{DETAIL}norm_eps": one} for one in EPSILONS)
        yield from ({f"{DETAIL}norm_floor": one} for one in (0.0, 1e-3))
    if facts.equal_groups:
        yield from _details(recipe, "constant")
    if facts.singles:
        yield from _details(recipe, "single")
    if not facts.policy_lengths.all():
        yield from _details(recipe, "empty")
    yield from _batches(resolved, facts)


def _batches(resolved: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    if facts.has("batch") or facts.has("domain"):
        yield from _details(resolved.recipe, "batch")


def _scopes(resolved: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    """Yield other scopes of mean and deviation: the deviation's is the mean's, batch or none."""
    batches = [*_batches(resolved, facts)]
    own: Changes = dict(zip(("norm_mean", "norm_std"), resolved.norm, strict=True))
    if resolved.estimator.normalises:
        own = {name: value_of(resolved.recipe, name) for name in own}
    for one in _SCOPES if resolved.grouped else ("batch", "running", "none"):
        for other in dict.fromkeys((one, "batch", "none")):
            both = {"norm_mean": one, "norm_std": other}
            changes = {name: scope for name, scope in both.items() if own[name] != scope}
            if changes:
                yield changes
                yield from ({**changes, **batch} for batch in batches if "batch" in both.values())


def _tokens(resolved: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    recipe, estimator = resolved.recipe, resolved.estimator
    if resolved.rows_only:
        return
    name = recipe.estimator
    if name in READERS["gamma"]:
        yield from ({"gamma": one} for one in DISCOUNTS)
    if name in READERS["lam"]:
        yield from ({"lam": one} for one in DISCOUNTS)
        if recipe.gamma == 1:
            yield from ({"gamma": 0.99, "lam": one} for one in DISCOUNTS)
        yield {"length_adaptive_alpha": 0.05}
    if estimator.outcome:
        yield from _details(recipe, "outcome")
    if facts.observations:
        yield from _details(recipe, "terminal_reward", "observations")
    if facts.has("token_rewards"):
        yield from _details(recipe, "process_rewards")


def _penalty(resolved: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    recipe, recorded = resolved.recipe, facts.rollouts.recorded
    policies = [p for p in ("old_log_probs", "log_probs") if facts.has(p)]
    if not policies or not facts.has("ref_log_probs"):
        return
    if "kl" in recorded or recipe.kl_coef > 0:
        yield from ({"kl_estimator": one} for one in KL)
        yield from _details(recipe, "kl_clamps", "log_ratio_clamps")
        yield from ({f"{DETAIL}kl_clamp": one} for one in _CLAMPS)
        yield from ({f"{DETAIL}log_ratio_clamp": one} for one in _CLAMPS)
        if len(policies) > 1:
            yield from _details(recipe, "kl_policy")
    if recipe.kl_coef > 0:
        yield from _details(recipe, "kl_credit")
        yield {"kl_coef": 0.0}
    else:
        yield from ({"kl_coef": 0.05, "kl_estimator": one} for one in KL)


def _own(resolved: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    """Yield changes of options that some estimators alone read."""
    recipe, name = resolved.recipe, resolved.recipe.estimator
    if name == "optimal_token_baseline":
        yield from _details(recipe, "otb_position", "otb_lone")
        yield from ({f"{DETAIL}otb_eps": one} for one in EPSILONS)
        yield from ({"otb_is_cap": one} for one in (1.0, 2.0, 5.0, 10.0, None))
    if name == "gigpo":
        yield from _details(recipe, "episodes", "states")
        yield from ({"step_weight": one} for one in (0.0, 0.5, 1.0))
        yield from ({"episode_weight": one} for one in (0.0, 0.5, 1.0))
    if name in READERS["step_gamma"]:
        yield from ({"step_gamma": one} for one in DISCOUNTS)
    if name == "rae":
        yield from _details(recipe, "rae_order")
        yield from ({"ema_decay": one} for one in (*DISCOUNTS, 0.5))
    if name == "gdpo":
        yield from _details(recipe, "gdpo_batch")
        yield from ({f"{DETAIL}batch_eps": one} for one in EPSILONS)
    if name == "grpo_passk":
        yield {"norm_std": "none"}
    if name == "gpg":
        yield from ({"f_norm": one} for one in (0.5, 2.0))
    if name == "agentic_reinforce":
        yield from _details(recipe, "segment_reward")
    if name == "hierarchical_grpo":
        yield from ({"episode_domains": (one,)} for one in facts.domains)
        yield {"episode_domains": tuple(facts.domains)}


def _whitening(resolved: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    recipe = resolved.recipe
    if not resolved.rows_only:
        yield {"whiten_advantages": not resolved.whiten}
        yield {"whiten_rewards": not recipe.whiten_rewards}
        if resolved.whiten or recipe.whiten_rewards:
            yield {f"{DETAIL}whiten_ddof": 1 - recipe.numerics.whiten_ddof}
            yield from _details(recipe, "whiten_scale", "whiten_floor")
            yield from ({f"{DETAIL}whiten_eps": one} for one in EPSILONS)
        else:
            for ddof in (0, 1):
                yield {"whiten_advantages": True, f"{DETAIL}whiten_ddof": ddof}
            yield {"whiten_advantages": True, f"{DETAIL}whiten_scale": "none"}
    extremes = facts.extremes("advantages")
    if extremes and (bound := max(map(abs, extremes))) > 0:
        yield {"advantage_clip": plain(bound)}
    yield {"advantage_clip": None}


def _shaping(resolved: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    yield from _clips(resolved.recipe, facts)
    recipe, columns = resolved.recipe, facts.rollouts.columns
    if not recipe.reward_components:
        yield from needed("gdpo", facts)
    if facts.has("truncated"):
        yield from ({"truncation_penalty": one} for one in (0.0, 0.5, -1.0))
    if not recipe.teachers:
        yield from needed("opd", facts)
    for role, others in _OTHER_COLUMNS.items():
        if role != "old_log_probs" or recipe.teachers:
            own = (columns.column(name) for name in others if name in columns)
            yield from ({"columns": {role: column}} for column in own)


def _weights(_: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    yield {"length_weight": True}
    if facts.has("difficulty"):
        yield from ({"difficulty_weight": True}, {"difficulty_weight": True, "length_weight": True})


def _clips(recipe: Recipe, facts: Facts) -> Iterator[Changes]:
    """Yield bounds of rewards: the recorded extremes that several share, and round numbers."""
    for stage in ("response_level_rewards", "token_level_rewards", "advantages"):
        extremes = facts.extremes(stage)
        if extremes and extremes[1] > 0:
            low, high = map(plain, extremes)
            yield {"reward_clip": max(high, -low)}
            if low < high and low != -high:
                yield {"reward_clip": high, "reward_clip_low": low}
    yield from ({"reward_clip": one} for one in facts.bounds)
    if recipe.reward_clip is not None:
        yield {"reward_clip": 1e9}


def _masks(resolved: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    recipe = resolved.recipe
    names = ["drop_zero_variance", "drop_single"] if resolved.grouped else []
    names += ["difficulty_mask"] if resolved.grouped else []
    names += ["drop_truncated"] if facts.has("truncated") else []
    names += ["mask_before_norm"] if resolved.masks else []
    yield from ({name: not getattr(recipe, name)} for name in names)
    for limit in facts.limits:
        yield {"max_len_mask": True, "max_response_length": limit}
    if recipe.max_len_mask:
        yield {"max_len_mask": False}


def _corrections(resolved: ResolvedRecipe, facts: Facts) -> Iterator[Changes]:
    recipe = resolved.recipe
    values = facts.rollouts.column("is_weight").on_tokens(facts.rollouts.offsets)
    values = values[facts.rollouts.mask & np.isfinite(values)]
    shaped: list[Changes] = [{}]
    if len(values):
        cap, positive = plain(float(values.max())), values[values > 0]
        shaped.append({"is_cap": cap})
        if len(positive) and len(positive) == len(values):
            shaped.append({"is_floor": plain(float(values.min()))})
            shaped.append({"is_floor": plain(float(values.min())), "is_cap": cap})
        elif len(positive):
            bounds = (_down(float(positive.min())), _up(float(positive.max())))
            shaped += [{"is_mask": bounds}, {"is_mask": (0.0, bounds[1])}]
            shaped.append({"is_mask": (bounds[0], math.inf)})
    for level in _LEVELS:
        yield from ({"is_weight": level, **shape} for shape in shaped)
    if recipe.is_weight:
        yield from _details(recipe, "is_observations", "is_clamp_at", "correction")
        yield from ({f"{DETAIL}is_clamp": one} for one in _CLAMPS)
        yield {"is_normalise": not recipe.is_normalise}
        yield {"is_cap": None, "is_floor": None, "is_mask": None}


def plain(value: float, digits: int = 6) -> float:
    """Return a number without the digits that float32 adds."""
    return float(f"{value:.{digits}g}")


def _down(value: float) -> float:
    return math.floor(value * 20) / 20


def _up(value: float) -> float:
    return math.ceil(value * 20) / 20


def same(recipe: Recipe, changes: Changes) -> bool:
    """Return whether changes leave a recipe as it is."""
    return all(value_of(recipe, name) == value for name, value in changes.items())
