"""Every estimator has a public form with the numbers of the command, in any order of rows."""

from __future__ import annotations

import inspect

import pytest
import reference as slow
import torch
from functional_rows import (
    CLOSE,
    ONE_BATCH,
    SINGLE,
    F,
    few,
    flat,
    mask_of,
    numbers,
    offsets_of,
    rewards_of,
    written,
)
from hypothesis import given
from hypothesis import strategies as st
from strategies import BY_TRAJECTORY, ESSENTIALS, to_table

import rlpost
from rlpost.errors import DataError
from rlpost.estimators import ESTIMATORS

VAPO = {"lambda_policy": 0.5, "lambda_value": 1.0, "length_adaptive_alpha": 0.1}
OPTIONS = {
    "gae": [{"gamma": 0.9, "lam": 0.5}, {"gamma": 0.9, **VAPO}],
    "turn_gae": [{"gamma": 0.9, "lam": 0.5, "turn_value": "last"}],
    "agentic_reinforce": [{"gamma": 0.9, "segment_reward": "last"}],
    **{name: [{"gamma": 0.9}] for name in ("reinforce", "reinforce_pp", "remax")},
    "vtrace": [{"gamma": 0.9}, {"rho_cap": 0.5, "c_cap": 2.0}],
    "grpo": [{"norm_mean": "others", "norm_std": "none"}, {"norm_eps": 0.1}],
    "gdpo": [{"batch_eps": 0.1}],
    "grpo_passk": [{"norm_std": "none"}],
    "gigpo": [{"states": "batch", "episodes": "row", "step_gamma": 0.5}],
    "mt_grpo": [{"turn_baseline": "reward", "step_gamma": 0.5, "norm_std": "none"}],
    "step_reinforce": [{"step_gamma": 0.5, "norm_std": "none"}],
    "turn_credit": [{"step_gamma": 0.5, "step_weight": 2.0}],
    "optimal_token_baseline": [
        {"gamma": 0.9},
        {"position": "policy_token", "lone": "none", "ratio_cap": 2.0, "eps": 0.1},
    ],
    "gpg": [{"f_norm": 2.0}],
    "hierarchical_grpo": [{"episode_domains": ["math"]}],
    "rae": [{"ema_decay": 0.5, "order": "group"}],
    "gar": [{"floor": 0.25, "cap": 1.25}],
}
"""Options of estimators beside the defaults."""
ROUGH = {"rtol": 2e-5, "atol": 2e-5}
JOINED = ("mt_grpo", "turn_credit")
SCALARS = {
    "turn": "turn", "step_score": "step_score", "episode_score": "episode_score",
    "turn_reward": "turn_reward", "win_rate": "win_rate", "hack": "hack", "tokens": "length",
    "reward_baseline": "reward_baseline", "rewards": "reward",
}  # fmt: skip
IDS = {
    "group": "group",
    "batch": "batch",
    "domain": "domain",
    "domain_name": "domain",
    "rollout": "traj_id",
    "state_id": "state_id",
}
TOKENS = {"values": "values", "old_log_probs": "old", "infer_log_probs": "infer",
          "sum_pi_squared": "sum_pi_squared"}  # fmt: skip


def column(rows, name):
    """What a parameter of a public function is, of rows."""
    if name in TOKENS:
        return numbers(rows, TOKENS[name])
    if name in IDS:
        return [getattr(row, IDS[name]) for row in rows]
    if name in SCALARS:
        scalars = [getattr(row, SCALARS[name]) for row in rows]
        return torch.tensor([float("nan") if x is None else float(x) for x in scalars]).double()
    return {
        "offsets": offsets_of,
        "mask": mask_of,
        "token_rewards": lambda x: F.place_rewards(rewards_of(x), offsets_of(x), mask_of(x)),
        "components": lambda x: torch.tensor([[*r.components.values()] for r in x]).double(),
        "distillation": lambda x: 0.5 * F.kl(numbers(x, "old"), numbers(x, "ref"), mask_of(x)),
    }[name](rows)


def outcomes(rows):
    """The rows with the mean reward of each row's rollout."""
    ids = [(r.group, r.traj_id) for r in rows]
    of = {x: [r.reward for r, y in zip(rows, ids, strict=True) if x == y] for x in ids}
    return [slow.replace(r, reward=sum(of[x]) / len(of[x])) for r, x in zip(rows, ids, strict=True)]


def computed(name, rows, **options):
    """What a public function returns of the columns of rows."""
    parameters = inspect.signature(getattr(F, name)).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY and p.name != "branch"]
    return getattr(F, name)(**{x: column(rows, x) for x in names}, **options)


def recipe_of(name, options):
    essentials = {x: y for x, y in ESSENTIALS.get(name, {}).items() if x != "options"}
    essentials |= {"component_weights": (1.0, 1.0)} if name == "gdpo" else {}
    numerics = {x: y for x, y in options.items() if x in rlpost.Numerics.model_fields}
    fields = {x: y for x, y in options.items() if x in rlpost.Recipe.model_fields}
    others = {x: y for x, y in options.items() if x not in {*numerics, *fields}}
    joined = {"rollout_reward": "mean"} if name in JOINED else {}
    columns = BY_TRAJECTORY if "rollout" in inspect.signature(getattr(F, name)).parameters else {}
    return rlpost.Recipe(
        estimator=name,
        numerics=numerics,
        options=others,
        **{**essentials, **columns, **joined, **fields},
    )


@pytest.mark.parametrize("name", ESTIMATORS)
@few
@given(ONE_BATCH, st.data())
def test_numbers_are_those_of_the_command(name, rows, data):
    options = data.draw(st.sampled_from([{}, *OPTIONS.get(name, [])]))
    table = to_table([slow.replace(r, token_rewards=None) for r in rows])
    made, _ = rlpost.enrich(table, recipe_of(name, options))
    credit = computed(name, outcomes(rows) if name in JOINED else rows, **options)
    advantages, returns = credit if isinstance(credit, tuple) else (credit, None)
    if "mask" not in inspect.signature(getattr(F, name)).parameters:
        advantages = F.to_tokens(advantages, offsets_of(rows), mask_of(rows))
    torch.testing.assert_close(advantages, flat(made["advantages"].to_pylist()), **ROUGH)
    if returns is not None:
        torch.testing.assert_close(returns, flat(made["returns"].to_pylist()), **SINGLE)


OF_RESPONSES = [
    name
    for name in ESTIMATORS
    if "mask" not in inspect.signature(getattr(F, name)).parameters and name != "rae"
]


@pytest.mark.parametrize("name", OF_RESPONSES)
@few
@given(ONE_BATCH)
def test_order_of_rows_and_names_of_ids_do_not_matter(name, rows):
    found, order = computed(name, rows), torch.randperm(len(rows))
    names = {group: 7 - 3 * place for place, group in enumerate({r.group: 0 for r in rows})}
    renamed = [slow.replace(row, group=names[row.group]) for row in rows]
    moved = computed(name, [renamed[i] for i in order.tolist()])
    torch.testing.assert_close(moved, found[order], rtol=0, atol=0)


def test_a_turn_is_one_row():
    scores, turns = torch.tensor([1.0, 1.0]), torch.tensor([3, 3])
    arrays = scores, scores, turns, ["a", "a"], [0, 0]
    with pytest.raises(DataError, match="row 1 and row 0 are both turn 3"):
        F.mt_grpo(*arrays)
    first, second = F.mt_grpo(*arrays, branch=["10", "9"]), F.mt_grpo(*arrays, branch=["9", "10"])
    torch.testing.assert_close(first, second.flip(0), **CLOSE)


@few
@given(ONE_BATCH, st.sampled_from(["token", "segment", "geometric", "sequence"]))
def test_importance_weights(rows, level):
    old, infer = numbers(rows, "old"), numbers(rows, "infer")
    found = F.importance_weights(old, infer, offsets_of(rows), mask_of(rows), level=level, cap=1.5)
    recipe = {"estimator": "raw", "is_weight": level, "is_cap": 1.5}
    torch.testing.assert_close(found.values, written(rows, "is_weight", **recipe), **SINGLE)
    assert not bool(found.truncated[mask_of(rows) == 0].any())


@few
@given(ONE_BATCH, st.sampled_from(["token:bkl::0.01", "geometric:k3::0.05"]))
def test_accepted_tokens(rows, text):
    old, infer = numbers(rows, "old"), numbers(rows, "infer")
    found = F.accepted_tokens(old, infer, offsets_of(rows), mask_of(rows), filters=[text])
    recipe = {"estimator": "raw", "is_filter": (text,), "emit": ("final_response_mask",)}
    try:
        want = written(rows, "final_response_mask", **recipe)
    except DataError:  # no response is left
        return
    assert found.tolist() == (want != 0).tolist()


@few
@given(ONE_BATCH, st.sampled_from(["k1", "abs", "k2", "k3", "k4"]))
def test_kl(rows, estimator):
    old, ref = numbers(rows, "old"), numbers(rows, "ref")
    found = F.kl(old, ref, mask_of(rows), kl_estimator=estimator)
    loop = [
        slow.divergence(a - b, estimator) * m
        for r in rows
        for a, b, m in zip(r.old, r.ref, r.mask, strict=True)
    ]
    torch.testing.assert_close(found, torch.tensor(loop, dtype=torch.float64), **CLOSE)
