"""Inputs without tokens: the numbers of each response are those of the same input with tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from summaries import warnings_of, whole

import rlpost
from rlpost.errors import DataError, RlpostError, UsageError
from rlpost.estimators import ESTIMATORS
from rlpost.recipe.recipe import GROUP_COLUMNS, Recipe

ROWS = 48
WRITTEN = ("response_advantage", "response_level_rewards", "sample_mask", *GROUP_COLUMNS)
OPTIONS: list[dict[str, Any]] = [
    {"estimator": "grpo", "drop_equal_rewards": True, "pass_threshold": 0.7},
    {"estimator": "grpo", "drop_difficulty": (0.1, 0.95), "reward_clip": 0.5},
    {"estimator": "grpo", "drop_truncated": True, "truncation_penalty": 0.5},
    {"estimator": "grpo", "advantage_clip": 0.5, "nonfinite": "mask"},
    {"estimator": "grpo", "length_weight": True, "emit": (*WRITTEN, "sample_weight")},
    {"estimator": "grpo", "drop_longer": 8},
    {"estimator": "grpo", "overlong_penalty": (8, 4, 1.0)},
    {"estimator": "grpo", "group_length_penalty": (0.5, 0.0, 0.0)},
    {"estimator": "grpo", "drop_long_errors": 6},
    {"estimator": "grpo", "whiten_advantages": True},
    {"estimator": "grpo", "whiten_rewards": True},
    {"estimator": "grpo", "reward_components": ["reward", "second"]},
    {"estimator": "gdpo", "reward_components": ["reward", "second"]},
    {"estimator": "grpo", "numerics": {"batch": "all", "empty": "leave_out"}},
    {"estimator": "reinforce", "norm_mean": "batch", "norm_std": "batch"},
    {"estimator": "reinforce", "norm_mean": "running", "norm_std": "running"},
    {"estimator": "reinforce", "gamma": 0.9},
    {"estimator": "grpo", "numerics": {"terminal_reward": "last_token"}},
    {
        "estimator": "reinforce",
        "numerics": {"terminal_reward": "last_token", "observations": "cut"},
    },
]


def table(lengths: np.ndarray) -> pa.Table:
    """Return rewards in prompt groups of 4, two steps, and the lengths of responses."""
    random = np.random.default_rng(7)
    number = np.arange(ROWS)
    return pa.table(
        {
            "step": number // 24,
            "prompt_id": [f"p{i // 4}" for i in number],
            "domain": [f"d{i % 8 // 4}" for i in number],
            "reward": random.integers(0, 4, ROWS) / 3,
            "second": random.standard_normal(ROWS),
            "difficulty": random.random(ROWS),
            "reward_baseline": random.random(ROWS),
            "finish_reason": ["length" if i % 5 == 0 else "stop" for i in number],
            "trajectory": [f"t{i // 2}" for i in number],
            "state_id": [f"s{i // 2}" for i in number],
            "step_score": random.random(ROWS),
            "episode_score": np.repeat(random.random(ROWS // 2), 2),
            "response_length": lengths,
        }
    )


LENGTHS = np.random.default_rng(8).integers(1, 12, ROWS)
OTHERS = np.random.default_rng(9).integers(1, 12, ROWS)


def enriched(rows: pa.Table, options: dict[str, Any]) -> pa.Table | RlpostError:
    """Return the new columns, or the error."""
    recipe = Recipe.of({"emit": WRITTEN, **options})
    try:
        return rlpost.enrich(rows, recipe)[0].select(list(recipe.emit or ()))
    except RlpostError as error:
        return error


def with_tokens(lengths: np.ndarray) -> pa.Table:
    """Return the table with a mask of ones in place of the lengths."""
    masks = pa.array([[1] * int(n) for n in lengths], pa.list_(pa.uint8()))
    return table(lengths).drop_columns(["response_length"]).append_column("response_mask", masks)


NEEDS_MORE = {"gdpo", "opd"}  # components, which OPTIONS name; teachers


@pytest.mark.parametrize(
    "options",
    [*({"estimator": name} for name in ESTIMATORS if name not in NEEDS_MORE), *OPTIONS],
    ids=str,
)
def test_numbers_are_those_of_an_input_with_tokens(options: dict[str, Any]) -> None:
    tokens = enriched(with_tokens(LENGTHS), options)
    lengths, others = (enriched(table(own), options) for own in (LENGTHS, OTHERS))
    alone = enriched(table(LENGTHS).drop_columns(["response_length"]), options)
    if isinstance(lengths, RlpostError):
        assert isinstance(alone, RlpostError)
        assert isinstance(tokens, RlpostError) or "whiten_rewards" in options
        assert "token" in str(lengths) or "no column for" in str(lengths)
        return
    if not isinstance(tokens, RlpostError):
        assert lengths.equals(tokens)
    else:  # a terminal reward on the last token may be lost on an observation, which rows lack
        assert "one advantage per response" in str(tokens)
    if isinstance(alone, RlpostError):
        assert "no column for response_length" in str(alone)
        assert not lengths.equals(others), "the lengths have no effect, so they are not needed"
    else:
        assert alone.equals(lengths)
        assert alone.equals(others)


def test_the_output_of_a_table_of_texts() -> None:
    rows = pa.table(
        {"prompt_id": ["a", "a", "b", "b"], "reward": [1.0, 0, 1, 1], "text": [*"wxyz"]}
    )
    out, summary = rlpost.enrich(rows)
    assert out.column_names == [*rows.column_names, *WRITTEN]
    half = float(np.float32(0.5 / (np.sqrt(0.5) + 1e-6)))
    assert out["response_advantage"].to_pylist() == [half, -half, 0, 0]
    assert out["group_std"].to_pylist()[2:] == [0, 0]
    assert out["group_pass_rate"].to_pylist() == [0.5, 0.5, 1, 1]
    assert summary.tokens is None
    assert not warnings_of(summary)
    assert whole(summary, "advantage")["max"] == pytest.approx(half)


@pytest.mark.parametrize(
    ("options", "columns", "text"),
    [
        ({"emit": ("advantages",)}, {}, "--emit advantages needs tokens, and the input has none"),
        ({"kl_coef": 0.1}, {}, "no column for old_log_probs"),
        ({"estimator": "gae"}, {}, "no column for values"),
        ({"length_weight": True}, {"response_length": None}, "no column for response_length"),
        (
            {"estimator": "opo"},
            {"response_length": None},
            "estimator opo, and the input has no tok",
        ),
        (
            {"columns": {"mask": "difficulty"}},
            {},
            "row 0: `difficulty` is double; a list of floats",
        ),
        ({}, {"ids": [[1, 2]] * ROWS}, "no list column sets the number of tokens"),
        ({}, {"response_length": [-1] + [1] * 47}, "row 0: `response_length` is -1; a number of"),
        ({}, {"response_length": [None] + [1] * 47}, "row 0: `response_length` is null; a number"),
        (
            {"columns": {"response_length": "difficulty"}, "emit": None},
            {"response_mask": [[1]] * ROWS},
            "--map response_length=difficulty: has no effect",
        ),
    ],
)
def test_what_needs_tokens_is_an_error(
    options: dict[str, Any], columns: dict[str, list[Any] | None], text: str
) -> None:
    rows = table(LENGTHS)
    for name, values in columns.items():
        rows = rows.drop_columns([name]) if name in rows.column_names else rows
        rows = rows if values is None else rows.append_column(name, pa.array(values))
    with pytest.raises((DataError, UsageError)) as error:
        rlpost.enrich(rows, Recipe.of({"emit": None, **options}))
    assert text in str(error.value)
