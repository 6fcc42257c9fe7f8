"""The names of estimators; their functions are in `rlpost.estimators`."""

from __future__ import annotations

from rlpost.recipe.functions import Names

NAMES = (
    "gae", "vtrace", "reinforce", "grpo", "dr_grpo", "rloo", "reinforce_pp",
    "reinforce_pp_baseline", "remax", "opo", "gpg", "grpo_passk", "max_rl", "gdpo",
    "hierarchical_grpo", "optimal_token_baseline", "gigpo", "step_reinforce", "agentic_reinforce",
    "mt_grpo", "turn_credit", "turn_gae", "gar", "rae", "opd", "raw",
)  # fmt: skip
"""The estimators of rlpost."""
KNOWN = Names("estimator", "--estimator", "rlpost.estimators", NAMES)
"""They, and those of users."""
