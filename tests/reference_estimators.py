"""Slow float64 loops for every estimator; nothing here comes from rlpost.

Every estimator takes the responses and their token rewards (`reference.token_rewards`) and gives
(advantages, returns), both 0 where the final mask is 0. A dropped response still counts in the
statistics of its group. S_i is the sum of a response's token rewards.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from reference import (
    Response,
    Rollout,
    Tokens,
    by_key,
    clamp,
    final_masked,
    groups,
    mean,
    row_kl,
    rows_by,
    std,
    whitened_advantages,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

Credit = tuple[Tokens, Tokens]


# Shared parts


def scores(token_rewards: Tokens) -> list[float]:
    """S_i = Σ_t r_t."""
    return [math.fsum(row) for row in token_rewards]


def spread_out(rows: Rollout, per_response: Sequence[float]) -> Tokens:
    """Each response's number on all its tokens under the final mask."""
    return final_masked(rows, [[x] * len(r.mask) for x, r in zip(per_response, rows, strict=True)])


def outcome(rows: Rollout, per_response: Sequence[float]) -> Credit:
    """One advantage for a whole response, which is the return too."""
    advantages = spread_out(rows, per_response)
    return advantages, advantages


def z_scores(
    keys: Sequence[Hashable], xs: Sequence[float], *, scale: str = "std", eps: float = 1e-6
) -> list[float]:
    """(x - mean) / (std + ε) among equal keys, 0 where std is 0; `none` only centres."""
    means, stds = by_key(keys, xs, mean), by_key(keys, xs, std)
    if scale == "none":
        return [x - m for x, m in zip(xs, means, strict=True)]
    return [(x - m) / (s + eps) if s > 0 else 0.0 for x, m, s in zip(xs, means, stds, strict=True)]


def returns_to_go(rows: Rollout, token_rewards: Tokens, gamma: float = 1.0) -> Tokens:
    """G_t = r_t + γ·G_{t+1} from policy token to policy token, observations skipped."""
    out = []
    for r, rewards in zip(rows, token_rewards, strict=True):
        row, running = [0.0] * len(rewards), r.behind
        for t in reversed(range(len(rewards))):
            if r.mask[t]:
                running = rewards[t] + gamma * running
                row[t] = running
        out.append(row)
    return out


# Token-level estimators


def reinforce(rows: Rollout, token_rewards: Tokens, *, gamma: float = 1.0) -> Credit:
    returns = final_masked(rows, returns_to_go(rows, token_rewards, gamma))
    return returns, returns


def grpo(rows: Rollout, token_rewards: Tokens, *, gamma: float = 1.0) -> Credit:
    """Return-to-go; that rewards are normalised by group is the reward stage's work."""
    return reinforce(rows, token_rewards, gamma=gamma)


def reinforce_pp(rows: Rollout, token_rewards: Tokens, *, gamma: float = 1.0) -> Credit:
    """Return-to-go, whitened over the tokens of a batch."""
    returns, _ = reinforce(rows, token_rewards, gamma=gamma)
    return whitened_advantages(rows, returns), returns


def remax(rows: Rollout, token_rewards: Tokens, *, gamma: float = 1.0) -> Credit:
    """Return-to-go minus the reward of the greedy response."""
    returns, _ = reinforce(rows, token_rewards, gamma=gamma)
    baselines = [r.reward_baseline or 0.0 for r in rows]
    less = [[g - b for g in row] for b, row in zip(baselines, returns, strict=True)]
    return final_masked(rows, less), returns


def _gae_row(r: Response, rewards: Sequence[float], gamma: float, lam: float) -> list[float]:
    """A_t = δ_t + γλ·A_{t+1}, δ_t = r_t + γ·V_{t+1} - V_t, over policy tokens only."""
    assert r.values is not None
    row, next_advantage, next_value = [0.0] * len(rewards), 0.0, r.behind
    for t in reversed(range(len(rewards))):
        if r.mask[t]:
            delta = rewards[t] + gamma * next_value - r.values[t]
            row[t] = next_advantage = delta + gamma * lam * next_advantage
            next_value = r.values[t]
    return row


def gae(
    rows: Rollout,
    token_rewards: Tokens,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    lambda_policy: float | None = None,
    lambda_value: float | None = None,
    length_adaptive_alpha: float = 0.0,
) -> Credit:
    """GAE; with VAPO's two λ, returns are V plus the advantage under `lambda_value`."""
    advantages, returns = [], []
    for r, rewards in zip(rows, token_rewards, strict=True):
        policy = lam if lambda_policy is None else lambda_policy
        if length_adaptive_alpha and r.length:
            policy = clamp(1 - 1 / (length_adaptive_alpha * r.length), 0.0, 1.0)
        value = lam if lambda_value is None else lambda_value
        advantages.append(_gae_row(r, rewards, gamma, policy))
        traced = _gae_row(r, rewards, gamma, value)
        returns.append([a + v for a, v in zip(traced, r.values or [], strict=True)])
    return final_masked(rows, advantages), final_masked(rows, returns)


def vtrace(
    rows: Rollout,
    token_rewards: Tokens,
    *,
    gamma: float = 1.0,
    rho_cap: float = 1.0,
    c_cap: float = 1.0,
) -> Credit:
    """v_s = V_s + Σ_{t≥s} γ^{t-s}·c_s…c_{t-1}·δ_t; A_s = ρ_s·(r_s + γ·v_{s+1} - V_s)."""
    advantages, returns = [], []
    for r, rewards in zip(rows, token_rewards, strict=True):
        policy = [t for t, m in enumerate(r.mask) if m]
        ratios = [math.exp(min(r.old[t] - r.infer[t], 80)) for t in policy]
        values = [*(r.values[t] for t in policy), r.behind]
        deltas = [
            min(rho_cap, ratio) * (rewards[t] + gamma * after - value)
            for t, ratio, value, after in zip(policy, ratios, values[:-1], values[1:], strict=True)
        ]
        targets = [values[-1]]
        for s in reversed(range(len(policy))):
            total, trace = values[s], 1.0
            for t in range(s, len(policy)):
                total += trace * deltas[t]
                trace *= gamma * min(c_cap, ratios[t])
            targets.insert(0, total)
        credit, target = [0.0] * len(r.mask), [0.0] * len(r.mask)
        for s, t in enumerate(policy):
            after = rewards[t] + gamma * targets[s + 1]
            credit[t], target[t] = min(rho_cap, ratios[s]) * (after - values[s]), targets[s]
        advantages.append(credit)
        returns.append(target)
    return final_masked(rows, advantages), final_masked(rows, returns)


def _energy(r: Response) -> list[float]:
    """W_t = Σ_{u≤t} (1 - 2π_u + Σπ_u²) over policy tokens."""
    assert r.old is not None
    assert r.sum_pi_squared is not None
    row, total = [], 0.0
    for t, m in enumerate(r.mask):
        total += (1 - 2 * math.exp(r.old[t]) + r.sum_pi_squared[t]) * m
        row.append(total)
    return row


def optimal_token_baseline(
    rows: Rollout,
    token_rewards: Tokens,
    *,
    gamma: float = 1.0,
    position: str = "token",
    eps: float = 1e-8,
) -> Credit:
    """G_t - B_t, B_t = Σ G_t·W_t / (Σ W_t + ε) over the group's policy tokens at one position."""
    returns, keys, cells = returns_to_go(rows, token_rewards, gamma), groups(rows), []
    for i, r in enumerate(rows):
        policy_tokens = [t for t, m in enumerate(r.mask) if m]
        cells += [(i, t, t if position == "token" else k) for k, t in enumerate(policy_tokens)]
    weights = [_energy(r) for r in rows]
    at = [(keys[i], place) for i, _, place in cells]
    above = by_key(at, [returns[i][t] * weights[i][t] for i, t, _ in cells], math.fsum)
    below = by_key(at, [weights[i][t] for i, t, _ in cells], math.fsum)
    advantages = [[0.0] * len(r.mask) for r in rows]
    for (i, t, _), over, under in zip(cells, above, below, strict=True):
        advantages[i][t] = returns[i][t] - over / (under + eps)
    return final_masked(rows, advantages), final_masked(rows, returns)


# Outcome estimators: one number for a response


def raw(rows: Rollout, token_rewards: Tokens) -> Credit:
    return outcome(rows, scores(token_rewards))


def dr_grpo(rows: Rollout, token_rewards: Tokens) -> Credit:
    """S - mean of the group."""
    return outcome(rows, z_scores(groups(rows), scores(token_rewards), scale="none"))


def rloo(rows: Rollout, token_rewards: Tokens) -> Credit:
    """S - mean of the others of the group; 0 without others."""
    s, out = scores(token_rewards), [0.0] * len(rows)
    for members in rows_by(groups(rows)).values():
        for i in members:
            others = [s[j] for j in members if j != i]
            out[i] = s[i] - mean(others) if others else 0.0
    return outcome(rows, out)


def reinforce_pp_baseline(rows: Rollout, token_rewards: Tokens) -> Credit:
    """S - mean of the group, whitened over the tokens of a batch."""
    centred, _ = dr_grpo(rows, token_rewards)
    advantages = whitened_advantages(rows, centred)
    return advantages, advantages


def opo(rows: Rollout, token_rewards: Tokens) -> Credit:
    """S - Σ n·S / Σ n over the group."""
    s, keys, lengths = scores(token_rewards), groups(rows), [r.length for r in rows]
    tokens = by_key(keys, lengths, sum)
    weighted = by_key(keys, [n * x for n, x in zip(lengths, s, strict=True)], math.fsum)
    baselines = [w / max(n, 1) for w, n in zip(weighted, tokens, strict=True)]
    return outcome(rows, [x - b for x, b in zip(s, baselines, strict=True)])


def gpg(rows: Rollout, token_rewards: Tokens) -> Credit:
    """α·(S - mean of the group), α = responses of the batch / those with S ≠ 0."""
    s = scores(token_rewards)
    centred = z_scores(groups(rows), s, scale="none")
    sizes = by_key([r.batch for r in rows], s, len)
    hits = by_key([r.batch for r in rows], s, lambda xs: max(sum(x != 0 for x in xs), 1))
    return outcome(rows, [b / m * x for b, m, x in zip(sizes, hits, centred, strict=True)])


def grpo_passk(
    rows: Rollout, token_rewards: Tokens, *, scale: str = "std", eps: float = 1e-6
) -> Credit:
    """(best - second) / (std + ε) for the best of a group, 0 for the others and on a tie."""
    s, out = scores(token_rewards), [0.0] * len(rows)
    for members in rows_by(groups(rows)).values():
        ranked = sorted(members, key=lambda i: s[i], reverse=True)
        if len(ranked) > 1:
            width = std([s[i] for i in members]) + eps if scale == "std" else 1.0
            out[ranked[0]] = (s[ranked[0]] - s[ranked[1]]) / width
    return outcome(rows, out)


def max_rl(rows: Rollout, token_rewards: Tokens) -> Credit:
    """(S - mean) / mean of the group; 0 where the mean is not positive."""
    s = scores(token_rewards)
    means = by_key(groups(rows), s, mean)
    return outcome(rows, [(x - m) / m if m > 0 else 0.0 for x, m in zip(s, means, strict=True)])


def gdpo(
    rows: Rollout,
    token_rewards: Tokens,
    *,
    weights: Mapping[str, float],
    eps: float = 1e-6,
    batch_eps: float = 1e-6,
) -> Credit:
    """Σ_k w_k · z-score of component k in its group, then the z-score of that in the batch.

    The sum is 0 where that of z-scores without ε is 0 but for rounding.
    """
    del token_rewards
    keys, total = groups(rows), [0.0] * len(rows)
    values = {name: [r.components[name] for r in rows] for name in weights}
    for name, weight in weights.items():
        z = z_scores(keys, values[name], eps=eps)
        total = [a + weight * b for a, b in zip(total, z, strict=True)]
    exact = [[w * z for z in z_scores(keys, values[name], eps=0)] for name, w in weights.items()]
    for i, parts in enumerate(zip(*exact, strict=True)):
        if abs(sum(parts)) <= 4 * 2.0**-23 * max(map(abs, parts)):
            total[i] = 0.0
    return outcome(rows, z_scores([r.batch for r in rows], total, eps=batch_eps))


def rae(rows: Rollout, token_rewards: Tokens, *, decay: float = 0.9) -> Credit:
    """S - b[domain] in row order; then b ← decay·b + (1 - decay)·S, from b = 0."""
    baselines: dict[str, float] = {}
    out = []
    for r, s in zip(rows, scores(token_rewards), strict=True):
        baseline = baselines.get(r.domain, 0.0)
        out.append(s - baseline)
        baselines[r.domain] = decay * baseline + (1 - decay) * s
    return outcome(rows, out)


# Agents: a trajectory is several rows, one a turn


def trajectories(rows: Rollout) -> list[Hashable]:
    return [(r.batch, r.group, r.traj_id) for r in rows]


def step_returns(rows: Rollout, step_gamma: float = 1.0) -> list[float]:
    """Discounted return over the turns of a trajectory, from each turn on."""
    out = [0.0] * len(rows)
    for members in rows_by(trajectories(rows)).values():
        running = 0.0
        for i in sorted(members, key=lambda i: rows[i].turn, reverse=True):
            running = rows[i].step_score + step_gamma * running
            out[i] = running
    return out


def episode_advantages(
    rows: Rollout, *, episodes: str, scale: str, eps: float = 1e-6
) -> list[float]:
    """Episode score against its group, where a trajectory counts once (or once a row)."""
    keys = trajectories(rows) if episodes == "trajectory" else list(range(len(rows)))
    firsts = {key: members[0] for key, members in rows_by(keys).items()}
    prompts = [groups(rows)[i] for i in firsts.values()]
    episode_scores = [rows[i].episode_score for i in firsts.values()]
    z = z_scores(prompts, episode_scores, scale=scale, eps=eps)
    by_trajectory = dict(zip(firsts, z, strict=True))
    return [by_trajectory[key] for key in keys]


def gigpo_rewards(rows: Rollout, eps: float = 1e-6) -> list[float]:
    """What a step earns in both comparisons together, with the defaults of `gigpo`."""
    episode = episode_advantages(rows, episodes="trajectory", scale="std", eps=eps)
    step = z_scores([(r.batch, r.group, r.state_id) for r in rows], step_returns(rows), eps=eps)
    return [e + s for e, s in zip(episode, step, strict=True)]


def hierarchical_grpo(
    rows: Rollout, token_rewards: Tokens, *, episode_domains: Sequence[str] = ()
) -> Credit:
    """S - mean of the domain, in the group for the domains listed, in the batch for others."""
    keys = [(r.domain, r.batch, r.group if r.domain in episode_domains else None) for r in rows]
    return outcome(rows, z_scores(keys, scores(token_rewards), scale="none"))


def gigpo(
    rows: Rollout,
    token_rewards: Tokens,
    *,
    gamma: float = 1.0,
    step_gamma: float = 1.0,
    episode_weight: float = 1.0,
    step_weight: float = 1.0,
    scale: str = "std",
    episodes: str = "trajectory",
) -> Credit:
    """w_e · episode against its group + w_s · step return against the same state in the group."""
    episode = episode_advantages(rows, episodes=episodes, scale=scale)
    states = [(r.batch, r.group, r.state_id) for r in rows]
    step = z_scores(states, step_returns(rows, step_gamma), scale=scale)
    both = [episode_weight * e + step_weight * s for e, s in zip(episode, step, strict=True)]
    return spread_out(rows, both), reinforce(rows, token_rewards, gamma=gamma)[1]


def step_reinforce(
    rows: Rollout, token_rewards: Tokens, *, gamma: float = 1.0, step_gamma: float = 1.0
) -> Credit:
    """Step returns, normalised among all steps of the group."""
    z = z_scores(groups(rows), step_returns(rows, step_gamma))
    return spread_out(rows, z), reinforce(rows, token_rewards, gamma=gamma)[1]


def segments(mask: Sequence[int]) -> list[list[int]]:
    """The positions of each run of policy tokens."""
    found: list[list[int]] = []
    for t, m in enumerate(mask):
        if m and t > 0 and mask[t - 1]:
            found[-1].append(t)
        elif m:
            found.append([t])
    return found


def agentic_reinforce(
    rows: Rollout, token_rewards: Tokens, *, gamma: float = 1.0, segment_reward: str = "sum"
) -> Credit:
    """R_k + γ·R_{k+1} + … on each token of policy segment k; R is its reward sum, or its last."""
    out = []
    for r, rewards in zip(rows, token_rewards, strict=True):
        row, running = [0.0] * len(rewards), r.behind
        for segment in reversed(segments(r.mask)):
            paid = segment if segment_reward == "sum" else segment[-1:]
            running = math.fsum(rewards[t] for t in paid) + gamma * running
            for t in segment:
                row[t] = running
        out.append(row)
    returns = final_masked(rows, out)
    return returns, returns


def joined(rows: Rollout) -> list[list[int]]:
    """The rows of each rollout in the order of their turns; a turn without a reward is last."""

    def place(i: int) -> tuple[int, float]:
        score = rows[i].turn_reward
        return rows[i].turn, math.inf if score is None else score

    return [sorted(members, key=place) for members in rows_by(trajectories(rows)).values()]


def over_rollouts(rows: Rollout, xs: Sequence[float], scale: str, eps: float) -> list[float]:
    """The z-score of each rollout in its group, on all its rows; xs are equal within a rollout."""
    chains, out = joined(rows), [0.0] * len(rows)
    firsts = [chain[0] for chain in chains]
    found = z_scores(
        [groups(rows)[i] for i in firsts], [xs[i] for i in firsts], scale=scale, eps=eps
    )
    for chain, z in zip(chains, found, strict=True):
        for i in chain:
            out[i] = z
    return out


def mt_grpo_rewards(
    rows: Rollout,
    *,
    gamma: float = 1.0,
    weights: tuple[float, float] = (1.0, 1.0),
    scale: str = "std",
    baseline: str = "return",
    eps: float = 1e-6,
) -> list[float]:
    """Outcome against the group, plus returns (or rewards) of turns against turns of one number.

    With `reward` this is arXiv 2505.11821 and mt_grpo_env_trainer.py (`_assign_advantages`, "aae")
    of SiliangZeng/Multi-Turn-RL-Agent: outcome advantage, plus turn advantages from the turn on.
    """
    turns = [0.0] * len(rows)
    scored = [i for i, r in enumerate(rows) if r.turn_reward is not None]
    places = [(*key, r.turn) for key, r in zip(groups(rows), rows, strict=True)]
    gains = {i: rows[i].turn_reward for i in scored}
    if baseline == "reward":
        found = z_scores([places[i] for i in scored], [*gains.values()], scale=scale, eps=eps)
        gains = dict(zip(scored, found, strict=True))
    for chain in joined(rows):
        running = 0.0
        for i in reversed(chain):
            running = gains.get(i, 0.0) + gamma * running
            turns[i] = running
    if baseline == "return":
        turns = z_scores(places, turns, scale=scale, eps=eps)
    outcome = over_rollouts(rows, [r.reward for r in rows], scale, eps)
    return [weights[0] * a + weights[1] * b for a, b in zip(outcome, turns, strict=True)]


def deltas(scores: Sequence[float | None]) -> list[float]:
    """prime-rl pull request 3282, algo/turn_credit.py, `deltas`: progress since the last score."""
    out, before = [], None
    for score in scores:
        out.append(0.0 if score is None or before is None else score - before)
        before = before if score is None else score
    return out


def smear(progress: Sequence[float], gamma: float) -> list[float]:
    """The same, `smear`: each progress divided over its turn and those before, weights γ^d."""
    out = [0.0] * len(progress)
    for t, gain in enumerate(progress):
        total = math.fsum(gamma**d for d in range(t + 1))
        for d in range(t + 1):
            out[t - d] += gain * gamma**d / total
    return out


def turn_credit_rewards(rows: Rollout, *, gamma: float = 1.0, beta: float = 1.0) -> list[float]:
    """The same, `score_group` and `_token_advantages`: level + β·(credit - mean over tokens)."""
    returns, shifts = [0.0] * len(rows), [0.0] * len(rows)
    for chain in joined(rows):
        progress = deltas([rows[i].turn_reward for i in chain])
        shares = smear(progress, gamma)
        tokens = [rows[i].length for i in chain]
        center = math.fsum(c * n for c, n in zip(shares, tokens, strict=True)) / max(sum(tokens), 1)
        for i, credit in zip(chain, shares, strict=True):
            returns[i] = rows[i].reward + math.fsum(progress)
            shifts[i] = credit - center
    level = over_rollouts(rows, returns, "none", 0.0)
    return [a + beta * shift for a, shift in zip(level, shifts, strict=True)]


def turn_gae(
    rows: Rollout,
    token_rewards: Tokens,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    turn_value: str = "first",
) -> Credit:
    """GAE with a step per turn: AReaL, areal/trainer/ppo/gae.py, `_compute_turn_level_gae`."""
    advantages, returns = [], []
    for r, rewards in zip(rows, token_rewards, strict=True):
        row, targets, following, state = [0.0] * len(rewards), [0.0] * len(rewards), 0.0, r.behind
        for segment in reversed(segments(r.mask)):
            value = (r.values or [])[segment[0 if turn_value == "first" else -1]]
            delta = math.fsum(rewards[t] for t in segment) + gamma * state - value
            following, state = delta + gamma * lam * following, value
            for t in segment:
                row[t], targets[t] = following, following + value
        advantages.append(row)
        returns.append(targets)
    return final_masked(rows, advantages), final_masked(rows, returns)


def gar(rows: Rollout, token_rewards: Tokens, *, floor: float = 0.5, cap: float = 2.0) -> Credit:
    """MiMo-V2.6 eq. 3: prime-rl, algo/gar.py, `redistribute` and `apply`."""
    s, out = scores(token_rewards), [0.0] * len(rows)
    for members in rows_by(groups(rows)).values():
        lowest = min(s[i] for i in members)
        rewards = [lowest if rows[i].hack else s[i] for i in members]
        rates = [rows[i].win_rate for i in members]
        quality = [floor + (1 - floor) * (0.5 if w is None else w) for w in rates]
        found = [x - mean(rewards) for x in rewards]
        above = [k for k, a in enumerate(found) if a > 0]
        if above:
            total = math.fsum(found[k] for k in above)
            lam = min(cap, total / math.fsum(quality[k] * found[k] for k in above))
            for k in above:
                found[k] *= lam * quality[k]
        for i, a in zip(members, found, strict=True):
            out[i] = a - mean(found)
    return outcome(rows, out)


def opd(
    rows: Rollout,
    token_rewards: Tokens,
    *,
    coefs: Mapping[str, float],
    estimator: str = "k1",
    base: Callable[[Rollout, Tokens], Credit] | None = None,
) -> Credit:
    """-Σ coef · KL(old ‖ teacher) of each token (`ref` may be a teacher), alone or onto `base`."""
    advantages = [[0.0] * len(r.mask) for r in rows]
    for name, coef in coefs.items():
        for i, r in enumerate(rows):
            kl = row_kl(r, r.ref if name == "ref" else r.teachers[name], estimator)
            advantages[i] = [a - coef * x for a, x in zip(advantages[i], kl, strict=True)]
    distilled = final_masked(rows, advantages)
    if base is None:
        return distilled, distilled
    other, returns = base(rows, token_rewards)
    both = zip(other, distilled, strict=True)
    return [[a + b for a, b in zip(xs, ys, strict=True)] for xs, ys in both], returns


ESTIMATORS: dict[str, Callable[..., Credit]] = {
    function.__name__: function
    for function in (
        gae, vtrace, reinforce, grpo, dr_grpo, rloo, reinforce_pp, reinforce_pp_baseline, remax,
        opo, gpg, grpo_passk, max_rl, gdpo, hierarchical_grpo, optimal_token_baseline, gigpo,
        step_reinforce, agentic_reinforce, rae, opd, raw, turn_gae, gar,
    )
}  # fmt: skip
