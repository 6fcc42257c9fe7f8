"""What the manual says of AReaL 1.0, which has no preset.

AReaL's side runs `PPOActor._compute_advantages` and the functions of its proximal policy, on
right-padded prompts and responses; it computes in float32.

- GAE skips observations, and a truncated response has a value behind its end. A response as long
  as its batch counts as truncated; the value is the last next value
- the proximal policy is interpolated by versions (`--behaviour loglinear`)
- the reward is on the last token; if that is an observation, it is lost (`terminal_reward`)
"""

import numpy as np
import pytest
import torch
from peers.parts import part
from peers.peer_rollouts import cases, rollouts

from rlpost.functional import padded

BARE = ("areal", "areal.api", "areal.engine", "areal.engine.fsdp_utils", "areal.infra")
BARE += ("areal.trainer", "areal.trainer.ppo")
ABSENT = ("areal.experimental", "areal.infra.rpc", "hydra", "torchdata", "uvloop")
PROMPT = 2


def areal(name):
    return part(f"areal.{name}", bare=BARE, absent=ABSENT)


def assert_advantages(data, beyond=1, options=None, **config):
    """Advantages and returns are those of AReaL's actor on policy tokens.

    Args:
        data: the rollouts.
        beyond: padding after the longest response.
        options: of rlpost's recipe.
        config: fields of PPOActorConfig.
    """
    longest, lengths = max(data.lengths), torch.tensor(data.lengths) + PROMPT
    width = PROMPT + longest + beyond

    def placed(name, shift=0):
        """A column of tokens at the positions of the tokens, or of the states before them."""
        out = torch.zeros(len(data), width)
        out[:, PROMPT - shift : PROMPT - shift + longest] = data.padded(name)
        return out

    batch = {
        "input_ids": torch.zeros(len(data), width, dtype=torch.int64),
        "attention_mask": torch.arange(width) < lengths[:, None],
        "loss_mask": placed("response_mask"),
        "logprobs": placed("old_log_probs"),
        "ref_logp": placed("ref_log_probs", 1),
        "rewards": data.of_responses("reward").float(),
        "values": placed("values", 1),
    }
    if "after" in data.columns:
        after = data.of_responses("after").float()
        batch["values"][torch.arange(len(data)), lengths - 1] = after
    actor = areal("trainer.ppo.actor")
    plain = {"kl_ctl": 0.0, "adv_norm": None, "reward_norm": None, "use_decoupled_loss": True}
    config = actor.PPOActorConfig(**{**plain, **config})
    found = actor.PPOActor(config, None)._compute_advantages(batch)
    numerics = {"terminal_reward": "last_token"}
    table = data.enriched("advantages", "returns", estimator="gae", numerics=numerics, **options)
    mask = data.mask > 0
    assert mask.sum() > 60
    for name in ("advantages", "returns"):
        theirs = torch.nn.functional.pad(found[name], (0, width - found[name].shape[1]))
        theirs = theirs[:, PROMPT - 1 : PROMPT - 1 + longest].double()
        ours = data.ragged(table[name])
        torch.testing.assert_close(ours[mask], theirs[mask], rtol=2e-5, atol=5e-6)


KINDS = {"text": {}, "observations": {"turns": True}, "empty": {"turns": True, "empty": True}}


@pytest.mark.parametrize(("kind", "gamma", "lam"), cases("areal", KINDS, (1.0, 0.9), (1.0, 0.5)))
def test_gae(kind, gamma, lam):
    options = {"gamma": gamma, "lam": lam}
    data = rollouts(0, **KINDS[kind])
    assert_advantages(data, options=options, discount=gamma, gae_lambda=lam)


@pytest.mark.parametrize("gamma", cases("areal", (1.0, 0.9)))
def test_longest_responses_have_a_next_value(gamma):
    data = rollouts(2)
    cut = np.array(data.lengths) == max(data.lengths)
    assert cut.any()
    ends = np.where(cut, "length", "stop")
    data = data.with_(after=np.full(len(data), 0.75), finish_reason=ends)
    data = data.with_(next_value=np.full(len(data), 0.75))
    options = {"gamma": gamma, "lam": 0.5, "bootstrap": "column"}
    assert_advantages(data, 0, options, discount=gamma, gae_lambda=0.5)


@pytest.mark.parametrize("how", cases("areal", ("loglinear", "linear")))
def test_proximal_log_probs(how):
    """Of each token's version; AReaL's `linear` is in its metrics alone."""
    data, rng = rollouts(17, turns=True), np.random.default_rng(0)
    versions = [rng.integers(2, 7, n) for n in data.lengths]
    data = data.with_(versions=versions, age=[6.0 - x for x in versions])
    new, infer, age = (data.padded(name) for name in ("log_probs", "infer_log_probs", "age"))
    approximate = areal("trainer.ppo.actor").compute_prox_logp_approximations
    expected = approximate(infer, new, data.padded("versions"), 6, method=how)[how]
    found = padded.proximal_log_probs(new, infer, age, data.real, how=how)
    torch.testing.assert_close(found[data.real], expected[data.real], rtol=1e-5, atol=1e-6)
