"""The nearest recipe of a search in which none reproduces the recorded numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlpost.analysis.replay.search.trials import Trial, Trials

CONSTANTS = (
    "reward_clip", "reward_clip_low", "advantage_clip", "max_len_mask", "max_response_length",
    "kl_coef", "gamma", "lam", "f_norm", "step_gamma", "ema_decay", "length_adaptive_alpha",
    "component_weights", "truncation_penalty", "teachers", "is_cap", "is_floor", "is_mask",
    "otb_is_cap", "episode_weight", "step_weight",
)  # fmt: skip
"""Options whose value is free, so that some numbers become equal by chance."""
_MANY = 0.1
"""Share of the numbers that a change makes equal, if it stays where nothing reproduces."""
_NEAR_SHARE = 0.45
"""Share of the numbers that are equal, or nothing is near."""


def is_near(one: Trial) -> bool:
    """Return whether about half of the numbers are equal."""
    return one.share_equal >= _NEAR_SHARE


def nearest(best: Trial, starts: Sequence[Trial], trials: Trials, framework: str) -> Trial:
    """Return the nearest recipe, with the changes that explain much.

    Each stage is compared with what a recipe makes of the stages recorded before it. A change
    stays if it makes a stage equal, or many numbers. A plain preset comes first if it is equal for
    as many stages and for about as many numbers.

    Args:
        best: the best trial of the search.
        starts: presets and estimators without changes.
        trials: computes candidates.
        framework: the preset that comes first of those about as near.
    """
    best = _supported(trials.again(best), trials)
    changes = best.candidate.changes
    same = [trials.of(one.candidate.changed(changes)) for one in starts] if changes else []
    best = _first([best, *(one for one in same if one is not None)], trials, framework)
    plain = _first(map(trials.again, starts), trials, framework)
    stages = _equal_stages(best, trials) - _equal_stages(plain, trials)
    better = stages > 0 or (stages == 0 and best.share_equal > plain.share_equal + _MANY)
    return best if better else plain


def _first(found: Iterable[Trial], trials: Trials, framework: str) -> Trial:
    """Return the trial with the most equal stages; of several, one that reads critic values.

    Of those, one of the framework comes first. Without an equal stage the score counts alone.
    """
    critic = "values" in trials.rollouts.columns

    def order(one: Trial) -> tuple[Any, ...]:
        equal, share = _equal_stages(one, trials), round(one.share_equal, 1)
        unread = critic and "values" not in one.resolved.estimator.columns
        other = one.candidate.framework != framework
        return -equal, -share, equal > 0 and unread, equal > 0 and other, one.place

    return min(found, key=order)


def _equal_stages(one: Trial, trials: Trials) -> int:
    """Return how many stages equal what the recipe makes of those recorded before them."""
    try:
        found = trials.replayer.from_recorded(one.candidate.recipe)
    except (UsageError, DataError):
        return 0
    return sum(stage.difference.equal for stage in found)


def _supported(trial: Trial, trials: Trials) -> Trial:
    """Return a trial without the changes that make few numbers equal, constants first."""
    for name in sorted(trial.candidate.changes, key=lambda n: n not in CONSTANTS):
        one = trials.of(trial.candidate.without([name]))
        if one is None or {*trial.equal_stages} - {*one.equal_stages}:
            continue
        if name in CONSTANTS or one.share_equal > trial.share_equal - _MANY:
            trial = one
    return trial
