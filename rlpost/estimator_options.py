"""Options of the estimators; they are fields of Recipe."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from rlpost.numerics import Finite, NonNegative, Positive, Unit
from rlpost.option_model import OptionModel


class EstimatorOptions(OptionModel):
    """Which estimator turns rewards into advantages, and its knobs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    estimator: str = "grpo"
    """What turns rewards into advantages; `rlpost estimators` lists them."""
    gamma: Unit = 1.0
    """Discount per policy token."""
    lam: Unit = 0.95
    """λ of gae."""
    lambda_policy: Unit | None = None
    """λ of gae's advantages, where it differs from that of its returns."""
    lambda_value: Unit | None = None
    """λ of gae's returns, where it differs from that of its advantages."""
    length_adaptive_alpha: NonNegative = 0.0
    """α of VAPO: λ of a response's advantages is 1 - 1/(α·tokens); 0: off."""
    step_gamma: Unit = 1.0
    """Discount per turn of a trajectory, for gigpo and step_reinforce."""
    episode_weight: Finite = 1.0
    """Weight of gigpo's episode advantage."""
    step_weight: Finite = 1.0
    """Weight of gigpo's step advantage."""
    f_norm: Positive = 1.0
    """Divides gpg's advantages."""
    ema_decay: Unit = 0.9
    """Decay of rae's moving average baseline."""
    otb_is_cap: Positive | None = None
    """Weight optimal_token_baseline by squared ratios of old to infer, up to this."""
    episode_domains: tuple[str, ...] = ()
    """Domains that hierarchical_grpo centres by group; others by batch."""
    teachers: dict[str, Finite] = Field(default_factory=dict)
    """Columns of teachers' log-probs and the weight of the KL from each."""
