"""The mean over rollouts against Agent Lightning 1.0, which has no preset.

Its side is `compute_policy_loss_per_rollout_mean` on advantages that
`normalize_advantages_by_rollout` divides, with what it imports of verl written out; rlpost's is
`functional.policy_loss`. Agent Lightning divides by the number of rows, rlpost by that of rollouts.
"""

import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from peers.parts import part
from peers.peer_rollouts import rollouts

from rlpost import functional

pytestmark = pytest.mark.skipif(
    find_spec("agentlightning") is None,
    reason="agentlightning is not installed; its wheel is for Python 3.12 (pip install --no-deps)",
)
ROWS = 3
"""Rows of a rollout, but of the last one."""


@pytest.fixture
def theirs(monkeypatch):
    """The module, with the two sums and the registry of verl."""
    sums = ModuleType("verl.utils.torch_functional")
    sums.masked_sum = lambda values, mask: (values * mask).sum()
    sums.masked_mean = lambda values, mask: (values * mask).sum() / mask.sum()
    registry = ModuleType("verl.trainer.ppo.core_algos")
    registry.register_policy_loss = lambda _: lambda function: function
    names = ("verl", "verl.utils", "verl.trainer", "verl.trainer.ppo")
    modules = {name: ModuleType(name) for name in names}
    modules["verl.utils"].torch_functional = sums
    for module in (*modules.values(), sums, registry):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    bare = ("agentlightning", "agentlightning.verl")
    return part("agentlightning.verl.per_rollout_loss", bare=bare, absent=())


@pytest.mark.parametrize("clip", [(0.2, 0.2), (0.02, 0.1)])
@pytest.mark.parametrize("seed", [0, 1])
def test_mean_over_rollouts(theirs, seed, clip):
    data, rng = rollouts(seed, turns=True), np.random.default_rng(seed)
    data = data.with_(advantages=[rng.normal(size=size) for size in data.lengths])
    rollout = np.arange(len(data)) // ROWS
    mask = data.mask.double()
    advantages = theirs.normalize_advantages_by_rollout(
        data.padded("advantages"), mask, rollout, num_trained_rows=len(data)
    )
    new = data.padded("log_probs").requires_grad_()
    config = SimpleNamespace(
        clip_ratio=0.2, clip_ratio_low=clip[0], clip_ratio_high=clip[1], global_batch_info={},
        get=lambda _, default: default,
    )  # fmt: skip
    expected, _ = theirs.compute_policy_loss_per_rollout_mean(
        data.padded("old_log_probs"), new, advantages, mask, config=config
    )
    (gradient,) = torch.autograd.grad(expected, new)
    own = data.padded("log_probs").requires_grad_()
    found = functional.padded.policy_loss(
        own, data.padded("old_log_probs"), data.padded("advantages"), mask, loss="ppo",
        pg_clip=tuple(clip), dual_clip=3.0, aggregation="rollout-mean",
        units=rollout,
    ).loss * (len({*rollout}) / len(data))  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    (own_gradient,) = torch.autograd.grad(found, own)
    torch.testing.assert_close(own_gradient, gradient, rtol=1e-9, atol=1e-12)
    assert gradient.count_nonzero() > 20
