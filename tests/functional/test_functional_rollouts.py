"""Rollouts of several rows in rlpost.functional: equal to the command, in any order of rows."""

from __future__ import annotations

import pytest
import torch
from functional_rows import (
    CLOSE,
    ONE_BATCH,
    SINGLE,
    F,
    P,
    assert_padded_equals,
    few,
    flat,
    groups_of,
    mask_of,
    numbers,
    offsets_of,
    padded,
    padded_mask,
)
from hypothesis import given
from reference import replace
from strategies import BY_TRAJECTORY, to_table

import rlpost
from rlpost.errors import DataError


def written(rows, column="advantages", **recipe):
    """The command's numbers of rows whose rollouts count by prompt and trajectory."""
    own = {**BY_TRAJECTORY, **recipe}
    made, _ = rlpost.enrich(
        to_table([replace(r, token_rewards=None) for r in rows]), rlpost.Recipe(**own)
    )
    return flat(made[column].to_pylist())


def outcomes(rows):
    """The mean reward of each row's rollout, and the ids of rollouts over all groups."""
    ids = [f"{r.group}/{r.traj_id}" for r in rows]
    own = {key: [r.reward for r, name in zip(rows, ids, strict=True) if name == key] for key in ids}
    return torch.tensor([sum(own[key]) / len(own[key]) for key in ids], dtype=torch.float64), ids


def of_turns(rows, name="turn_reward"):
    values = [getattr(r, name) for r in rows]
    return torch.tensor([float("nan") if x is None else float(x) for x in values]).double()


def on_tokens(rows, credit):
    return F.to_tokens(credit, offsets_of(rows), mask_of(rows))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@few
@given(ONE_BATCH)
def test_rollouts_that_count_once_are_those_of_the_command(name, rows):
    rewards, ids = outcomes(rows)
    found = F.per_rollout(getattr(F, name), rewards, ids, groups_of(rows))
    want = written(rows, estimator=name, unit="rollout", rollout_reward="mean")
    torch.testing.assert_close(on_tokens(rows, found), want, rtol=1e-4, atol=1e-3)


# Scans: name, columns besides rewards, recipe.
SCANS = {
    "gae": (["values"], {"gamma": 0.9, "lam": 0.5}),
    "turn_gae": (["values"], {"gamma": 0.9, "lam": 0.5}),
    "agentic_reinforce": ([], {"gamma": 0.9}),
    "reinforce": ([], {"gamma": 0.9}),
}


@pytest.mark.parametrize("name", SCANS)
@few
@given(ONE_BATCH)
def test_scans_of_rollouts_are_those_of_the_command(name, rows):
    """A rollout's reward is on the last policy token of its last row that has any."""
    columns, knobs = SCANS[name]
    (mean, ids), rewards = outcomes(rows), numbers(rows, "values") * 0
    ends = {}
    for at in sorted(range(len(rows)), key=lambda i: rows[i].turn):
        if any(rows[at].mask):
            ends[ids[at]] = at
    for at in ends.values():
        last = max(t for t, m in enumerate(rows[at].mask) if m)
        rewards[offsets_of(rows)[at] + last] = mean[at]
    others = [numbers(rows, column) for column in columns]
    rollouts = {"rollout": ids, "turn": of_turns(rows, "turn")}
    structure = {"offsets": offsets_of(rows), "mask": mask_of(rows)}
    found = F.over_rollouts(getattr(F, name), rewards, *others, **structure, **rollouts, **knobs)
    bare = [replace(r, turn_reward=None) for r in rows]
    want = written(bare, estimator=name, scan="rollout", rollout_reward="mean", **knobs)
    own = found.advantages if others else found
    torch.testing.assert_close(own, want, **SINGLE)
    flatly = (padded(rows, one) for one in (rewards, *others))
    twin = P.over_rollouts(getattr(F, name), *flatly, mask=padded_mask(rows), **rollouts, **knobs)
    assert_padded_equals(rows, twin.advantages if others else twin, own)


def test_gradients_flow_through_scans_of_rollouts():
    values = torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64, requires_grad=True)
    rows = {"rollout": [0, 0], "turn": torch.tensor([0, 1]), "offsets": torch.tensor([0, 2, 3])}
    made = F.over_rollouts(F.gae, torch.zeros(3).double(), values, lam=0.0, **rows)
    made.advantages[1].backward()
    assert values.grad.tolist() == [0.0, -1.0, 1.0]


@pytest.mark.parametrize("name", ["mt_grpo", "turn_returns", "over_rollouts"])
def test_a_turn_is_one_row(name):
    one, turns, ids = torch.tensor([1.0, 1.0]), torch.tensor([3, 3]), ["a", "a"]
    calls = {
        "mt_grpo": lambda **more: F.mt_grpo(one, one, turns, ids, [0, 0], **more),
        "turn_returns": lambda **more: F.turn_returns(one, turns, ids, [0, 0], **more),
        "over_rollouts": lambda **more: F.over_rollouts(
            F.reinforce,
            one,
            offsets=torch.tensor([0, 1, 2]),
            rollout=ids,
            turn=turns,
            **more,
        ),
    }
    with pytest.raises(DataError, match="row 1 and row 0 are both turn 3"):
        calls[name]()
    first, second = calls[name](branch=["10", "9"]), calls[name](branch=["9", "10"])
    torch.testing.assert_close(first, second.flip(0), **CLOSE)


def test_rewards_of_a_rollout_that_differ_are_an_error():
    with pytest.raises(DataError, match="in row 1"):
        F.per_rollout(F.grpo, torch.tensor([1.0, 0.0]), ["a", "a"], [0, 0])
