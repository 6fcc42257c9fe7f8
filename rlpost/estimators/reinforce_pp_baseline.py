"""REINFORCE++ with baseline: centred by group, then whitened over the tokens of a batch."""

from __future__ import annotations

from rlpost.estimators.base import Estimator
from rlpost.estimators.dr_grpo import dr_grpo

# Whitening is over all policy tokens of a batch, so long responses weigh more, and a group of equal
# rewards gets -mean / std of the batch, which is 0 only if the mean over tokens is.
ESTIMATOR = Estimator(
    "reinforce_pp_baseline",
    dr_grpo,
    formula="r - mean_g, then (A - mean) / √(var + 1e-8) over the batch's tokens",
    source="arXiv:2501.03262",
    whiten_advantages=True,
    returns="whitened",
    outcome=True,
)
