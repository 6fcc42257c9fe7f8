"""The estimators: one file each, listed in the table ESTIMATORS."""

from __future__ import annotations

from rlpost.errors import OptionValueError, UsageError
from rlpost.estimators import (
    agentic_reinforce,
    dr_grpo,
    gae,
    gar,
    gdpo,
    gigpo,
    gpg,
    grpo,
    grpo_passk,
    hierarchical_grpo,
    max_rl,
    mt_grpo,
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
    turn_credit,
    turn_gae,
    vtrace,
)
from rlpost.estimators.base import Credit, Estimator
from rlpost.recipe.estimators import check_name, installed
from rlpost.recipe.functions import from_entry_point, from_file

ESTIMATORS: dict[str, Estimator] = {
    "gae": gae.ESTIMATOR,
    "vtrace": vtrace.ESTIMATOR,
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
    "mt_grpo": mt_grpo.ESTIMATOR,
    "turn_credit": turn_credit.ESTIMATOR,
    "turn_gae": turn_gae.ESTIMATOR,
    "gar": gar.ESTIMATOR,
    "rae": rae.ESTIMATOR,
    "opd": opd.ESTIMATOR,
    "raw": raw.ESTIMATOR,
}


def estimator_named(name: str) -> Estimator:
    """Return the estimator of a name, of `path/to/file.py:function` or of an entry point.

    Raises:
        UsageError: there is no such estimator (with the closest names), or it is not valid.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    if ":" in name:
        return own.as_estimator(from_file(name, own.FLAG), name, name.rpartition(":")[0])
    try:
        point = installed()[check_name(name)]
    except OptionValueError as error:
        raise UsageError(error.part) from None
    return own.as_estimator(from_entry_point(point, own.FLAG), name, point.value)


__all__ = ["ESTIMATORS", "Credit", "Estimator", "estimator_named"]
