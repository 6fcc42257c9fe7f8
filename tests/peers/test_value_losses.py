"""Value losses of verl, areal and torchrl, with their gradients, against rlpost.functional.

Ragged responses of random lengths, right-padded as the frameworks have them, with observations.
xtuner is on no index; its formula is verl's with another range (`tests/losses/test_value_loss.py`).
"""

from importlib import import_module
from importlib.util import find_spec
from math import inf

import numpy as np
import pytest
import torch
from peers.peer_rollouts import rollouts
from peers.test_areal import areal as areal_module

from rlpost import functional


def verl(values, old, returns, mask, clip, _):
    loss, clipped = import_module("verl.trainer.ppo.core_algos").compute_value_loss(
        values, returns, old, mask, clip
    )
    return loss, clipped


def areal(values, old, returns, mask, clip, kind):
    formulas = areal_module("utils.functional.functional")
    arguments = (values.float(), old.float(), returns.float(), clip, mask.bool(), kind)
    loss, stat = formulas.ppo_critic_loss_fn(*arguments)
    return loss, stat["clip_mask"].sum() / mask.sum()


def torchrl(values, old, returns, mask, clip, kind):
    utils = import_module("torchrl.objectives.utils")
    plain = utils.distance_loss(returns, values, kind)
    limit = torch.tensor(clip, dtype=values.dtype)
    loss, _ = utils._clip_value_loss(old, values, limit, returns, plain, kind)
    return (loss * mask).sum() / mask.sum() * (0.5 if kind == "l2" else 1), None


CASES = [
    (verl, "", inf, 0.5),
    (areal, "mse", inf, 0.5),
    (areal, "huber", 10.0, 0.5),
    (torchrl, "l2", inf, 0.2),
    (torchrl, "smooth_l1", 1.0, 0.2),
]


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize(
    ("theirs", "kind", "delta", "clip"),
    [
        pytest.param(
            *case,
            id=f"{case[0].__name__}-{case[1]}",
            marks=pytest.mark.skipif(
                find_spec(case[0].__name__) is None,
                reason=f"`python -m tests.peers {case[0].__name__}` runs this",
            ),
        )
        for case in CASES
    ],
)
def test_the_value_loss_and_its_gradient(theirs, kind, delta, clip, scale):
    data = rollouts(5, turns=True)
    mask = data.padded("response_mask").double()
    rng = np.random.default_rng(6)
    old, values, returns = (torch.tensor(rng.normal(0, scale, mask.shape)) for _ in range(3))
    values = (old + 0.05 * values).requires_grad_()
    loss, clipped = theirs(values, old, returns, mask, clip, kind)
    (wanted,) = torch.autograd.grad(loss, values)
    ours = functional.padded.value_loss(values.detach(), old, returns, mask, clip=clip, delta=delta)
    assert ours.clipped.any() == (scale > 1)
    tolerance = {"rtol": 1e-5, "atol": 1e-6}  # areal's are float32
    torch.testing.assert_close(
        functional.padded.aggregate(ours.loss, mask), loss.detach().double(), **tolerance
    )
    torch.testing.assert_close(ours.gradient / mask.sum(), wanted, **tolerance)
    if clipped is not None:
        assert float(clipped) == pytest.approx(float(ours.clipped.sum() / mask.sum()), abs=1e-6)
