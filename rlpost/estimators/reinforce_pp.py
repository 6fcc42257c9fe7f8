"""REINFORCE++: the return-to-go, whitened over the policy tokens of a batch."""

from __future__ import annotations

from rlpost.estimators.base import Estimator
from rlpost.estimators.reinforce import reinforce

ESTIMATOR = Estimator(
    "reinforce_pp",
    reinforce,
    formula="Gₜ = rₜ + γGₜ₊₁, then (G - mean) / √(var + 1e-8) over the batch's tokens",
    source="arXiv:2501.03262",
    whiten_advantages=True,
    undiscounted_is_constant=True,
    outcome=True,
)
