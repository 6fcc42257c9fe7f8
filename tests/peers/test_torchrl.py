"""GAE with its TD(λ) returns, and V-trace, against torchrl, which has no observations.

rlpost skips observations, inside and at the end of responses, so torchrl gets the policy tokens
alone. Responses that were cut bootstrap from a column, or from the last value of their row: they
are `done` and not `terminated`.
"""

from importlib import import_module

import numpy as np
import pyarrow as pa
import pytest
import torch
from peers.peer_rollouts import cases, rollouts

VALUE = "torchrl.objectives.value.functional"
CAPS = {1.0: (1.0, 1.0), 0.95: (0.5, 0.25), 0.0: (2.0, 1.5)}


def credit_of(estimator, tokens, reward, behind, gamma, lam):
    """Advantages and returns of one response, and of λ = 1 if that is its return."""
    functions, values = import_module(VALUE), tokens["values"][:, None]
    rewards, done = torch.zeros_like(values), torch.zeros_like(values, dtype=torch.bool)
    rewards[-1], done[-1] = reward, True
    last = values.new_tensor([0.0 if behind is None else behind])
    ahead = torch.cat([tokens["values"][1:], last])[:, None]
    ends = rewards, done, done & (behind is None)
    if estimator == "vtrace":
        old, infer = (tokens[name][:, None] for name in ("old_log_probs", "infer_log_probs"))
        return functions.vtrace_advantage_estimate(
            gamma, old, infer, values, ahead, *ends, *CAPS[lam]
        )
    returns = functions.td_lambda_return_estimate(gamma, lam, ahead, *ends)
    return functions.generalized_advantage_estimate(gamma, lam, values, ahead, *ends)[0], returns


@pytest.mark.parametrize(
    ("estimator", "where", "gamma", "lam"),
    cases("torchrl", ("gae", "vtrace"), ("zero", "column", "last"), (1.0, 0.9), CAPS),
)
def test_credit_of_policy_tokens(estimator, where, gamma, lam):
    data, rng = rollouts(3, turns=True, empty=True), np.random.default_rng(3)
    cut, ahead = rng.random(len(data)) < 0.5, rng.normal(size=len(data))
    ends = {"zero": ahead * 0, "column": ahead, "last": [row[-1] for row in data.columns["values"]]}
    behind = [x if there else None for there, x in zip(cut, ends[where], strict=True)]
    column = pa.array([x if there else None for there, x in zip(cut, ahead, strict=True)])
    data = data.with_(finish_reason=np.where(cut, "length", "stop"), next_value=column)
    options = {"estimator": estimator, "gamma": gamma, "lam": lam}
    if estimator == "vtrace":
        options["options"] = dict(zip(("rho_cap", "c_cap"), CAPS[lam], strict=True))
    if where != "zero":
        options["bootstrap"] = where
    table, mask = data.enriched("advantages", "returns", **options), data.mask > 0
    written = [data.ragged(table[name]) for name in ("advantages", "returns")]
    names = ("values", "old_log_probs", "infer_log_probs")
    compared = 0
    for row, reward in enumerate(data.columns["reward"]):
        tokens = {name: data.padded(name)[row][mask[row]] for name in names}
        if not len(tokens["values"]):
            continue
        expected = credit_of(estimator, tokens, reward, behind[row], gamma, lam)
        for ours, theirs in zip(written, expected, strict=True):
            torch.testing.assert_close(ours[row][mask[row]], theirs[:, 0], rtol=1e-5, atol=1e-5)
            compared += len(theirs)
    assert compared > 100
