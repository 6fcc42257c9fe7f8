"""ROLL's logging board: cut to the response, token rewards that are no values."""

from __future__ import annotations

import json

import format_writers_text as writers
import numpy as np
from text_dumps import MADE, columns, converted


def test_rolls_board_is_cut_to_the_response(tmp_path):
    table = converted(writers.roll_board(tmp_path / "a.jsonl", MADE), tmp_path / "o.parquet")
    old, ref, mask, tokens = columns(
        table, "old_log_probs", "ref_log_probs", "response_mask", "response_tokens"
    )
    assert old == [one.old for one in MADE]
    assert ref == [one.ref for one in MADE]
    assert mask == [[1] * one.length for one in MADE]
    assert tokens == [[f"t{token}" for token in one.tokens] for one in MADE]
    assert table["log_probs2"].to_pylist() == old


def test_rolls_token_rewards_are_neither_values_nor_process_rewards(tmp_path):
    table = converted(writers.roll_board(tmp_path / "a.jsonl", MADE), tmp_path / "o.parquet")
    assert not {"values", "token_rewards"} & {*table.column_names}
    for one, got in zip(MADE, table["dumped_token_rewards"].to_pylist(), strict=True):
        expected = -0.5 * (np.array(one.old) - np.array(one.ref))
        expected[-1] += one.reward
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


def test_a_board_response_without_tokens_stays(tmp_path):
    path = writers.roll_board(tmp_path / "a.jsonl", MADE)
    record = json.loads(path.read_text().splitlines()[3])
    for name in ("logprobs", "ref_logprobs", "new_response_mask", "log_probs2"):
        record[name] = []  # the writer's empty list for a row whose mask is all zeros
    record["old_log_probs2_entropy"] = []
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], json.dumps(record), *lines[4:]]) + "\n")
    table = converted(path, tmp_path / "o.parquet")
    assert table["old_log_probs"][3].as_py() == table["response_mask"][3].as_py() == []
    assert table["old_log_probs"][4].as_py() == MADE[4].old
