"""The planted faults change what is recorded, and nothing else differs from rlpost."""

import numpy as np
import pytest
from replay_faults import CLEAN, FAULTS, computed
from replay_trainer import column, rollouts


def largest(one, other, names):
    """The largest difference of the columns, absolute."""
    pairs = [(column(one, name), column(other, name)) for name in names]
    flat = [[np.concatenate([np.ravel(x) for x in side]) for side in pair] for pair in pairs]
    return max(float(np.abs(a.astype(float) - b).max()) for a, b in flat)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_a_recorded_column_and_the_trainer_without_it_agrees_with_rlpost(fault):
    table = rollouts(**fault.data)
    records = fault.right.records
    expected = computed(table, table, fault.recipe(), records)
    assert largest(fault.right.record(table), expected, records) < 1e-5
    recorded = fault.plant(table)
    assert recorded.column_names == [*table.column_names, *records]
    assert recorded.select(table.column_names).equals(table)
    assert largest(recorded, expected, records) > 1e-3
    assert fault.expected


@pytest.mark.parametrize("clean", CLEAN, ids=lambda clean: clean.name)
def test_a_clean_file_differs_from_rlpost_by_rounding_only(clean):
    table = rollouts(**clean.data)
    difference = largest(clean.file(), clean.exact(table), clean.records)
    assert difference < 1e-4
    assert (difference == 0) == (clean.noise == "none")


def test_names_are_unique_and_rollouts_have_what_the_faults_need():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 20
    assert len({clean.name for clean in CLEAN}) == len(CLEAN) == 20
    for case in (*FAULTS, *CLEAN):
        table = rollouts(**case.data)
        keys = list(zip(column(table, "step"), column(table, "prompt_id"), strict=True))
        rewards = dict.fromkeys(keys, ())
        for key, reward in zip(keys, column(table, "reward"), strict=True):
            rewards[key] += (reward,)
        sizes = {len(group) for group in rewards.values()}
        assert case.data.get("group") in (None, *sizes)
        assert (len(sizes) == 1) == ("group" in case.data)
        assert "group" in case.data or 1 in sizes
        assert any(len(group) > 1 and len(set(group)) == 1 for group in rewards.values())
        assert len(set(column(table, "prompt_id"))) < len(rewards) or case.data.get("steps") == 1
