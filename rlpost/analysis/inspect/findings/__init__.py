"""What would hurt training: each finding is one small function, all are in one table.

A function takes a Case and gives a Finding, or None where all is well. `harm`, from 0 to 100,
orders the list: from 90 on, numbers are wrong; from 70 on, training may learn the wrong thing;
below, it learns little or slowly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.findings import columns, keys, policies, rewards
from rlpost.analysis.inspect.findings import columns as lists
from rlpost.analysis.inspect.findings import columns as masks
from rlpost.analysis.inspect.findings import columns as shifts
from rlpost.analysis.inspect.findings.case import Case

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlpost.analysis.inspect.model import Finding


__all__ = ["FINDINGS", "Case", "found"]

FINDINGS: tuple[Callable[[Case], Finding | None], ...] = (
    columns.no_rows,
    columns.no_reward,
    columns.no_groups,
    columns.wrong_types,
    columns.null_keys,
    columns.mixed_types,
    lists.unequal_lengths,
    lists.padded_lists,
    shifts.shifted_lists,
    masks.mask_not_binary,
    masks.empty_masks,
    keys.single_row_groups,
    keys.one_group_per_step,
    keys.mixed_prompts,
    keys.split_prompts,
    rewards.constant_rewards,
    rewards.saturated_rewards,
    rewards.equal_rewards_in_groups,
    rewards.nonfinite_rewards,
    rewards.length_follows_reward,
    rewards.many_truncated,
    rewards.copied_responses,
    policies.nonfinite_log_probs,
    policies.nonfinite_values,
    policies.positive_log_probs,
    policies.constant_log_probs,
    policies.same_log_probs,
    policies.engine_mismatch,
)


def found(case: Case) -> list[Finding]:
    """Every finding of the case, the most harmful first."""
    findings = [finding for finding in (one(case) for one in FINDINGS) if finding is not None]
    return sorted(findings, key=lambda finding: -finding.harm)
