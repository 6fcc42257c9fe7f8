"""`rlpost estimators`, `losses` and `presets`: what the lists have."""

from __future__ import annotations

import json

from runs import run

from rlpost.losses import LOSSES


def test_the_estimators_have_formula_columns_and_source():
    ran = run("estimators")
    assert ran.code == 0
    for part in ("grpo", "dr_grpo", "reward, values", "arXiv:1506.02438", "r - mean_g"):
        assert part in ran.out
    assert "…" not in ran.out


def test_the_losses_have_formula_columns_options_and_source():
    ran = run("losses", "--format", "markdown")
    assert ran.code == 0
    for part in (
        "kl_cov",
        "advantages, log_probs, old_log_probs",
        "-stop(clip(r, low, high))·A·log π",
        "seq-mean-token-mean",
        "share 0.0002",
        "arXiv:2505.22617",
        "log_probs, old_log_probs, ref_log_probs",
    ):
        assert part in ran.out
    assert "…" not in ran.out
    rows = json.loads(run("losses", "--format", "json").out)
    assert [row["loss"] for row in rows] == [*LOSSES]
    tis = next(row for row in rows if row["loss"] == "tis")
    assert tis["options"][0] == {
        "option": "weight",
        "type": "LOW:HIGH",
        "default": "0:1",
        "meaning": "lowest and highest importance weight",
    }
    detailed = run("losses", "tis").out
    assert "weight          LOW:HIGH  0:1      lowest and highest importance" in detailed
    two = json.loads(run("losses", "gspo", "ppo", "--format", "json").out)
    assert [row["loss"] for row in two] == ["gspo", "ppo"]
    wrong = run("losses", "gsppo")
    assert wrong.code == 2
    assert "did you mean gspo" in wrong.err
    markdown = run("losses", "ppo", "--format", "markdown").out
    assert "| ppo | advantages, log_probs, old_log_probs |" in markdown
