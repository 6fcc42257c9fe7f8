"""GAE and its returns against torchrl, which has no preset: its batches have no observations.

The grid: γ, λ, rewards on every token or on the last, observations inside and at the end of
responses, which rlpost skips, so torchrl gets the policy tokens alone; ragged and padded. The
returns of rlpost's gae are TD(λ) returns.
"""

from importlib.util import find_spec
from itertools import product

import pytest
import torch

from rlpost import Options, Recipe, enrich, functional
from rlpost.analysis.peers.rollouts import rollouts

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


def theirs(rewards, values, gamma, lam):
    """Advantages and TD(λ) returns of one response, from two functions of torchrl."""
    from torchrl.objectives.value import functional as value  # noqa: PLC0415

    last = torch.zeros(len(values), 1, dtype=torch.bool)
    last[-1] = True
    ahead = torch.cat([values[1:], values.new_zeros(1)])[:, None]
    columns = (ahead, rewards[:, None], last, last)
    advantages, _ = value.generalized_advantage_estimate(gamma, lam, values[:, None], *columns)
    returns = value.td_lambda_return_estimate(gamma, lam, *columns)
    return advantages[:, 0], returns[:, 0]


@pytest.mark.parametrize(("gamma", "lam", "seed", "every"), GRID)
def test_gae_and_td_lambda(gamma, lam, seed, every):
    data = rollouts(seed, turns=True, empty=True)
    if every:
        data = data.with_(token_rewards=data.columns["sum_pi_squared"])
    recipe = Recipe(estimator="gae", gamma=gamma, lam=lam, emit=("advantages", "returns"))
    table, _ = enrich(data.table(), recipe, Options(device="cpu"))
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
