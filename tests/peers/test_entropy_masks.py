"""The mask of tokens with the highest entropy of TRL, against rlpost's.

TRL computes the quantile in float32, and one over all processes. It is at a token, or between two.
"""

from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peers.as_rows import enriched
from peers.peer_rollouts import rollouts

from rlpost import functional

pytestmark = pytest.mark.skipif(
    find_spec("trl") is None, reason="`python -m tests.peers trl` runs this"
)
ALONE = SimpleNamespace(pad_across_processes=lambda x, **_: x, gather=lambda x: x)


def theirs(entropy, mask, share):
    trainer = import_module("trl.trainer.grpo_trainer").GRPOTrainer
    own = SimpleNamespace(accelerator=ALONE)
    return trainer.get_high_entropy_mask(own, entropy, mask, 1 - share)


@pytest.mark.parametrize("kind", ["plain", "ties"])
@pytest.mark.parametrize("share", [pytest.param(x, id=f"trl-{x}") for x in (0.05, 0.2, 0.5, 0.8)])
def test_top_entropy(kind, share):
    data, rng = rollouts(21, turns=True, empty=True), np.random.default_rng(2)
    draw = {"plain": rng.random, "ties": lambda n: rng.choice([0.0, 0.25, 0.5, 1.5], n)}[kind]
    data = data.with_(entropy=[draw(n).astype(np.float32) for n in data.lengths])
    entropy, mask = data.padded("entropy", dtype=torch.float32), data.mask
    expected = theirs(entropy, mask, share)
    assert torch.equal(functional.padded.top_entropy(entropy, mask, quantile=share), expected)

    def advantages(**options):
        table = enriched(data, "advantages", estimator="raw", numerics={"batch": "all"}, **options)
        return data.ragged(table["advantages"])

    every = advantages()
    found = advantages(top_entropy_quantile=share)
    assert torch.equal(found, torch.where(expected, every, 0.0))
