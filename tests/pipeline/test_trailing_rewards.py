"""Rewards on observation tokens: each reaches the policy tokens, or a warning counts the loss."""

import math
import re
from itertools import product

import numpy as np
import pytest
from reference import Response
from strategies import to_table
from summaries import warnings_of

import rlpost

OBSERVATIONS = ("skip", "states", "zero_states", "policy", "restart", "cut")
TERMINAL = ("last_policy_token", "last_token")
MASKS = ([1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 1], [1, 1], [0, 1, 1, 0, 1, 0], [0, 0])
GAMMA, LAM, BETA = 0.9, 0.7, 0.25
ESTIMATORS = {
    "gae": {"lam": LAM},
    "reinforce": {},
    "reinforce_pp": {"whiten_advantages": False},
    "remax": {},
    "optimal_token_baseline": {},
    "agentic_reinforce": {},
    "grpo": {},
    "grpo with KL": {"kl_coef": BETA},
    "gae with process rewards": {"lam": LAM},
}


def rows_of(estimator):
    """A group of responses with every mask above; rewards are 1, 2, 3, ..."""
    rng = np.random.default_rng(7)

    def numbers(n):
        return rng.normal(size=n).astype(np.float16).astype(float).tolist()

    rows = []
    for i, mask in enumerate(MASKS):
        old, n = [-abs(x) for x in numbers(len(mask))], len(mask)
        rows.append(
            Response(
                group="p", reward=i + 1.0, mask=mask, old=old, values=numbers(n),
                ref=[x + y / 4 - 1 for x, y in zip(old, numbers(n), strict=True)],
                reward_baseline=0.5, sum_pi_squared=[0.5] * n,
                token_rewards=numbers(n) if "process" in estimator else None,
            )
        )  # fmt: skip
    return rows


# The float64 loops


def gae_loop(mask, rewards, values, how, lam):
    """A by token, one token after the other from the end."""
    out, trace, following = [0.0] * len(mask), 0.0, 0.0
    for t in reversed(range(len(mask))):
        if not mask[t] and how in ("skip", "restart"):
            if how == "restart":
                trace = following = 0.0
            continue
        if not mask[t] and how == "cut":
            trace = following = 0.0
        value = 0.0 if not mask[t] and how == "zero_states" else values[t]
        reward = rewards[t] if mask[t] or how in ("policy", "cut") else 0.0
        trace = reward + GAMMA * following - value + GAMMA * lam * trace
        following = value
        out[t] = trace * mask[t]
    return out


def segment_loop(mask, rewards):
    """The return of each run of policy tokens, discounted once per run."""
    out, total, t = [0.0] * len(mask), 0.0, len(mask) - 1
    while t >= 0:
        if not mask[t]:
            t -= 1
            continue
        first = t
        while first > 0 and mask[first - 1]:
            first -= 1
        total = sum(rewards[first : t + 1]) + GAMMA * total
        out[first : t + 1] = [total] * (t + 1 - first)
        t = first - 1
    return out


def response_rewards(rows, estimator):
    rewards = [r.reward for r in rows]
    if not estimator.startswith("grpo"):
        return rewards
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((x - mean) ** 2 for x in rewards) / (len(rewards) - 1))
    return [(x - mean) / (std + 1e-6) for x in rewards]


def loop(rows, estimator, how, terminal):
    """Advantages of every row, and the rows that lose their reward, or a process reward."""
    advantages, lost, lost_process = [], 0, 0
    name = estimator.split()[0]
    for row, reward in zip(rows, response_rewards(rows, estimator), strict=True):
        mask, n = row.mask, len(row.mask)
        policy = [t for t in range(n) if mask[t]]
        place = n - 1 if terminal == "last_token" else max(policy, default=None)
        process = row.token_rewards or [0.0] * n
        rewards = [x + (reward if t == place else 0.0) for t, x in enumerate(process)]
        if "KL" in estimator:
            seen = range(n) if how == "policy" else policy
            for t in seen:
                rewards[t] -= BETA * (row.old[t] - row.ref[t])
        gets = {
            t
            for t in range(n)
            if mask[t]
            or (name != "agentic_reinforce" and how == "policy")
            or (name != "agentic_reinforce" and how == "cut" and t > 0 and mask[t - 1])
        }
        lost += bool(policy) and place not in gets and reward != 0
        lost_process += bool(policy) and any(process[t] for t in range(n) if t not in gets)
        values, lam = (row.values, LAM) if name == "gae" else ([0.0] * n, 1.0)
        if name == "agentic_reinforce":
            credit = segment_loop(mask, rewards)
        else:
            credit = gae_loop(mask, rewards, values, how, lam)
        if name == "remax":
            credit = [(x - row.reward_baseline) * m for x, m in zip(credit, mask, strict=True)]
        advantages.append(credit)
    return advantages, lost, lost_process


def counted(warnings, start):
    """The number of responses in the warning that starts so; 0 without one."""
    found = [re.match(rf"{start} of (\d+) response", text) for text in warnings]
    return sum(int(one[1]) for one in found if one)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("how", "terminal"), [*product(OBSERVATIONS, TERMINAL)])
def test_a_reward_arrives_or_a_warning_counts_it(estimator, how, terminal):
    rows, name = rows_of(estimator), estimator.split()[0]
    numerics = {"observations": how, "terminal_reward": terminal}
    recipe = rlpost.Recipe(estimator=name, gamma=GAMMA, numerics=numerics, **ESTIMATORS[estimator])
    table, summary = rlpost.enrich(to_table(rows), recipe)
    want, lost, lost_process = loop(rows, estimator, how, terminal)
    column = "returns" if name == "optimal_token_baseline" else "advantages"
    got = table.column(column).to_pylist()
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert counted(warnings_of(summary), "the reward") == lost
    assert counted(warnings_of(summary), "process rewards") == lost_process
    named = [text for text in warnings_of(summary) if text.startswith("the reward of")]
    assert all("--numerics terminal_reward=last_policy_token" in text for text in named)
    if terminal == "last_policy_token":
        assert not lost


LONG = Response(group="p", reward=1.0, mask=[1, 1, 1, 0], values=[0.0] * 4)


def test_reward_whitening_loses_a_reward_on_an_observation_and_says_so():
    rows = [LONG, Response(group="p", reward=2.0, mask=[1, 1], values=[0.0] * 2)]
    recipe = rlpost.Recipe(
        estimator="raw", whiten_rewards=True, numerics={"terminal_reward": "last_token"}
    )
    _, summary = rlpost.enrich(to_table(rows), recipe)
    assert counted(warnings_of(summary), "the reward") == 1
    assert any("--whiten-rewards" in text for text in warnings_of(summary))


def test_dropped_responses_and_rewards_of_zero_lose_nothing():
    rows = [LONG, Response(group="p", reward=0.0, mask=[1, 0]), LONG]
    table = to_table([Response(**{**vars(r), "values": [0.0] * len(r.mask)}) for r in rows])
    numerics = {"terminal_reward": "last_token"}
    recipe = rlpost.Recipe(estimator="gae", numerics=numerics, drop_longer=3)
    _, summary = rlpost.enrich(table, recipe)
    assert counted(warnings_of(summary), "the reward") == 0
