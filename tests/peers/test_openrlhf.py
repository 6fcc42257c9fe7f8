"""The gates of OpenRLHF 0.11's PolicyLoss between rollout engine and trainer, loss and gradient.

Its presets are held against the source by `tests/recipe/test_preset_sources.py`. Rejected tokens
stay in the denominator of its loss, so in rlpost they have weight 0.
"""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from peers.as_rows import enriched
from peers.parts import part
from peers.peer_rollouts import rollouts

from rlpost import functional

pytestmark = pytest.mark.skipif(
    find_spec("openrlhf") is None,
    reason="openrlhf is not installed; `python -m tests.peers openrlhf` runs this with it",
)
BARE, ABSENT = ("openrlhf", "openrlhf.models"), ("deepspeed", "flash_attn", "peft", "transformers")
GATES = {
    "ratio": ("ratio:0.9:1.1", (0.9, 1.1)),
    "tv": ("prob_gap::0.02", (0.0, 0.02)),
    "binary_kl": ("bkl::0.002", (0.0, 0.002)),
}
"""By OpenRLHF's name of a gate: rlpost's measure with its bounds, and the bounds."""
LEVELS = {"token": "token", "seq": "geometric"}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("gate", [pytest.param(gate, id=f"openrlhf-{gate}") for gate in GATES])
def test_gates(gate, level):
    data, (measure, bounds) = rollouts(3, turns=True, empty=True), GATES[gate]
    words = {"is_weight": "token", "is_filter": (f"{LEVELS[level]}:{measure}",)}
    numerics = {"is_clamp": "never", "is_filter_clamp": "never"}
    table = enriched(data, "is_weight", numerics=numerics, **words)
    names = ("log_probs", "old_log_probs", "infer_log_probs", "response_mask")
    new, old, infer, mask = (data.padded(name) for name in names)
    advantages = torch.from_numpy(np.random.default_rng(3).normal(size=new.shape))
    module = part("openrlhf.models.loss", bare=BARE, absent=ABSENT)
    loss = module.PolicyLoss(
        is_correction_level=level, is_correction_gating=gate, is_correction_threshold=bounds
    )
    theirs, ours = (new.clone().requires_grad_() for _ in range(2))
    expected = loss(theirs, old, advantages, mask, infer)[0]
    weights = data.ragged(table["is_weight"])
    found = functional.padded.policy_loss(
        ours, old, advantages, mask, is_weight=weights, pg_clip=0.2
    ).loss
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    gradients = [torch.autograd.grad(x, y)[0] for x, y in ((found, ours), (expected, theirs))]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)
    assert 0 < gradients[0].count_nonzero() < mask.sum()
