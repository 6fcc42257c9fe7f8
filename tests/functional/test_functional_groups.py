"""Advantages of groups: against loops, in any order, with any names."""

from __future__ import annotations

import pytest
import reference as slow
import reference_estimators as slow_estimators
import torch
from functional_rows import (
    ONE_BATCH,
    SINGLE,
    F,
    advantages_of,
    by_response,
    few,
    groups_of,
    mask_of,
    offsets_of,
    written,
)
from hypothesis import given
from hypothesis import strategies as st
from strategies import COMPONENTS

LOOPS = {
    "grpo": lambda rows, _: slow_estimators.outcome(
        rows, slow_estimators.z_scores(groups_of(rows), [r.reward for r in rows])
    ),
    **{
        name: getattr(slow_estimators, name)
        for name in ("dr_grpo", "rloo", "opo", "gpg", "grpo_passk", "max_rl")
    },
}


@pytest.mark.parametrize("name", LOOPS)
@few
@given(ONE_BATCH)
def test_group_advantages_equal_the_loop(name, rows):
    scores = [[r.reward] for r in rows]
    loop = by_response(rows, LOOPS[name](rows, scores)[0])
    for one, wanted in zip(advantages_of(name, rows).tolist(), loop, strict=True):
        assert wanted is None or one == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@few
@given(ONE_BATCH, st.sampled_from([(1.0, 1.0), (1.0, 0.5)]))
def test_gdpo_equals_the_loop(rows, weights):
    components = torch.tensor([[r.components[name] for name in COMPONENTS] for r in rows])
    found = F.gdpo(components.double(), groups_of(rows), component_weights=weights)
    named = dict(zip(COMPONENTS, weights, strict=True))
    loop = by_response(rows, slow_estimators.gdpo(rows, [], weights=named)[0])
    for one, wanted in zip(found.tolist(), loop, strict=True):
        assert wanted is None or one == pytest.approx(wanted, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("name", LOOPS)
@few
@given(ONE_BATCH)
def test_order_and_names_of_groups_do_not_matter(name, rows):
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(len(rows)))
    shuffled = advantages_of(name, [rows[i] for i in order.tolist()])
    codes = {group: 7 - 3 * place for place, group in enumerate(dict.fromkeys(groups_of(rows)))}
    renamed = advantages_of(name, [slow.replace(row, group=codes[row.group]) for row in rows])
    torch.testing.assert_close(shuffled, advantages_of(name, rows)[order], rtol=0, atol=0)
    torch.testing.assert_close(renamed, advantages_of(name, rows), rtol=0, atol=0)


def test_groups_may_be_a_tensor_or_names():
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0])
    by_name = F.grpo(rewards, ["b", "b", "a", "a"])
    assert torch.equal(by_name, F.grpo(rewards, torch.tensor([-1, -1, 9, 9])))
    assert by_name[2:].tolist() == [0.0, 0.0]


def test_norms_of_others_and_of_none():
    rewards = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    others = F.grpo(rewards, [0, 0, 0], norm_mean="others", norm_std="none")
    torch.testing.assert_close(others, F.rloo(rewards, [0, 0, 0]))
    torch.testing.assert_close(
        F.grpo(rewards, [0, 0, 0], norm_std="none"), F.dr_grpo(rewards, [0, 0, 0])
    )


# The same numbers as the command


COMMANDS = {
    "grpo": lambda rows: advantages_of("grpo", rows, torch.float32),
    "dr_grpo": lambda rows: advantages_of("dr_grpo", rows, torch.float32),
    "rloo": lambda rows: advantages_of("rloo", rows, torch.float32),
    "opo": lambda rows: advantages_of("opo", rows, torch.float32),
    "gpg": lambda rows: advantages_of("gpg", rows, torch.float32),
    "grpo_passk": lambda rows: advantages_of("grpo_passk", rows, torch.float32),
    "max_rl": lambda rows: advantages_of("max_rl", rows, torch.float32),
}


@pytest.mark.parametrize("name", COMMANDS)
@few
@given(ONE_BATCH)
def test_group_advantages_equal_those_of_the_command(name, rows):
    found = F.to_tokens(COMMANDS[name](rows), offsets_of(rows), mask_of(rows))
    torch.testing.assert_close(found.double(), written(rows, estimator=name), **SINGLE)
