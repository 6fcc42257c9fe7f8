"""REINFORCE++ with a baseline: centred on the group, then whitened over the batch's tokens."""

from __future__ import annotations

from rlpost.estimators.base import Estimator
from rlpost.estimators.dr_grpo import dr_grpo

# The deviation is that of all policy tokens of a batch, so long responses weigh more, and equal
# groups stay at 0 unless the batch's mean is not.
ESTIMATOR = Estimator(
    "reinforce_pp_baseline",
    dr_grpo,
    formula="r - mean_g, then (A - mean) / √(var + 1e-8) over the batch's tokens",
    source="arXiv 2501.03262",
    whiten_advantages=True,
    returns="whitened",
)
