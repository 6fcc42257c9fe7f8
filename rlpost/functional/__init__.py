"""The formulas as functions of arrays of numpy or torch, for a trainer, a notebook or a test.

Tokens are ragged: arrays [T] of the tokens of all responses in a row, `offsets` [N+1] with the
first token of each response, and `mask` [T], 0 on observation tokens. `padded` has the same
functions for [N, T] arrays. Numbers of responses are [N], and ids of groups, rollouts and domains
are any N values, in any order.

Arrays are float32 or float64; tensors may be on any device. Results have the library, type and
device of the input. Inputs are never changed. The numbers are those of the commands, which compute
in float64. Numbers of responses are computed by numpy, which waits for a GPU once, and are
constants: no gradient flows through them. A log-prob that is NaN or infinite at a policy token,
such as the -inf of a token that the sampler excludes, is an error that names the token.
"""

from __future__ import annotations

from rlpost.estimators import Credit
from rlpost.functional import padded
from rlpost.functional.formulas import FUNCTIONS
from rlpost.functional.policy import PolicyLoss
from rlpost.kernels.corrections import Weights
from rlpost.kernels.values import ValueLoss

globals().update(FUNCTIONS)
__all__ = ["Credit", "PolicyLoss", "ValueLoss", "Weights", "padded", *FUNCTIONS]  # noqa: PLE0604
