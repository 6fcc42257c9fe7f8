"""GRPO: the return-to-go of rewards that are normalised within their group."""

from __future__ import annotations

from rlpost.estimators.base import Estimator
from rlpost.estimators.reinforce import reinforce

# The stage of reward normalisation computes (r - mean) / (std + 1e-6); this estimator sets its
# defaults, mean and standard deviation of the group. Without KL penalty and with γ = 1 every policy
# token of the response gets that number.
ESTIMATOR = Estimator(
    "grpo",
    reinforce,
    formula="(r - mean_g) / (std_g + 1e-6), then Gₜ = rₜ + γGₜ₊₁",
    source="arXiv:2402.03300",
    norm_mean="group",
    norm_std="group",
    undiscounted_is_constant=True,
    outcome=True,
)
