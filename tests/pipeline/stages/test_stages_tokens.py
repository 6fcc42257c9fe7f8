"""Stages of tokens: KL, the place of the reward, observations, whitening."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from stage_runs import TOKENS, agrees, close_lists, credit, row

import rlpost


def test_k4_weighs_by_the_ratio_of_the_policy_in_training():
    rows = [replace(r, current=[x + 0.5 for x in r.old]) for r in TOKENS]
    want = agrees(rows, estimator="raw", kl_coef=0.5, kl_estimator="k4")
    assert want.kl[0][0] == pytest.approx(np.exp(0.5))


def test_k4_of_a_teacher_reads_the_ratio_without_a_reference_policy():
    table = pa.table(
        {
            "reward": [1.0, 0.0],
            "response_mask": [[1, 1], [1]],
            "log_probs": [[-1.0, -2.0], [-0.5]],
            "old_log_probs": [[-1.5, -2.0], [-1.0]],
            "teacher": [[-2.0, -1.0], [-1.0]],
        }
    )
    ratios = [[np.exp(0.5), 1.0], [np.exp(0.5)]]
    recipe = rlpost.Recipe(estimator="opd", teachers={"teacher": 1.0}, kl_estimator="k4")
    for policy in ("old", "current"):
        numerics = rlpost.Numerics(kl_policy=policy)
        written, _ = rlpost.enrich(table, recipe.model_copy(update={"numerics": numerics}))
        student = table["old_log_probs" if policy == "old" else "log_probs"].to_pylist()
        both = zip(student, table["teacher"].to_pylist(), ratios, strict=True)
        want = [[-r * (s - t) for s, t, r in zip(*row, strict=True)] for row in both]
        close_lists(written["advantages"].to_pylist(), want)


def test_the_clamp_of_k3():
    rows = [row(0.0, [1, 1], old=[-9.0, -1.0], ref=[0.0, -1.0])]
    options = {"estimator": "raw", "kl_coef": 1.0, "kl_estimator": "k3"}
    assert credit(rows, {"kl_clamp": "k3:3"}, **options) == [[-3, -3]]
    assert credit(rows, {}, **options) == [[-10, -10]]
