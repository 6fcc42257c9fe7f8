"""Stages of the table of all responses: the masks of a sample."""

import pytest
from stage_runs import ROWS, agrees


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_pp"])
@pytest.mark.parametrize(
    "options",
    [
        {"max_len_mask": True, "max_response_length": 3},
        {"max_len_mask": True, "max_response_length": 2},
        {"difficulty_mask": True},
        {"difficulty_mask": True, "difficulty_low": 0.5, "difficulty_high": 2.5},
        {"error_max_len_clip": 3},
        {"drop_zero_variance": True},
        {"drop_single": True},
        {"drop_zero_variance": True, "drop_single": True},
        {"drop_truncated": True},
        {"drop_truncated": True, "max_len_mask": True, "max_response_length": 1},
    ],
    ids="+".join,
)
def test_sample_masks(options, estimator, before):
    want = agrees(ROWS, **options, estimator=estimator, mask_before_norm=before)
    assert 0 < sum(r.kept for r in want.rows) < len(ROWS)
