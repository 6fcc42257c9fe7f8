"""GAE of shaped rewards, KL and losses against AReaL 1.0, which has no preset.

AReaL's side runs `PPOActor._compute_advantages`, `KLEstimator`, `ppo_actor_loss_fn`,
`sapo_loss_fn` and `apply_rejection_sampling`, on right-padded prompts and responses; it computes in
float32. rlpost's side is `enrich` and functions of `rlpost.functional`.

Equal, by rlpost's options: GAE that skips observations, with and without values; the KL penalty in
token rewards by k1, k2 and k3, each clamped to ±10; bias and scale (`reward_scale`), clip and
overlong penalty of rewards; rewards normalised by group, by batch or by the others of a group;
normalised advantages; the PPO loss with two bounds and dual clip, the loss of GSPO and of SAPO; and
weights and masks between the rollout engine and the trainer, M2PO's mask among them.

Where AReaL differs:

- The reward is on the last token; if that is an observation, the reward is lost
  (`terminal_reward="last_token"`, about which rlpost warns).
- A response as long as its batch counts as truncated: the value after its last token is its last
  next value. rlpost has 0, as for all shorter ones, or the last of the row (`bootstrap="last"`).
- Advantages are divided by std + 1e-5; in rlpost ε is inside the root (`whiten_eps`).
- Rewards are clipped before they are normalised, in rlpost after it. A standard deviation is around
  the mean that is subtracted: of the group, if it is of the batch; of the others. rlpost's is
  around the mean of its own range.
- k1 and k3 of rejection estimate KL(trainer ‖ engine), in rlpost's filters KL(engine ‖ trainer).
- The sequence level of its loss averages the advantages of a response, and divides by tokens.
  rlpost has the gradient of GSPO-token, the same for equal advantages.
- Rejected tokens stay in the denominator of its loss, so in rlpost they have weight 0.
- M2PO's mask keeps some of several equal tokens, rlpost all or none (`--is-filter batch:k2`).
- SAPO at the sequence level and the loss by a teacher have no equal in rlpost.
"""

from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
import torch
from peers.as_rows import enriched
from peers.parts import part
from peers.peer_rollouts import rollouts

from rlpost import functional

pytestmark = pytest.mark.skipif(
    find_spec("areal") is None,
    reason="areal is not installed; `python -m tests.peers areal` runs this with it",
)
BARE = ("areal", "areal.api", "areal.engine", "areal.engine.fsdp_utils", "areal.infra")
BARE += ("areal.trainer", "areal.trainer.ppo")
ABSENT = ("areal.experimental", "areal.infra.rpc", "hydra", "torchdata", "uvloop")
PROMPT = 2
KINDS = {
    "text": {},
    "observations": {"turns": True},
    "empty": {"turns": True, "empty": True},
}


def cases(*columns):
    """Parameters whose ids begin with the framework's name."""
    return [pytest.param(*one, id="areal-" + "-".join(map(str, one))) for one in product(*columns)]


def areal(name):
    return part(f"areal.{name}", bare=BARE, absent=ABSENT)


def theirs(data, *, beyond=1, values=True, **options):
    """Advantages and returns of AReaL's actor, on the tokens of responses, [N, T].

    Args:
        data: the rollouts.
        beyond: padding after the longest response.
        values: whether there is a critic.
        options: of PPOActorConfig.
    """
    longest = max(data.lengths)
    width = PROMPT + longest + beyond

    def placed(name, shift=0):
        """A column of tokens at the positions of the tokens, or of the states before them."""
        out = torch.zeros(len(data), width)
        out[:, PROMPT - shift : PROMPT - shift + longest] = data.padded(name)
        return out

    lengths = torch.tensor(data.lengths) + PROMPT
    batch = {
        "input_ids": torch.zeros(len(data), width, dtype=torch.int64),
        "attention_mask": torch.arange(width) < lengths[:, None],
        "loss_mask": placed("response_mask"),
        "logprobs": placed("old_log_probs"),
        "ref_logp": placed("ref_log_probs", 1),
        "rewards": data.of_responses("reward").float(),
    }
    if values:
        batch["values"] = placed("values", 1)
        if "after" in data.columns:
            batch["values"][torch.arange(len(data)), lengths - 1] = data.of_responses(
                "after"
            ).float()
    actor = areal("trainer.ppo.actor")
    plain = {"kl_ctl": 0.0, "adv_norm": None, "reward_norm": None, "use_decoupled_loss": True}
    config = actor.PPOActorConfig(**{**plain, **options})
    found = actor.PPOActor(config, None)._compute_advantages(batch)
    tokens = slice(PROMPT - 1, PROMPT - 1 + longest)
    pairs = {name: found[name] for name in ("advantages", "returns")}
    full = {k: torch.nn.functional.pad(x, (0, width - x.shape[1])) for k, x in pairs.items()}
    return {name: x[:, tokens].double() for name, x in full.items()}


def ours(data, *, numerics=None, **options):
    numerics = {"terminal_reward": "last_token", "single": "normalise", **(numerics or {})}
    table = enriched(data, "advantages", "returns", numerics=numerics, **options)
    return {name: data.ragged(table[name]) for name in ("advantages", "returns")}


def assert_equal(data, found, expected, names=("advantages", "returns"), **tolerance):
    """Equal on policy tokens."""
    mask = data.mask > 0
    assert mask.sum() > 60
    tolerance = {"rtol": 2e-5, "atol": 5e-6, **tolerance}
    for name in names:
        torch.testing.assert_close(found[name][mask], expected[name][mask], **tolerance)


@pytest.mark.parametrize(("kind", "gamma", "lam"), cases(KINDS, (1.0, 0.9), (1.0, 0.5, 0.0)))
def test_gae(kind, gamma, lam):
    data = rollouts(0, **KINDS[kind])
    found = ours(data, estimator="gae", gamma=gamma, lam=lam)
    assert_equal(data, found, theirs(data, discount=gamma, gae_lambda=lam))


@pytest.mark.parametrize(("kind", "gamma"), cases(KINDS, (1.0, 0.9)))
def test_without_a_critic(kind, gamma):
    data = rollouts(1, **KINDS[kind])
    found = ours(data, estimator="reinforce", gamma=gamma)
    assert_equal(data, found, theirs(data, values=False, discount=gamma, gae_lambda=1.0))


@pytest.mark.parametrize("gamma", cases((1.0, 0.9)))
def test_longest_responses_have_a_next_value(gamma):
    data = rollouts(2)
    after = np.where(np.array(data.lengths) == max(data.lengths), 0.75, 0.0)
    data = data.with_(after=np.full(len(data), 0.75))
    expected = theirs(data, beyond=0, discount=gamma, gae_lambda=0.5)
    longer = data.with_(reward=data.columns["reward"] + gamma * after)
    found = ours(longer, estimator="gae", gamma=gamma, lam=0.5)
    assert_equal(data, found, expected)
    assert after.any()


@pytest.mark.parametrize(("kl", "apart"), cases(("k1", "k2", "k3"), (1.0, 60.0)))
def test_kl_in_token_rewards(kl, apart):
    data = rollouts(3, turns=True, apart=apart)
    numerics = {"log_ratio_clamp": "never", "kl_clamp": 10.0}
    options = {"kl_estimator": kl, "kl_coef": 0.1, "numerics": numerics}
    found = ours(data, estimator="gae", gamma=0.9, lam=0.5, **options)
    expected = theirs(data, discount=0.9, gae_lambda=0.5, kl_ctl=0.1, kl_estimator=kl)
    assert_equal(data, found, expected)


@pytest.mark.parametrize(("bias", "scale", "clip"), cases((0.0, -0.5), (1.0, 5.0), (20.0, 1.5)))
def test_shaped_rewards(bias, scale, clip):
    data = rollouts(4, turns=True)
    ends = tuple((x + bias) * scale for x in (-100.0, 100.0))
    shaping = {"reward_scale": (-100.0, 100.0, *ends), "reward_clip": clip}
    found = ours(data, estimator="gae", lam=0.5, norm_mean="none", norm_std="none", **shaping)
    options = {"reward_bias": bias, "reward_scaling": scale, "reward_clip": clip}
    assert_equal(data, found, theirs(data, discount=1.0, gae_lambda=0.5, **options))


@pytest.mark.parametrize("factor", cases((0.5, 1.0)))
def test_overlong_penalty(factor):
    data = rollouts(5, turns=True)
    found = ours(data, estimator="gae", lam=0.5, overlong_penalty=(8, 4, factor))
    penalty = {"overlong_tokens": 4, "overlong_penalty_factor": factor, "max_new_tokens": 8}
    options = {"overlong_reward_penalty": True, **penalty}
    assert_equal(data, found, theirs(data, discount=1.0, gae_lambda=0.5, **options))


def groups_of(data, size):
    """The rollouts in groups of the same size."""
    rows = len(data) // size * size
    data = data.with_(**{name: x[:rows] for name, x in data.columns.items()})
    return data.with_(prompt_id=np.arange(rows) // size)


NORMS = {
    "group": ({}, {"mean_level": "group", "std_level": "group"}),
    "centred": ({"norm_std": "none"}, {"mean_level": "group", "std_level": None}),
    "biased": (
        {"numerics": {"norm_ddof": 0}},
        {"mean_level": "group", "std_level": "group", "std_unbiased": False},
    ),
    "batch": (
        {"norm_mean": "batch", "norm_std": "batch"},
        {"mean_level": "batch", "std_level": "batch"},
    ),
    "others": (
        {"norm_mean": "others", "norm_std": "none", "numerics": {"single": "raw"}},
        {"mean_level": "group", "mean_leave1out": True, "std_level": None},
    ),
}


@pytest.mark.parametrize(("norm", "size"), cases(NORMS, (1, 2, 4)))
def test_normalised_rewards(norm, size):
    data = groups_of(rollouts(6, turns=True), size)
    mine, other = NORMS[norm]
    numerics = {"norm_eps": 1e-5, **mine.get("numerics", {})}
    found = ours(data, estimator="grpo", **{**mine, "numerics": numerics})
    config = areal("api.cli_args").NormConfig(group_size=size, **other)
    options = {"reward_norm": config, "reward_clip": 20.0, "discount": 1.0, "gae_lambda": 1.0}
    expected = theirs(data, values=False, **options)
    lost = [not mask[-1] for mask in data.columns["response_mask"]]
    kept = torch.tensor(lost).logical_not()[:, None]
    expected = {name: x * kept for name, x in expected.items()}
    found = {name: x * kept for name, x in found.items()}
    assert_equal(data, found, expected, atol=2e-5)


@pytest.mark.parametrize("size", cases((2, 4)))
def test_batch_deviation_around_group_means(size):
    """It is that of rlpost's centred rewards around 0."""
    data = groups_of(rollouts(6), size)
    config = areal("api.cli_args").NormConfig("group", std_level="batch", group_size=size)
    options = {"reward_norm": config, "reward_clip": 20.0, "discount": 1.0, "gae_lambda": 1.0}
    expected = theirs(data, values=False, **options)
    found = ours(data, estimator="grpo", norm_std="none")
    rewards = found["advantages"][:, :1]
    deviation = (rewards.square().sum() / (len(data) - 1)).sqrt() + 1e-5
    assert_equal(data, {name: x / deviation for name, x in found.items()}, expected)


@pytest.mark.parametrize(("kind", "scale"), cases(KINDS, ("std", "none")))
def test_normalised_advantages(kind, scale):
    data = rollouts(7, **KINDS[kind])
    numerics = {"whiten_eps": 0.0, "whiten_scale": scale}
    found = ours(data, estimator="gae", lam=0.5, whiten_advantages=True, numerics=numerics)
    std = "batch" if scale == "std" else None
    config = areal("api.cli_args").NormConfig(mean_level="batch", std_level=std)
    expected = theirs(data, discount=1.0, gae_lambda=0.5, adv_norm=config)
    assert_equal(data, found, expected, rtol=5e-5)


@pytest.mark.parametrize(("kl", "apart"), cases(("k1", "k2", "k3"), (1.0, 60.0)))
def test_kl(kl, apart):
    data = rollouts(8, apart=apart)
    names = ("old_log_probs", "ref_log_probs")
    old, ref = (torch.from_numpy(np.concatenate(data.columns[name])) for name in names)
    clamps = {"kl_clamp": 10.0, "log_ratio_clamp": "never"}
    found = functional.kl(old, ref, kl_estimator=kl, **clamps)
    expected = areal("utils.data").KLEstimator(kl)(old, ref)
    torch.testing.assert_close(found, expected.double(), rtol=1e-5, atol=1e-6)


def mini_batch(seed, **options):
    data, rng = rollouts(seed, turns=True, empty=True, **options), np.random.default_rng(seed)
    return data.with_(advantages=[rng.normal(size=size) for size in data.lengths])


def padded(data, *names):
    return [data.padded(name) for name in names]


def our_loss(data, **options):
    """rlpost's loss of a mini-batch, and its gradient."""
    names = ("log_probs", "old_log_probs", "advantages", "response_mask")
    new, old, advantages, mask = (
        torch.from_numpy(np.concatenate(data.columns[name])) for name in names
    )
    new.requires_grad_()
    offsets = torch.tensor([0, *np.cumsum(data.lengths)])
    given = [old, advantages, offsets, mask]
    loss = functional.policy_loss(new, *given, aggregation="token-mean", **options).loss
    (gradient,) = torch.autograd.grad(loss, new)
    rows = data.with_(gradient=[*gradient.split(data.lengths)])
    return loss.detach(), rows.padded("gradient")


def their_loss(data, name, **options):
    """AReaL's loss of a mini-batch, and its gradient."""
    new, old, advantages = padded(data, "log_probs", "old_log_probs", "advantages")
    new.requires_grad_()
    if name == "ppo_actor_loss_fn":
        options |= {"proximal_logprobs": old, "old_logprobs": data.padded("infer_log_probs")}
    else:
        options["old_logprobs"] = old
    function = getattr(areal("utils.functional.functional"), name)
    loss, _ = function(logprobs=new, advantages=advantages, loss_mask=data.mask > 0, **options)
    (gradient,) = torch.autograd.grad(loss, new)
    return loss.detach(), gradient


def assert_same_loss(found, expected):
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-8)
    assert found[1].count_nonzero() > 20


def assert_equal_on_policy(data, found, expected):
    mask = data.mask > 0
    torch.testing.assert_close(found[mask], expected[mask], rtol=1e-5, atol=1e-6)


SIDES = ({"pg_clip": (0.1, 0.3)}, {"eps_clip": 0.1, "eps_clip_higher": 0.3})


@pytest.mark.parametrize(("dual", "sides"), cases((None, 1.2, 3.0), (False, True)))
def test_ppo(dual, sides):
    data = mini_batch(9)
    mine, other = SIDES if sides else ({"pg_clip": 0.2}, {"eps_clip": 0.2})
    found = our_loss(data, loss="ppo", dual_clip=dual, ratio_clamp="never", **mine)
    assert_same_loss(found, their_loss(data, "ppo_actor_loss_fn", c_clip=dual, **other))


@pytest.mark.parametrize("clip", cases((0.02, 0.2)))
def test_gspo(clip):
    data = mini_batch(10)
    level = {"importance_sampling_level": "sequence"}
    expected = their_loss(data, "ppo_actor_loss_fn", eps_clip=clip, **level)
    means = [
        np.full(len(mask), row @ mask / max(mask.sum(), 1))
        for row, mask in zip(data.columns["advantages"], data.columns["response_mask"], strict=True)
    ]
    found = our_loss(data.with_(advantages=means), loss="gspo", pg_clip=clip, ratio_clamp="never")
    assert_same_loss(found, expected)


@pytest.mark.parametrize("taus", cases(((1.0, 1.05), (2.0, 3.0))))
def test_sapo(taus):
    data = mini_batch(11)
    tau = {"tau_pos": taus[0], "tau_neg": taus[1]}
    found = our_loss(data, loss="sapo", ratio_clamp="never", **tau)
    assert_same_loss(found, their_loss(data, "sapo_loss_fn", tau_pos=taus[0], tau_neg=taus[1]))


TOKEN, GEOMETRIC = {"is_weight": "token"}, {"is_weight": "geometric"}
CORRECTIONS = {
    "clamped": ({**TOKEN, "is_cap": (0.9, 1.2)}, ("token", "clamp", "ratio", 0.9, 1.2)),
    "capped": ({**TOKEN, "is_cap": 1.2}, ("token", "clamp", "ratio", None, 1.2)),
    "sequences clamped": (
        {**GEOMETRIC, "is_cap": (0.95, 1.1)},
        ("sequence", "clamp", "ratio", 0.95, 1.1),
    ),
    "ratio": (
        {**TOKEN, "is_filter": ("token:ratio:0.8:1.2",)},
        ("token", "mask", "ratio", 0.8, 1.2),
    ),
    "k2": ({**TOKEN, "is_filter": ("token:k2::0.02",)}, ("token", "mask", "kl_k2", None, 0.02)),
    "mean ratio": (
        {**GEOMETRIC, "is_filter": ("geometric:ratio:0.9:1.1",)},
        ("sequence", "mask", "ratio", 0.9, 1.1, "mean"),
    ),
    "product": (
        {**GEOMETRIC, "is_filter": ("sequence:ratio:0.5:1.5",)},
        ("sequence", "mask", "ratio", 0.5, 1.5, "sum"),
    ),
    "largest": (
        {**GEOMETRIC, "is_filter": ("max:ratio::1.3",)},
        ("sequence", "mask", "ratio", None, 1.3, "max"),
    ),
    "sum of k2": (
        {**TOKEN, "is_filter": ("sequence:k2::0.1",)},
        ("sequence", "mask", "kl_k2", None, 0.1, "sum"),
    ),
}


@pytest.mark.parametrize("name", cases(CORRECTIONS))
def test_rollout_correction(name):
    data = rollouts(12, turns=True, empty=True)
    mine, other = CORRECTIONS[name]
    columns = ("is_weight", "final_response_mask")
    numerics = {"is_clamp": "never", "is_filter_clamp": "never"}
    table = enriched(data, *columns, numerics=numerics, **mine)
    weights, kept = (data.ragged(table[column]) for column in columns)
    names = ("level", "action", "metric", "lower", "upper", "agg")
    config = areal("api.cli_args").RejectionSamplingConfig(**dict(zip(names, other, strict=False)))
    old, infer = padded(data, "old_log_probs", "infer_log_probs")
    apply = areal("utils.functional.functional").apply_rejection_sampling
    found = apply(old, infer, data.mask, None, config)
    torch.testing.assert_close(kept, found.loss_mask.double(), rtol=0, atol=0)
    expected = found.behave_imp_weight.double()
    torch.testing.assert_close(weights * kept, expected, rtol=1e-5, atol=1e-6)
    assert found.filtered_fraction > 0
    assert expected.any()


@pytest.mark.parametrize("threshold", cases((1e-9, 0.001, 0.02)))
def test_m2po(threshold):
    """Its mean of d² below a threshold is a mean of k2 below the half; a batch is all tokens."""
    data = rollouts(15, turns=True, empty=True)
    table = enriched(
        data,
        "final_response_mask",
        is_filter=(f"batch:k2::{threshold / 2}",),
        numerics={"batch": "all"},
    )
    old, infer = padded(data, "old_log_probs", "infer_log_probs")
    mask = areal("trainer.ppo.actor")._apply_m2po_masking(infer, old, data.mask > 0, threshold)
    assert torch.equal(data.ragged(table["final_response_mask"]) > 0, mask)
    assert 0 < mask.sum() < data.mask.sum()


@pytest.mark.parametrize("how", cases(("loglinear", "linear")))
def test_proximal_log_probs(how):
    """Of each token's version; AReaL's `linear` is in its metrics alone."""
    data = rollouts(17, turns=True)
    rng = np.random.default_rng(0)
    versions = [rng.integers(2, 7, n) for n in data.lengths]
    data = data.with_(versions=versions, age=[6.0 - own for own in versions])
    new, infer, age = padded(data, "log_probs", "infer_log_probs", "age")
    approximate = areal("trainer.ppo.actor").compute_prox_logp_approximations
    expected = approximate(infer, new, data.padded("versions"), 6, method=how)[how]
    found = functional.padded.proximal_log_probs(new, infer, age, data.real, how=how)
    torch.testing.assert_close(found[data.real], expected[data.real], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", cases(("loglinear",)))
def test_the_loss_of_a_ratio_to_the_proximal_policy(how):
    """`prox_logp_method=loglinear` of its decoupled loss, without weights."""
    data = mini_batch(18)
    rng = np.random.default_rng(1)
    data = data.with_(age=[rng.integers(0, 5, n).astype(float) for n in data.lengths])
    new, infer, age = padded(data, "log_probs", "infer_log_probs", "age")
    proximal = functional.padded.proximal_log_probs(new, infer, age, data.mask, how=how)
    resolve = areal("trainer.ppo.actor")._resolve_proximal_logp
    theirs = resolve(None, how, infer, new, (9 - age).float(), 9)
    assert_equal_on_policy(data, proximal, theirs)


@pytest.mark.parametrize(
    ("measure", "level"), cases(("k1", "k3"), ("token", "geometric", "sequence", "max"))
)
def test_rejection_by_another_kl(measure, level):
    """rlpost has its masks with the log-probs of engine and trainer exchanged."""
    data = rollouts(14, turns=True, empty=True)
    exchanged = {"old_log_probs": "infer_log_probs", "infer_log_probs": "old_log_probs"}
    swapped = data.with_(**{name: data.columns[other] for name, other in exchanged.items()})
    table = enriched(swapped, "final_response_mask", is_filter=(f"{level}:{measure}::0.05",))
    of = {"geometric": "mean", "sequence": "sum", "max": "max", "token": "mean"}
    config = areal("api.cli_args").RejectionSamplingConfig(
        level="token" if level == "token" else "sequence",
        metric=f"kl_{measure}",
        upper=0.05,
        agg=of[level],
    )
    old, infer = padded(data, "old_log_probs", "infer_log_probs")
    apply = areal("utils.functional.functional").apply_rejection_sampling
    found = apply(old, infer, data.mask, None, config)
    assert torch.equal(data.ragged(table["final_response_mask"]).long(), found.loss_mask)
    assert found.filtered_fraction > 0


@pytest.mark.parametrize("name", cases(("clamped", "ratio", "mean ratio", "product")))
def test_decoupled_loss(name):
    """Rejected tokens count in the denominator."""
    data = mini_batch(13)
    mine, other = CORRECTIONS[name]
    columns = ("is_weight", "final_response_mask")
    numerics = {"is_clamp": "never", "is_filter_clamp": "never"}
    table = enriched(data, *columns, numerics=numerics, **mine)
    weights, kept = (
        torch.tensor(np.concatenate(table[column].to_numpy()), dtype=torch.float64)
        for column in columns
    )
    found = our_loss(data, loss="ppo", ratio_clamp="never", is_weight=weights * kept)
    names = ("level", "action", "metric", "lower", "upper", "agg")
    config = areal("api.cli_args").RejectionSamplingConfig(**dict(zip(names, other, strict=False)))
    expected = their_loss(data, "ppo_actor_loss_fn", eps_clip=0.2, rejection_sampling=config)
    assert_same_loss(found, expected)
