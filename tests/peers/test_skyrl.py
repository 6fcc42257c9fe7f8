"""Estimators, KL, losses and rollout correction against SkyRL 0.3, which has no preset.

SkyRL's side runs `RayPPOTrainer.apply_reward_kl_penalty` and `compute_advantages_and_returns`, and
the functions of its loss registry on advantages that
`apply_loss_reduction_to_advantages_minibatch` divides, on right-aligned float64 tensors. rlpost's
side is `enrich` and `functional.policy_loss`.

Equal, by rlpost's options: grpo, rloo, maxrl, reinforce++ and gae; the KL penalty by k1, k2, k3 and
abs; the last step of a trajectory as its reward; regular, dual_clip, gspo, cispo, sapo, dppo,
importance_sampling, rollout_is, clip_cov and kl_cov with four reductions; truncated weights, masks.

Where SkyRL differs:

- Its response mask has observations, too: estimators see them as policy tokens (their values in
  gae, their place in whitening). rlpost has the numbers with a mask of ones.
- A single response keeps its reward in grpo and maxrl (`single`), not in rloo.
- maxrl divides by mean + 1e-6, and divides by negative means, which rlpost does not.
- Reductions divide advantages, not losses. So the term of kl_cov that has no advantage is a sum
  over tokens, and the covariances of clip_cov are of divided advantages.
- sequence_mean and prompt_mean divide by all responses and prompts (`agg_rows`).
- dppo has a gradient through the ratio: binary_tv is rlpost's `dppo` without its square; binary_kl
  has the gradient of `dppo_kl`, and another loss.
- importance_sampling is ppo without a clip; cross_entropy has no loss in rlpost.
"""

from importlib.util import find_spec
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peers.as_rows import enriched
from peers.parts import part
from peers.peer_rollouts import rollouts

from rlpost import functional

pytestmark = pytest.mark.skipif(
    find_spec("skyrl") is None,
    reason="skyrl is not installed; `python -m tests.peers skyrl` runs this with it",
)
TRAIN = "skyrl.backends.skyrl_train"
BARE = ("skyrl", "skyrl.backends", TRAIN, f"{TRAIN}.utils", "skyrl.train", "skyrl.train.dataset")
ABSENT = (
    *(f"{TRAIN}.{name}" for name in ("distributed", "inference_servers", "workers", "utils.io")),
    *(f"skyrl.train.{name}" for name in ("evaluate", "generators", "utils")),
    "skyrl_gym",
    "transformers",
)
KINDS = {
    "text": {},
    "observations": {"turns": True},
    "empty": {"turns": True, "empty": True},
    "process": {"turns": True, "process": True},
}


def cases(*columns):
    """Parameters whose ids begin with the framework's name."""
    return [pytest.param(*one, id="skyrl-" + "-".join(map(str, one))) for one in product(*columns)]


def skyrl(name):
    return part(name, bare=BARE, absent=ABSENT)


def losses():
    return skyrl(f"{TRAIN}.utils.ppo_utils")


def right(data, rows):
    """Rows of tokens as SkyRL has them: [N, T] float64, padded on the left."""
    out = torch.zeros(len(data), max(data.lengths), dtype=torch.float64)
    for i, row in enumerate(rows):
        out[i, out.shape[1] - len(row) :] = torch.as_tensor(np.asarray(row))
    return out


class Batch(dict):
    """What the trainer reads of its TrainingInputBatch."""

    def __init__(self, data, **metadata):
        scores = right(data, data.columns.get("token_rewards", [np.zeros(n) for n in data.lengths]))
        scores[:, -1] += data.of_responses("reward")
        super().__init__(
            rewards=scores,
            response_mask=right(data, [np.ones(length) for length in data.lengths]),
            loss_mask=right(data, data.columns["response_mask"]),
            values=right(data, data.columns["values"]),
            action_log_probs=right(data, data.columns["old_log_probs"]),
            base_action_log_probs=right(data, data.columns["ref_log_probs"]),
        )
        self.metadata = {"uids": data.columns["prompt_id"], "avg_response_length": 0.0, **metadata}

    def to(self, _):
        return self


def theirs(data, *, kl=False, steps=None, **options):
    """Advantages and returns of SkyRL's trainer."""
    trainer, utils = skyrl("skyrl.train.trainer").RayPPOTrainer, losses()
    algorithm = utils.AlgorithmConfig(**options)
    generator = SimpleNamespace(step_wise_trajectories=steps is not None)
    cfg = SimpleNamespace(trainer=SimpleNamespace(algorithm=algorithm), generator=generator)
    self = SimpleNamespace(cfg=cfg, all_metrics={}, reward_kl_controller=None)
    batch = Batch(data, is_last_step=steps)
    if kl:
        batch = trainer.apply_reward_kl_penalty(self, batch)
    batch = trainer.compute_advantages_and_returns(self, batch)
    return {name: batch[name] for name in ("advantages", "returns")}


def ours(data, **options):
    table = enriched(data, "advantages", "returns", **options)
    return {name: right(data, table[name].to_pylist()) for name in ("advantages", "returns")}


def assert_equal(data, found, expected, names=("advantages", "returns"), **tolerance):
    """Equal on policy tokens."""
    mask = right(data, data.columns["response_mask"]) > 0
    assert mask.sum() > 60
    tolerance = {"rtol": 2e-5, "atol": 2e-6, **tolerance}
    for name in names:
        torch.testing.assert_close(found[name][mask], expected[name][mask], **tolerance)


def all_policy(data):
    """The rollouts with observations as policy tokens."""
    return data.with_(response_mask=[np.ones(length, np.int64) for length in data.lengths])


GRPO = {"single": "raw", "outcome": "response"}


@pytest.mark.parametrize(("kind", "by_std"), cases(KINDS, (True, False)))
def test_grpo(kind, by_std):
    data = rollouts(0, **KINDS[kind])
    options = {} if by_std else {"norm_std": "none"}
    found = ours(data, estimator="grpo", numerics=GRPO, **options)
    assert_equal(data, found, theirs(data, grpo_norm_by_std=by_std))


@pytest.mark.parametrize("kind", cases(KINDS))
def test_rloo(kind):
    data = rollouts(1, **KINDS[kind])
    found = ours(data, estimator="rloo")
    assert_equal(data, found, theirs(data, advantage_estimator="rloo"))


def group_means(data):
    groups, rewards = data.columns["prompt_id"], np.asarray(data.columns["reward"])
    return torch.tensor([rewards[groups == one].mean() for one in groups])[:, None]


@pytest.mark.parametrize("kind", cases(("text", "observations", "empty")))
def test_maxrl(kind):
    data = rollouts(2, single=False, **KINDS[kind])
    expected = theirs(data, advantage_estimator="maxrl")
    found, means = ours(data, estimator="max_rl"), group_means(data)
    assert (means < 0).any(), "no group of a negative mean"
    assert_equal(data, found, {k: x * (means > 0) for k, x in expected.items()}, rtol=1e-4)
    negative = right(data, data.columns["response_mask"]) * (means < 0) > 0
    assert expected["advantages"][negative].any()
    assert not found["advantages"][negative].any()


@pytest.mark.parametrize(("kind", "gamma"), cases(KINDS, (1.0, 0.9)))
def test_reinforce_pp(kind, gamma):
    data = all_policy(rollouts(3, **KINDS[kind]))
    found = ours(data, estimator="reinforce_pp", gamma=gamma)
    assert_equal(data, found, theirs(data, advantage_estimator="reinforce++", gamma=gamma))


@pytest.mark.parametrize(("kind", "gamma", "lam"), cases(KINDS, (1.0, 0.9), (1.0, 0.5, 0.0)))
def test_gae(kind, gamma, lam):
    data = all_policy(rollouts(4, **KINDS[kind]))
    found = ours(data, estimator="gae", gamma=gamma, lam=lam, whiten_advantages=True)
    expected = theirs(data, advantage_estimator="gae", gamma=gamma, lambd=lam)
    assert_equal(data, found, expected)


@pytest.mark.parametrize("seed", cases((5, 6)))
def test_gae_of_observations(seed):
    """Returns with the states of observations, of which only policy tokens are compared."""
    data = rollouts(seed, turns=True)
    numerics = {"observations": "policy", "terminal_reward": "last_token"}
    found = ours(data, estimator="gae", gamma=0.9, lam=0.5, numerics=numerics)
    expected = theirs(data, advantage_estimator="gae", gamma=0.9, lambd=0.5)
    assert_equal(data, found, expected, ("returns",))


KL = ("k1", "k2", "k3", "abs")
KL_NUMERICS = {
    "log_ratio_clamp": "k3:20",
    "kl_credit": "response",
}


@pytest.mark.parametrize(("kl", "apart"), cases(KL, (1.0, 60.0)))
def test_kl_in_the_reward(kl, apart):
    data = rollouts(6, turns=True, apart=apart)
    numerics = {**GRPO, **KL_NUMERICS}
    found = ours(data, estimator="grpo", kl_estimator=kl, kl_coef=0.05, numerics=numerics)
    options = {"kl_estimator_type": kl, "kl_loss_coef": 0.05}
    assert_equal(data, found, theirs(data, kl=True, **options))


@pytest.mark.parametrize(("estimator", "seed"), cases(("grpo", "rloo"), (0, 1)))
def test_last_step_of_a_trajectory(estimator, seed):
    data, rng = rollouts(seed, turns=True), np.random.default_rng(seed)
    order = np.argsort(data.columns["prompt_id"], kind="stable")
    data = data.with_(
        **{
            name: [x[i] for i in order] if isinstance(x, list) else x[order]
            for name, x in data.columns.items()
        }
    )
    groups = data.columns["prompt_id"]
    ends = rng.random(len(data)) < 0.5
    ends[:-1] |= groups[1:] != groups[:-1]
    ends[-1] = True
    trajectory = np.concatenate([[0], np.cumsum(ends)[:-1]])
    data = data.with_(rollout=trajectory)
    found = ours(
        data,
        estimator=estimator,
        unit="rollout",
        columns={"rollout": "rollout"},
        rollout_reward="last",
        numerics=GRPO if estimator == "grpo" else {},
    )
    assert_equal(data, found, theirs(data, steps=ends.tolist(), advantage_estimator=estimator))


REDUCTIONS = {
    "token_mean": {"aggregation": "token-mean"},
    "sequence_mean": {"aggregation": "seq-mean-token-mean", "agg_rows": "all"},
    "seq_mean_token_sum_norm": {
        "aggregation": "seq-mean-token-sum-norm",
        "agg_norm": "rows",
        "agg_rows": "all",
        "agg_length": 40,
    },
    "prompt_mean": {"aggregation": "prompt-mean", "agg_rows": "all"},
}
NEVER = {"pg_clip": "never", "ratio_clamp": "never"}
SIDES = ({"pg_clip": (0.1, 0.3)}, {"eps_clip_low": 0.1, "eps_clip_high": 0.3})
LOSSES = {
    "regular": ({"loss": "ppo", **SIDES[0]}, SIDES[1]),
    "dual_clip": ({"loss": "ppo", "dual_clip": 1.2}, {"clip_ratio_c": 1.2}),
    "gspo": (
        {"loss": "gspo", "ratio_clamp": "never", "ratio_cap": 10.0, **SIDES[0]},
        SIDES[1],
    ),
    "cispo": (
        {"loss": "cispo", "pg_clip": (0.3, 0.4)},
        {"cispo": ("CISPOConfig", {"cispo_eps_clip_low": 0.3, "cispo_eps_clip_high": 0.4})},
    ),
    "sapo": (
        {"loss": "sapo", "tau_pos": 2.0, "tau_neg": 3.0},
        {"sapo": ("SAPOConfig", {"tau_pos": 2.0, "tau_neg": 3.0})},
    ),
    "dppo": (
        {
            "loss": "dppo",
            "square_coef": 0.0,
            "behaviour": "infer",
            "ratio_clamp": 20.0,
            "prob_mask": (0.05, 0.1),
        },
        {"dppo": ("DPPOConfig", {"delta_low": 0.05, "delta_high": 0.1})},
    ),
    "importance_sampling": ({"loss": "ppo", **NEVER}, {}),
    "rollout_is": ({"loss": "rollout_is", "behaviour": "infer", **SIDES[0]}, SIDES[1]),
}
APART = {
    "clip_cov": "test_clip_cov",
    "kl_cov": "test_kl_cov",
    "cross_entropy": "of supervised fine-tuning",
}


def mini_batch(seed, **options):
    data, rng = rollouts(seed, turns=True, empty=True, **options), np.random.default_rng(seed)
    order = np.argsort(data.columns["prompt_id"], kind="stable")
    data = data.with_(
        **{
            name: [x[i] for i in order] if isinstance(x, list) else x[order]
            for name, x in data.columns.items()
        }
    )
    return data.with_(advantages=[rng.normal(size=size) for size in data.lengths])


def prompts(data):
    """The first and the next response of each prompt."""
    groups = data.columns["prompt_id"]
    starts = [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist(), len(data)]
    return list(pairwise(starts))


def their_loss(data, name, reduction, **options):
    """SkyRL's loss of a mini-batch, and its gradient."""
    utils = losses()
    config = skyrl("skyrl.train.config.config")
    made = {
        k: getattr(config, x[0])(**x[1]) if isinstance(x, tuple) else x for k, x in options.items()
    }
    algorithm = config.AlgorithmConfig(policy_loss_type=name, loss_reduction=reduction, **made)
    mask = right(data, data.columns["response_mask"])
    advantages = utils.apply_loss_reduction_to_advantages_minibatch(
        right(data, data.columns["advantages"]), mask, reduction, 1, 40, prompts(data)
    )
    new = right(data, data.columns["log_probs"]).requires_grad_()
    old, infer = (right(data, data.columns[one]) for one in ("old_log_probs", "infer_log_probs"))
    loss, _ = utils.PolicyLossRegistry.get(name)(new, old, advantages, algorithm, mask, infer)
    (gradient,) = torch.autograd.grad(loss, new)
    return loss.detach(), gradient


def our_loss(data, reduction, **options):
    """rlpost's loss of a mini-batch, and its gradient."""
    names = ("log_probs", "old_log_probs", "advantages", "infer_log_probs", "response_mask")
    new, old, advantages, infer, mask = (
        torch.from_numpy(np.concatenate(data.columns[name])) for name in names
    )
    new.requires_grad_()
    offsets = torch.tensor([0, *np.cumsum(data.lengths)])
    loss = functional.policy_loss(
        new,
        old,
        advantages,
        offsets,
        mask,
        infer_log_probs=infer,
        units=data.columns["prompt_id"],
        **REDUCTIONS[reduction],
        **options,
    ).loss
    (gradient,) = torch.autograd.grad(loss, new)
    return loss.detach(), right(data, gradient.split(data.lengths))


def assert_same_loss(found, expected):
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-8)
    assert found[1].count_nonzero() > 20


@pytest.mark.parametrize(("name", "reduction"), cases(LOSSES, REDUCTIONS))
def test_losses(name, reduction):
    data = mini_batch(7)
    mine, other = LOSSES[name]
    found = our_loss(data, reduction, **mine)
    assert_same_loss(found, their_loss(data, name, reduction, **other))


@pytest.mark.parametrize("name", cases(("regular", "cispo", "sapo")))
def test_losses_far_apart(name):
    data = mini_batch(8, apart=60.0)
    new = [
        np.minimum(x + y, 0.0)
        for x, y in zip(data.columns["log_probs"], data.columns["ref_log_probs"], strict=True)
    ]
    data = data.with_(log_probs=new)
    mine, other = LOSSES[name]
    (found, _), (expected, _) = (
        our_loss(data, "token_mean", **mine),
        their_loss(data, name, "token_mean", **other),
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("bound", cases((0.01, 0.05)))
def test_gradient_of_binary_kl(bound):
    data = mini_batch(9)
    options = {"kl_mask": (bound, 2 * bound), "weight_cap": 1e9}
    found = our_loss(data, "token_mean", loss="dppo_kl", behaviour="infer", **options)
    dppo = ("DPPOConfig", {"dppo_type": "binary_kl", "delta_low": bound, "delta_high": 2 * bound})
    expected = their_loss(data, "dppo", "token_mean", dppo=dppo)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-8)
    assert found[0] != pytest.approx(expected[0].item())


@pytest.mark.parametrize("share", cases((0.02, 0.2)))
def test_kl_cov(share):
    """SkyRL's penalty is a sum over tokens, so its coefficient is one per token here."""
    data = mini_batch(10)
    tokens = int(sum(mask.sum() for mask in data.columns["response_mask"]))
    options = {"share": share, "coef": 0.01 * tokens}
    found = our_loss(data, "token_mean", loss="kl_cov", **options)
    config = ("KLCovConfig", {"kl_cov_frac": share, "ppo_kl_coef": 0.01})
    assert_same_loss(found, their_loss(data, "kl_cov", "token_mean", kl_cov=config))


@pytest.mark.parametrize("bounds", cases(((0.1, 0.8), (0.5, 5.0))))
def test_clip_cov(bounds):
    """All candidates are selected; SkyRL's bounds are those of advantages / tokens."""
    data = mini_batch(11)
    tokens = int(sum(mask.sum() for mask in data.columns["response_mask"]))
    low, high = bounds
    options = {"cov": (low, high), "share": 1.0}
    found = our_loss(data, "token_mean", loss="clip_cov", **options)
    config = {"clip_ratio": 1.0, "clip_cov_lb": low / tokens, "clip_cov_ub": high / tokens}
    expected = their_loss(data, "clip_cov", "token_mean", clip_cov=("ClipCovConfig", config))
    assert_same_loss(found, expected)


CORRECTIONS = {
    "token": (
        {"is_weight": "token", "is_cap": 1.2},
        {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 1.2},
    ),
    "sequence": (
        {"is_weight": "sequence", "is_cap": 1.5},
        {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": 1.5},
    ),
    "geometric": (
        {"is_filter": ("geometric:ratio:0.95:1.05",)},
        {"sequence_mask_metric": "geometric", "geo_mask_low": 0.95, "geo_mask_high": 1.05},
    ),
    "product": ({"is_filter": ("sequence:ratio:0.5:2",)}, {"sequence_mask_metric": "product"}),
    "outlier": ({"is_filter": ("max:ratio::1.3",)}, {"outlier_token_is_threshold_high": 1.3}),
    "mask": (
        {"is_filter": ("token:ratio:0.8:1.2",)},
        {"token_mask_is_threshold_low": 0.8, "token_mask_is_threshold_high": 1.2},
    ),
}


@pytest.mark.parametrize(
    ("name", "apart"), [*cases(CORRECTIONS, (1.0,)), *cases(("token", "sequence"), (60.0,))]
)
def test_rollout_correction(name, apart):
    data = rollouts(12, turns=True, empty=True, apart=apart)
    mine, other = CORRECTIONS[name]
    column = "is_weight" if "is_weight" in mine else "final_response_mask"
    numerics = {"is_clamp": 20.0, "is_filter_clamp": 20.0}
    table = enriched(data, column, numerics=numerics, **mine)
    found = right(data, table[column].to_pylist())
    config = skyrl("skyrl.train.config.config").OffPolicyCorrectionConfig(**other)
    correct = skyrl(f"{TRAIN}.utils.off_policy_correction_utils").compute_off_policy_correction
    mask = right(data, data.columns["response_mask"])
    old, infer = (right(data, data.columns[one]) for one in ("old_log_probs", "infer_log_probs"))
    weights, _, kept = correct(old, infer, mask, config)
    expected = kept if weights is None else weights * mask
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-7)
    assert (expected != mask).any()
    assert expected.any()


@pytest.mark.parametrize("kind", cases(("registries",)))
def test_every_estimator_and_loss_has_a_case(kind):
    utils = losses()
    estimators = {"grpo", "rloo", "maxrl", "reinforce++", "gae"}
    assert {*utils.AdvantageEstimatorRegistry.list_available()} == estimators, kind
    assert {*utils.PolicyLossRegistry.list_available()} == {*LOSSES, *APART}
