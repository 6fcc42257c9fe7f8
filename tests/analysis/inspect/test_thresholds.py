"""The threshold of each finding: an input just below it has no such finding, one just above has."""

from __future__ import annotations

from math import log

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlpost.analysis.inspect.facts import inspect


def some(count, of, value, other):
    """A column in which the first rows have one value, the others another."""
    return [value] * count + [other] * (of - count)


def masks(lengths):
    return {"response_mask": [[1] * length for length in lengths]}


def failures(count, rows_of_step=100):
    steps = [row // rows_of_step for row in range(100)]
    return {"failure": some(count, 100, "crash", ""), "step": steps}


def groups(sizes):
    return {"prompt_id": [f"p{place}" for place, size in enumerate(sizes) for _ in range(size)]}


def signal(*steps):
    """Groups of two in steps; for each step how many have equal rewards, and how many there are."""
    equal = [(step, place < count) for step, (count, of) in enumerate(steps) for place in range(of)]
    return {
        **groups([2] * len(equal)),
        "step": [step for step, _ in equal for _ in range(2)],
        "reward": [reward for _, same in equal for reward in ((1, 1) if same else (0, 1))],
    }


def shaped(failing, of, bonus=0.2):
    """Groups of two with signal; in some of them no response passes, but for one has a bonus."""
    rewards = [x for row in range(of) for x in ((0, bonus) if row < failing else (0, 1))]
    return {**groups([2] * of), "reward": rewards}


def lengths_with_rewards(share, rows):
    """Half of the rows have reward 1; a share of them are long, as many others are not."""
    half = rows // 2
    parts = [(round(share * of), of) for of in (half, rows - half)]
    lengths = some(*parts[0], 2, 1) + some(*parts[1], 1, 2)
    return {**masks(lengths), "reward": some(half, rows, 1, 0)}


def mixed_groups(count):
    """Four groups of two rows; in some of them, the prompts differ."""
    texts = [f"{place}{half * (place < count)}" for place in range(4) for half in range(2)]
    return {**groups([2] * 4), "prompt": texts}


def policies(*gaps, infer=-4.0, **columns):
    """Log-probs of rollout engine and trainer, with their differences in each row."""
    return {
        "infer_log_probs": [[infer] * len(row) for row in gaps],
        "old_log_probs": [[infer + gap for gap in row] for row in gaps],
        **columns,
    }


def equal_policies(count):
    values = [[-1.0 - token for token in range(count)]]
    return {"old_log_probs": values, "infer_log_probs": values}


def forks(count):
    """Two rows of a rollout with 1,000 policy tokens, of which the first are the same."""
    mask = [1] * count + [0] + [1] * (500 - count)
    return {
        "rollout_id": ["a", "a"],
        "prompt_token_ids": [[7, 8]] * 2,
        "response_mask": [mask] * 2,
        "response_token_ids": [[5] * count + [row] * (501 - count) for row in range(2)],
    }


def of_turns(count):
    """One prompt, whose steps start again some times."""
    return {"prompt_id": ["p"] * (2 * count + 2), "step": [0, 1] * (count + 1)}


def tail_of_zeros(*rows):
    """Log-probs of each row: some other than 0, then zeros."""
    return {"old_log_probs": [[-1.0] * others + [0.0] * zeros for others, zeros in rows]}


def filled_by_policy(*rows):
    """The same, of which only the zeros are policy tokens."""
    mask = [[0] * others + [1] * zeros for others, zeros in rows]
    return {**tail_of_zeros(*rows), "response_mask": mask}


def shifted(tokens, error=0.0):
    """The second column matches the first one token later, save for an error."""
    old = [-1.0 - token % 3 for token in range(tokens)]
    errors = [error * (-1) ** (token // 3) for token in range(tokens)]
    later = [x + e for x, e in zip([-9.0, *old[:-1]], errors, strict=True)]
    return {"old_log_probs": [old], "infer_log_probs": [later]}


def jumps(here, later, count=64):
    """Log-probs that jump at edges of the mask and one token later: (mean, deviation) of each."""
    mask, values = [0, 0], [-20.0, -20.0]
    for edge in range(count):
        side = -1 if edge % 2 else 1  # at every other edge, observations begin
        odd = (-1) ** (edge // 2)
        mask += [1 - edge % 2] * 4
        first = values[-1] + side * (here[0] + odd * here[1])
        second = first + side * (later[0] + odd * later[1])
        values += [first, second, -20.0, -20.0]
    return {"response_mask": [mask], "old_log_probs": [values]}


def masks_of(*rows):
    """Masks, each so many times."""
    return {"response_mask": [mask for count, mask in rows for mask in [mask] * count]}


# The threshold: the finding, then an input just below and one just above.
PAIRS = {
    "FAILED": ("many_failures", failures(24), failures(25)),
    "FAILED_STEP": ("many_failures", failures(9, 20), failures(10, 20)),
    "UNEQUAL": ("unequal_groups", groups([1] * 5 + [2] * 495), groups([1] * 6 + [2] * 494)),
    "single groups": ("group_key", groups([1] * 5 + [2] * 5), groups([1] * 6 + [2] * 4)),
    "LARGE group": ("group_key", groups([127]), groups([128])),
    "LARGE length": ("many_truncated", masks(some(2, 10, 127, 1)), masks(some(2, 10, 128, 1))),
    "AT_LIMIT": ("many_truncated", masks(some(4, 100, 128, 1)), masks(some(5, 100, 128, 1))),
    "two at the limit": ("many_truncated", masks(some(1, 9, 128, 1)), masks(some(2, 9, 128, 1))),
    "TRUNCATED": (
        "many_truncated",
        {"finish_reason": some(24, 100, "length", "stop")},
        {"finish_reason": some(25, 100, "length", "stop")},
    ),
    "mixed prompts": ("group_prompts error", mixed_groups(2), mixed_groups(3)),
    "HALF of groups": ("no_signal", signal((19, 40)), signal((20, 40))),
    "STEP_EQUAL": ("no_signal", signal((18, 20), (0, 30)), signal((19, 20), (0, 30))),
    "GROUPS_OF_STEP": ("no_signal", signal((3, 3), (0, 9)), signal((4, 4), (0, 9))),
    "SATURATED, highest": (
        "equal_rewards", {"reward": some(94, 100, 1, 0)}, {"reward": some(95, 100, 1, 0)}
    ),
    "SATURATED, lowest": (
        "equal_rewards", {"reward": some(94, 100, 0, 1)}, {"reward": some(95, 100, 0, 1)}
    ),
    "WITHOUT_PASS": ("signal_without_pass", shaped(4, 17), shaped(4, 16)),
    "graded rewards": ("signal_without_pass", shaped(4, 8, 0.5), shaped(4, 8, 0.49)),
    "CORRELATED": (
        "length_follows_reward", lengths_with_rewards(0.74, 200), lengths_with_rewards(0.76, 200)
    ),
    "STANDARD_ERRORS of a correlation": (
        "length_follows_reward", lengths_with_rewards(1, 15), lengths_with_rewards(1, 17)
    ),
    "LEAST restarts": ("rows_are_turns", of_turns(6), of_turns(7)),
    "FEW_TOKENS, constant": (
        "not_log_probs", {"old_log_probs": [[-0.5] * 15]}, {"old_log_probs": [[-0.5] * 16]}
    ),
    "FEW_TOKENS, filled": (
        "not_log_probs",
        {"old_log_probs": some(5, 9, [0.0] * 3, [-1.0] * 3), "ref_log_probs": 9 * [[-1.0, -2, -2]]},
        {"old_log_probs": some(6, 9, [0.0] * 3, [-1.0] * 3), "ref_log_probs": 9 * [[-1.0, -2, -2]]},
    ),
    "FEW_TOKENS, same": ("same_log_probs", equal_policies(15), equal_policies(16)),
    "LOG_PROB_ROUNDING": (
        "not_log_probs", {"old_log_probs": [[-1, 9e-4]]}, {"old_log_probs": [[-1, 1.1e-3]]}
    ),
    "MOST_K3": ("engine_mismatch", policies([0.1375] * 20), policies([0.1395] * 20)),
    "LEAST_ESS": (
        "engine_mismatch",
        policies(some(3, 10_000, log(20), 0)),
        policies(some(4, 10_000, log(20), 0)),
    ),
    "CONFIDENT_DISAGREEMENT": (
        "engine_mismatch",
        policies(some(4, 4000, -2.5, 0), infer=-0.1),
        policies(some(5, 4000, -2.5, 0), infer=-0.1),
    ),
    "TOKENS_OF_STEP": (
        "engine_mismatch",
        policies([0.15] * 255, [0.01] * 255, step=[0, 1]),  # too few to show a cause
        policies([0.15] * 256, [0.01] * 255, step=[0, 1]),
    ),
    "SHARED": ("shared_prefixes", forks(9), forks(10)),
    "HALF of responses, masked": (
        "padded_lists",
        {"response_mask": some(5, 10, [1, 1, 0], [1, 1, 1])},
        {"response_mask": some(6, 10, [1, 1, 0], [1, 1, 1])},
    ),
    "HALF of responses, zeros": (
        "padded_lists",
        tail_of_zeros(*((2 + row, 8 - row) for row in range(5)), *5 * [(10, 0)]),
        tail_of_zeros(*((2 + row, 8 - row) for row in range(6)), *4 * [(10, 0)]),
    ),
    "FILLED": ("padded_lists", tail_of_zeros((10, 4), (20, 2)), tail_of_zeros((10, 5), (20, 2))),
    "FEW_TOKENS, not padding": (
        "padded_lists",
        filled_by_policy((8, 2), (6, 4), (8, 2), (6, 4), (5, 4)),
        filled_by_policy((8, 2), (6, 4), (8, 2), (6, 4), (5, 3)),
    ),
    "HALF of responses, shifted": (
        "shifted_lists",
        tail_of_zeros(*some(5, 10, (9, 1), (10, 0))),
        tail_of_zeros(*some(6, 10, (9, 1), (10, 0))),
    ),
    "HALF of zeros": (
        "shifted_lists", tail_of_zeros(*10 * [(1, 1)]), tail_of_zeros((2, 1), *9 * [(1, 1)])
    ),
    "FEW_SHIFTED": ("shifted_lists", shifted(67), shifted(68)),
    "BETTER": ("shifted_lists", shifted(100, 0.7), shifted(100, 0.6)),
    "STANDARD_ERRORS of jumps": (
        "shifted_lists", jumps((0, 1), (3.9 / 8, 1)), jumps((0, 1), (4.1 / 8, 1))
    ),
    "FEW_SHIFTED jumps": (
        "shifted_lists", jumps((0, 1), (1, 1), count=62), jumps((0, 1), (1, 1))
    ),
    "BETTER jumps": (
        "shifted_lists", jumps((4.1 / 8, 1), (1, 1)), jumps((3.9 / 8, 1), (1, 1))
    ),
    "INVERTED": (
        "mask_values",
        masks_of((90, [0, 1, 0, 0]), (10, [1, 0])),
        masks_of((91, [0, 1, 0, 0]), (9, [1, 0])),
    ),
    "HALF are observations": (
        "mask_values",
        masks_of((5, [0, 1, 1, 0]), (5, [0, 1, 1, 1, 0, 0])),
        masks_of((5, [0, 1, 1, 0]), (5, [0, 1, 1, 0, 0, 0])),
    ),
    "EXACT": (
        "unusable_keys", {"prompt_id": [2.0**53 - 1] * 2}, {"prompt_id": [2.0**53] * 2}
    ),
    "NEAR": (
        "no_signal", {**groups([4]), "reward": [1, 1, 1, 1 - 6e-7]},
        {**groups([4]), "reward": [1, 1, 1, 1 - 4e-7]},
    ),
    "HALF without tokens": (
        "empty_masks error",
        {"response_mask": some(5, 10, [0], [1])},
        {"response_mask": some(6, 10, [0], [1])},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("finding", "below", "above"), PAIRS.values(), ids=PAIRS)
def test_a_finding_has_a_threshold(finding, below, above, tmp_path):
    for columns, expected in ((below, False), (above, True)):
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        findings = inspect([tmp_path / "a.parquet"]).findings
        name, _, word = finding.partition(" ")  # of its level or text
        texts = [f"{x.level}: {x.text}" for x in findings if x.check == name]
        assert any(word in text for text in texts) is expected, texts
