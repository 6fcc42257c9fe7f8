"""Estimators: one file each, all in the table ESTIMATORS."""

from __future__ import annotations

from rlpost.errors import UsageError
from rlpost.estimators import (
    agentic_reinforce,
    dr_grpo,
    gae,
    gdpo,
    gigpo,
    gpg,
    grpo,
    grpo_passk,
    hierarchical_grpo,
    max_rl,
    opd,
    opo,
    optimal_token_baseline,
    own,
    rae,
    raw,
    reinforce,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    rloo,
    step_reinforce,
)
from rlpost.estimators.base import Credit, Estimator
from rlpost.recipe.roles import closest

ESTIMATORS: dict[str, Estimator] = {
    "gae": gae.ESTIMATOR,
    "reinforce": reinforce.ESTIMATOR,
    "grpo": grpo.ESTIMATOR,
    "dr_grpo": dr_grpo.ESTIMATOR,
    "rloo": rloo.ESTIMATOR,
    "reinforce_pp": reinforce_pp.ESTIMATOR,
    "reinforce_pp_baseline": reinforce_pp_baseline.ESTIMATOR,
    "remax": remax.ESTIMATOR,
    "opo": opo.ESTIMATOR,
    "gpg": gpg.ESTIMATOR,
    "grpo_passk": grpo_passk.ESTIMATOR,
    "max_rl": max_rl.ESTIMATOR,
    "gdpo": gdpo.ESTIMATOR,
    "hierarchical_grpo": hierarchical_grpo.ESTIMATOR,
    "optimal_token_baseline": optimal_token_baseline.ESTIMATOR,
    "gigpo": gigpo.ESTIMATOR,
    "step_reinforce": step_reinforce.ESTIMATOR,
    "agentic_reinforce": agentic_reinforce.ESTIMATOR,
    "rae": rae.ESTIMATOR,
    "opd": opd.ESTIMATOR,
    "raw": raw.ESTIMATOR,
}


def estimator_named(name: str) -> Estimator:
    """The estimator of this name, or `path/to/file.py:function`, or of an entry point.

    Raises:
        UsageError: there is none (with the nearest names), or it is no estimator.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    if ":" in name:
        return own.from_file(name)
    installed = own.installed()
    if name not in installed:
        known = {**ESTIMATORS, **installed}
        hint = closest(name, known) or f"; there are {', '.join(known)}"
        raise UsageError(f"no estimator {name!r}{hint}")
    return own.from_entry_point(installed[name])


def all_estimators() -> list[Estimator]:
    """Rlpost's estimators and those of installed packages."""
    return [*ESTIMATORS.values(), *map(own.from_entry_point, own.installed().values())]


__all__ = ["ESTIMATORS", "Credit", "Estimator", "all_estimators", "estimator_named"]
