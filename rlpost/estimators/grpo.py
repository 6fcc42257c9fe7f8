"""GRPO: rewards normalised within their group, then the return-to-go."""

from __future__ import annotations

from rlpost.estimators.base import Estimator
from rlpost.estimators.reinforce import reinforce

# The group normalisation is the pipeline's reward normalisation, with mean and deviation of the
# group as the estimator's defaults: A = (r - mean) / (std + 1e-6) where there is no KL penalty.
ESTIMATOR = Estimator(
    "grpo",
    reinforce,
    formula="(r - mean_g) / (std_g + 1e-6), then Gₜ = rₜ + γGₜ₊₁",
    source="arXiv 2402.03300",
    norm_mean="group",
    norm_std="group",
    undiscounted_is_constant=True,
)
