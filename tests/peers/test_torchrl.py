"""GAE, its returns and V-trace against torchrl, which has no preset: it has no observations.

The grid: γ, λ, rewards on every token or on the last, observations inside and at the end of
responses, which rlpost skips, so torchrl gets the policy tokens alone; ragged and padded. The
returns of rlpost's gae are TD(λ) returns. Truncated responses, which bootstrap from the last value
of their row or from a column, are `done` and not `terminated`.
"""

from importlib.util import find_spec
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
import torch
from peers.as_rows import enriched
from peers.peer_rollouts import rollouts

from rlpost import functional

DISCOUNTS = ((1.0, 1.0), (1.0, 0.95), (0.9, 0.5), (0.99, 0.0))
GRID = [
    pytest.param(*values, id="torchrl-" + "-".join(map(str, values)))
    for values in ((*pair, *rest) for pair, *rest in product(DISCOUNTS, (0, 1), (False, True)))
]
pytestmark = pytest.mark.skipif(
    find_spec("torchrl") is None,
    reason="torchrl is not installed; `python -m tests.peers torchrl` runs this with it",
)


def of_policy(data, rows):
    """The numbers of policy tokens of each response."""
    masks = data.columns["response_mask"]
    return [
        torch.tensor([x for x, keep in zip(row, mask, strict=True) if keep], dtype=torch.float64)
        for row, mask in zip(rows, masks, strict=True)
    ]


def theirs(rewards, values, gamma, lam, behind=None):
    """Advantages and TD(λ) returns of one response, from two functions of torchrl.

    With a value behind its end, the response is done, and not terminated.
    """
    from torchrl.objectives.value import functional as value  # noqa: PLC0415

    columns = of_torchrl(rewards, values, behind)
    advantages, _ = value.generalized_advantage_estimate(gamma, lam, values[:, None], *columns)
    returns = value.td_lambda_return_estimate(gamma, lam, *columns)
    return advantages[:, 0], returns[:, 0]


def of_torchrl(rewards, values, behind):
    """Next values, rewards, `done` and `terminated` of one response, [T, 1] each."""
    done = torch.zeros(len(values), 1, dtype=torch.bool)
    done[-1] = True
    last = values.new_zeros(1) if behind is None else values.new_tensor([behind])
    ahead = torch.cat([values[1:], last])[:, None]
    return ahead, rewards[:, None], done, done & (behind is None)


@pytest.mark.parametrize(("gamma", "lam", "seed", "every"), GRID)
def test_gae_and_td_lambda(gamma, lam, seed, every):
    data = rollouts(seed, turns=True, empty=True)
    if every:
        data = data.with_(token_rewards=data.columns["sum_pi_squared"])
    table = enriched(data, "advantages", "returns", estimator="gae", gamma=gamma, lam=lam)
    values = of_policy(data, data.columns["values"])
    process = of_policy(data, data.columns["sum_pi_squared"])
    written = [of_policy(data, table[name].to_pylist()) for name in ("advantages", "returns")]
    compared = 0
    for row, reward in enumerate(data.columns["reward"]):
        if not len(values[row]):
            continue
        rewards = process[row] * every
        rewards[-1] += reward
        for ours, expected in zip(written, theirs(rewards, values[row], gamma, lam), strict=True):
            torch.testing.assert_close(ours[row], expected, rtol=1e-5, atol=1e-5)
            compared += len(expected)
    assert compared > 100
    kept = [row for row, numbers in enumerate(values) if len(numbers)]
    lengths = [len(values[row]) for row in kept]
    flat = torch.cat([values[row] for row in kept])
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    credit = functional.gae(torch.zeros_like(flat), flat, offsets, gamma=gamma, lam=lam)
    for row, ours in zip(kept, credit.advantages.split(lengths), strict=True):
        expected, _ = theirs(torch.zeros(len(values[row])).double(), values[row], gamma, lam)
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


def truncated(data, seed, where):
    """The rollouts with finish reasons, and the value behind each end; None if it has none.

    It is a random one of a column, or the last value of the row.
    """
    rng = np.random.default_rng(seed)
    cut, ahead = rng.random(len(data)) < 0.5, rng.normal(size=len(data))
    last = [row[-1] if len(row) else None for row in data.columns["values"]]
    behind = [
        x if one else None
        for one, x in zip(cut, {"column": ahead, "last": last}[where], strict=True)
    ]
    column = pa.array([x if one else None for one, x in zip(cut, ahead, strict=True)])
    return data.with_(finish_reason=np.where(cut, "length", "stop"), next_value=column), behind


@pytest.mark.parametrize("where", ["column", "last"])
@pytest.mark.parametrize(("gamma", "lam", "seed", "every"), GRID)
def test_truncated_responses(gamma, lam, seed, every, where):
    data, behind = truncated(rollouts(seed, turns=True, empty=True), seed, where)
    if every:
        data = data.with_(token_rewards=data.columns["sum_pi_squared"])
    columns = {"gae": ("advantages", "returns"), "reinforce": ("returns",)}
    compared = 0
    for name, names in columns.items():
        options = {"estimator": name, "gamma": gamma, "lam": lam, "bootstrap": where}
        table = enriched(data, "advantages", "returns", **options)
        values = of_policy(data, data.columns["values"])
        process = of_policy(data, data.columns["sum_pi_squared"])
        written = [of_policy(data, table[column].to_pylist()) for column in names]
        for row, reward in enumerate(data.columns["reward"]):
            if not len(values[row]):
                continue
            rewards = process[row] * every
            rewards[-1] += reward
            both = theirs(rewards, values[row], gamma, lam, behind[row])
            if name == "reinforce":  # Monte-Carlo returns are those of λ = 1
                both = theirs(rewards, values[row], gamma, 1.0, behind[row])[1:]
            for ours, expected in zip(written, both, strict=True):
                torch.testing.assert_close(ours[row], expected, rtol=1e-5, atol=1e-5)
                compared += behind[row] is not None
    assert compared > 20


CAPS = ((1.0, 1.0), (0.5, 0.25), (2.0, 1.5))


@pytest.mark.parametrize(
    ("gamma", "caps", "seed"),
    [pytest.param(*one, id="torchrl-" + "-".join(map(str, one)))
     for one in product((1.0, 0.9), CAPS, (2, 3))],
)  # fmt: skip
def test_vtrace(gamma, caps, seed):
    from torchrl.objectives.value.functional import vtrace_advantage_estimate  # noqa: PLC0415

    data, behind = truncated(rollouts(seed, turns=True, empty=True), seed, "column")
    table = enriched(
        data,
        "advantages",
        "returns",
        estimator="vtrace",
        gamma=gamma,
        options={"rho_cap": caps[0], "c_cap": caps[1]},
        bootstrap="column",
    )
    names = ("values", "old_log_probs", "infer_log_probs")
    values, old, infer = (of_policy(data, data.columns[name]) for name in names)
    written = [of_policy(data, table[name].to_pylist()) for name in ("advantages", "returns")]
    compared = 0
    for row, reward in enumerate(data.columns["reward"]):
        if not len(values[row]):
            continue
        rewards = torch.zeros_like(values[row])
        rewards[-1] = reward
        ahead, *rest = of_torchrl(rewards, values[row], behind[row])
        expected = vtrace_advantage_estimate(
            gamma, old[row][:, None], infer[row][:, None], values[row][:, None], ahead, *rest, *caps
        )
        for ours, one in zip(written, expected, strict=True):
            torch.testing.assert_close(ours[row], one[:, 0], rtol=1e-5, atol=1e-5)
            compared += len(one)
    assert compared > 100
