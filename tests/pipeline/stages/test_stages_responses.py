"""Stages of the table of all responses: the masks of a sample."""

import pytest
from stage_runs import ROWS, agrees


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_pp"])
@pytest.mark.parametrize(
    "options",
    [
        {"drop_longer": 3},
        {"drop_longer": 2},
        {"drop_difficulty": (0.1, 0.95)},
        {"drop_difficulty": (0.5, 2.5)},
        {"drop_long_errors": 3},
        {"drop_equal_rewards": True},
        {"drop_single": True},
        {"drop_equal_rewards": True, "drop_single": True},
        {"drop_truncated": True},
        {"drop_truncated": True, "drop_longer": 1},
    ],
    ids="+".join,
)
def test_sample_masks(options, estimator, before):
    want = agrees(ROWS, **options, estimator=estimator, mask_before_norm=before)
    assert 0 < sum(r.kept for r in want.rows) < len(ROWS)
