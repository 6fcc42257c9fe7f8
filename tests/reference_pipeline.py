"""The whole pipeline as a composition of the references; nothing here comes from rlpost.

`options` are the fields of a recipe as a plain dict, its numerics among them. A response without
a policy token has no place for its reward, but still has that reward as its score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import reference as ref
import reference_estimators as est
from reference import Response, Rollout, Tokens

Options = Mapping[str, Any]
Units = Sequence[str] | None

SCOPES = {"grpo": ("group", "group"), "step_reinforce": ("group", "group")}
WHITENED = {"reinforce_pp": "reinforce", "reinforce_pp_baseline": "dr_grpo"}
# What takes the place of rewards, which are then credited as by `reinforce`.
MADE = {
    "step_reinforce": est.step_returns,
    "gigpo": est.gigpo_rewards,
    "mt_grpo": est.mt_grpo_rewards,
    "turn_credit": est.turn_credit_rewards,
}
OF_ROLLOUTS = ("mt_grpo", "turn_credit")  # read the reward of a rollout
PLAIN = {**WHITENED, **dict.fromkeys(MADE, "reinforce")}
OUTCOMES = {
    "raw", "dr_grpo", "rloo", "opo", "gpg", "grpo_passk", "max_rl", "gdpo", "hierarchical_grpo",
    "rae", "gar",
}  # fmt: skip
KNOBS = {
    "gae": ("gamma", "lam", "lambda_policy", "lambda_value", "length_adaptive_alpha"),
    "vtrace": ("gamma",),
    "reinforce": ("gamma",),
    "grpo": ("gamma",),
    "remax": ("gamma",),
    "agentic_reinforce": ("gamma",),
    "turn_gae": ("gamma", "lam"),
    "hierarchical_grpo": ("episode_domains",),
    "optimal_token_baseline": ("gamma",),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """All that can be written, and what the summary is made from."""

    rows: list[Response]
    """With their sample mask, in the recipe's batches."""
    shaped: list[float]
    normalised: list[float]
    rewards: list[float]
    kl: Tokens | None
    betas: list[float] | None
    unclipped_token_rewards: Tokens
    token_rewards: Tokens
    unclipped: Tokens
    raw_advantages: Tokens
    advantages: Tokens
    returns: Tokens
    weights: list[float]


def pipeline(rows: Rollout, options: Options, units: Units = None) -> Result:
    """Stages 1 to 10; `units` are rollout ids, where several rows are one rollout."""
    rows = with_components(rows, options)
    rows = in_batches(rows, options.get("numerics", {}).get("batch", "step"))
    rows = sample_masked(rows, options, units)
    if options.get("bootstrap"):
        rows = [replace(r, behind=value_behind(r, options["bootstrap"])) for r in rows]
    shaped = of_rollouts(rows, [r.reward for r in rows], options, units)
    if options.get("overlong_penalty"):
        joined, places = one_row_each(rows, shaped, units)
        penalties = ref.overlong_penalties(joined, *options["overlong_penalty"])
        shaped = [x + penalties[place] for x, place in zip(shaped, places, strict=True)]
    if process_way(options) == "response":
        sums = of_rollouts(rows, [process_sum(r) for r in rows], options, units)
        shaped = [x + own for x, own in zip(shaped, sums, strict=True)]
    if options.get("estimator") in MADE:
        shaped = made_rewards(rows, shaped, options)
    normalised = normalised_rewards(rows, shaped, options, units)
    bound = options.get("reward_clip") or float("inf")
    rewards = ref.clipped(normalised, bound)
    kl, betas = divergences(rows, options)
    bare = [replace(r, token_rewards=None) for r in rows]
    placed = rows if process_way(options) == "token" else bare
    unclipped = ref.token_rewards(placed, rewards, kl, betas)
    token_rewards = [ref.clipped(xs, bound) for xs in unclipped]
    if options.get("whiten_rewards"):
        token_rewards = ref.whitened_rewards(rows, token_rewards, **_whitening(options))
    raw, returns = estimated(rows, token_rewards, rewards, options, units)
    advantages, before = raw, raw
    name = options.get("estimator", "grpo")
    whiten = options.get("whiten_advantages")
    if name in WHITENED if whiten is None else whiten:
        before = ref.whitened_advantages(rows, raw, **_whitening(options))
        returns = before if name == "reinforce_pp_baseline" else returns
    if options.get("advantage_clip"):
        advantages = [ref.clipped(xs, options["advantage_clip"]) for xs in before]
    else:
        advantages = before
    return Result(
        rows=rows, shaped=shaped, normalised=normalised, rewards=rewards, kl=kl, betas=betas,
        unclipped_token_rewards=unclipped, token_rewards=token_rewards, unclipped=before,
        raw_advantages=raw, advantages=advantages, returns=returns, weights=weights(rows, options),
    )  # fmt: skip


def value_behind(row: Response, where: str) -> float:
    """The value behind the end of a truncated response: the column's, or the last of its row."""
    if row.finish_reason != "length":
        return 0.0
    if where == "column":
        return row.next_value
    return row.values[-1] if row.values else 0.0


def made_rewards(rows: Rollout, shaped: list[float], options: Options) -> list[float]:
    """What an estimator of steps makes of the rows that count; the others get 0."""
    made, places, name = [0.0] * len(rows), counted(rows, options), options["estimator"]
    if name in OF_ROLLOUTS:
        shaped = of_rollouts(rows, shaped, options, [r.traj_id for r in rows])
    some = [replace(rows[i], reward=shaped[i]) for i in places]
    if process_way(options) == "response":
        some = [replace(r, step_score=r.step_score + process_sum(r)) for r in some]
    eps = options.get("numerics", {}).get("norm_eps", 1e-6)
    knobs = {"eps": eps} if name in ("gigpo", "mt_grpo") else {}
    found = MADE[name](some, **knobs)
    for i, x in zip(places, found, strict=True):
        made[i] = x
    return made


def process_way(options: Options) -> str:
    """How process rewards are added: to the response, to tokens, or not at all."""
    way = options.get("numerics", {}).get("process_rewards", "auto")
    name = options.get("estimator", "grpo")
    if name in ("gdpo", "opd"):
        return "none"
    if way != "auto":
        return str(way)
    if name in OUTCOMES or name in MADE or name == "reinforce_pp_baseline":
        return "response"
    if name in ("gae", "turn_gae", "vtrace", "remax", "optimal_token_baseline"):
        return "token"
    return "token" if scopes_of(options) == ("none", "none") else "response"


def process_sum(row: Response) -> float:
    """All process rewards of a response, those on observation tokens too."""
    return sum(row.token_rewards or [])


def of_rollouts(rows: Rollout, xs: list[float], options: Options, units: Units) -> list[float]:
    """Each row's rollout's number: the last, the sum or the mean of its rows'."""
    if units is None:
        return xs
    keys = [(*key, unit) for key, unit in zip(ref.groups(rows), units, strict=True)]
    if options.get("rollout_reward") == "last":
        turns = [(place(r), i, x) for i, (r, x) in enumerate(zip(rows, xs, strict=True))]
        return [x for *_, x in ref.by_key(keys, turns, max)]
    rule = math.fsum if options.get("rollout_reward") == "sum" else ref.mean
    return ref.by_key(keys, xs, rule)


def place(row: Response) -> tuple[float, ...]:
    """What orders the rows of a rollout."""
    return row.turn, row.length, len(row.mask), row.reward


def with_components(rows: Rollout, options: Options) -> list[Response]:
    """The rows with the weighted sum of their reward components, where a recipe has any."""
    weights = component_weights(options)
    if not weights:
        return list(rows)
    return [replace(r, reward=sum(w * r.components[k] for k, w in weights.items())) for r in rows]


def component_weights(options: Options) -> dict[str, float]:
    names = options.get("reward_components") or ()
    return dict(zip(names, options.get("component_weights") or [1.0] * len(names), strict=True))


def in_batches(rows: Rollout, scope: str) -> list[Response]:
    """The rows with the batches that the recipe means; domains in order of first appearance."""
    domains = list(dict.fromkeys(r.domain for r in rows))
    keys = {
        "step": lambda r: r.batch,
        "step_domain": lambda r: (r.batch, domains.index(r.domain)),
        "all": lambda _: 0,
    }
    return [replace(r, batch=keys[scope](r)) for r in rows]


def one_row_each(
    rows: Rollout, values: Sequence[float], units: Units
) -> tuple[list[Response], list[int]]:
    """A row per rollout of a group, and each row's new place.

    Its reward is the mean of its rows', its tokens are those of all its rows, and the rest is that
    of its last row.
    """
    keys = [
        (*key, unit) for key, unit in zip(ref.groups(rows), units or range(len(rows)), strict=True)
    ]
    members = ref.rows_by(keys)
    places = {key: place for place, key in enumerate(members)}
    joined = [
        replace(
            rows[max(rs, key=lambda i: (place(rows[i]), i))],
            reward=ref.mean([values[i] for i in rs]),
            mask=[m for i in rs for m in rows[i].mask],
        )
        for rs in members.values()
    ]
    return joined, [places[key] for key in keys]


def sample_masked(rows: list[Response], options: Options, units: Units) -> list[Response]:
    before, own = rows, of_rollouts(rows, [r.reward for r in rows], options, units)
    rows = [replace(r, reward=x) for r, x in zip(rows, own, strict=True)]
    joined, places = one_row_each(rows, own, units)
    masks = []
    if options.get("drop_longer"):
        masks.append(ref.shorter_kept(joined, options["drop_longer"]))
    if options.get("drop_difficulty"):
        masks.append(ref.difficulty_kept(joined, *options["drop_difficulty"]))
    if options.get("drop_long_errors"):
        masks.append(ref.error_max_len_kept(joined, options["drop_long_errors"]))
    if options.get("drop_equal_rewards"):
        unused = process_way(options) == "none"
        total = [r.reward + (0.0 if unused else process_sum(r)) for r in before]
        total = of_rollouts(rows, total, options, units)
        masks.append(ref.varied_group_kept(one_row_each(rows, total, units)[0]))
    if options.get("drop_single"):
        masks.append(ref.in_company_kept(joined))
    if options.get("drop_truncated"):
        masks.append(ref.finished_kept(joined))
    return ref.with_sample_mask(before, *([kept[place] for place in places] for kept in masks))


def counted(rows: Rollout, options: Options) -> list[int]:
    """The rows that take part in reward statistics."""
    return [i for i, r in enumerate(rows) if r.kept or not options.get("mask_before_norm")]


def normalised_rewards(
    rows: Rollout, rewards: list[float], options: Options, units: Units
) -> list[float]:
    """Rows that do not count get 0."""
    mean_of, std_of = scopes_of(options)
    if (mean_of, std_of) == ("none", "none"):
        return rewards
    eps = options.get("numerics", {}).get("norm_eps", 1e-6)
    places, out = counted(rows, options), [0.0] * len(rows)
    some, xs = [rows[i] for i in places], [rewards[i] for i in places]
    if units is None:
        found = ref.normalised_rewards(some, xs, mean_of=mean_of, std_of=std_of, eps=eps)
    else:
        assert mean_of == std_of == "group"
        found = over_rollouts(some, xs, [units[i] for i in places], eps)
    for i, x in zip(places, found, strict=True):
        out[i] = x
    return out


def scopes_of(options: Options) -> tuple[str, str]:
    """The scopes of mean and deviation in the normalisation of rewards."""
    usual = SCOPES.get(options.get("estimator", "grpo"), ("none", "none"))
    names = ("norm_mean", "norm_std")
    mean_of, std_of = (options.get(n) or scope for n, scope in zip(names, usual, strict=True))
    return mean_of, std_of


def over_rollouts(rows: Rollout, xs: list[float], units: Sequence[str], eps: float) -> list[float]:
    """A rollout's reward against mean and deviation of its group's rollouts."""
    joined, places = one_row_each(rows, xs, units)
    keys, means = ref.groups(joined), [r.reward for r in joined]
    centres, scales = ref.by_key(keys, means, ref.mean), ref.by_key(keys, means, ref.std)
    return [
        (x - centres[place]) / (scales[place] + eps) if scales[place] > 0 else 0.0
        for x, place in zip(xs, places, strict=True)
    ]


def divergences(rows: Rollout, options: Options) -> tuple[Tokens | None, list[float] | None]:
    """KL per token where both policies are known, and the β of each response."""
    if any(r.old is None or r.ref is None for r in rows):
        return None, None
    bound = options.get("numerics", {}).get("log_ratio_clamp", 40.0)
    kl = ref.token_kl(rows, options.get("kl_estimator", "k1"), bound=bound)
    beta, adapts = options.get("kl_coef", 0.0), options.get("kl_target")
    if adapts is None:
        return kl, [beta] * len(rows)
    target, horizon = adapts
    return kl, ref.adaptive_betas(rows, kl, beta=beta, target=target, horizon=horizon or 10000.0)


def estimated(
    rows: Rollout, token_rewards: Tokens, rewards: list[float], options: Options, units: Units
) -> est.Credit:
    name = options.get("estimator", "grpo")
    name = PLAIN.get(name, name)
    given = {**options, **options.get("options", {})}
    knobs = {knob: given[knob] for knob in KNOBS.get(name, ()) if knob in given}
    if name in ("gdpo", "grpo_passk"):
        knobs["eps"] = options.get("numerics", {}).get("norm_eps", 1e-6)
    if name == "gdpo":
        knobs["weights"] = component_weights(options)
    if name == "opd":
        names = {"ref_log_probs": "ref"}
        knobs["coefs"] = {names[key]: weight for key, weight in options["teachers"].items()}
        knobs["estimator"] = options.get("kl_estimator", "k1")
    if name not in OUTCOMES:
        return est.ESTIMATORS[name](rows, token_rewards, **knobs)
    places = counted(rows, options)
    scores = [
        s if r.length else x
        for s, r, x in zip(est.scores(token_rewards), rows, rewards, strict=True)
    ]
    some, own = [rows[i] for i in places], None if units is None else [units[i] for i in places]
    joined, spots = one_row_each(some, [scores[i] for i in places], own)
    lengths = [r.length if name == "opo" else 1 for r in joined]
    alone = [replace(r, mask=[1] * n, kept=True) for r, n in zip(joined, lengths, strict=True)]
    found, _ = est.ESTIMATORS[name](alone, [[r.reward] for r in joined], **knobs)
    credit = [0.0] * len(rows)
    for i, spot in zip(places, spots, strict=True):
        credit[i] = next(iter(found[spot]), 0.0)  # without a token, nothing is credited
    return est.outcome(rows, credit)


def weights(rows: Rollout, options: Options) -> list[float]:
    chosen = []
    if options.get("difficulty_weight"):
        chosen.append(ref.difficulty_weights(rows))
    if options.get("length_weight"):
        chosen.append(ref.length_weights(rows))
    return ref.sample_weights(rows, *chosen) if chosen else [1.0] * len(rows)


def _whitening(options: Options) -> dict[str, float]:
    return {"eps": options.get("numerics", {}).get("whiten_eps", 1e-8)}
