"""`rlpost list`: what the lists have."""

from __future__ import annotations

import json

import pytest
from runs import rollout, run, save

from rlpost.cli.render.catalogue import ABOUT
from rlpost.losses import LOSSES


@pytest.mark.parametrize("kind", ABOUT)
def test_each_kind_has_a_list_and_a_page_of_each_entry(kind):
    rows = json.loads(run("list", kind, "--format", "json").out)
    name = next(iter(rows[0].values()))
    assert name in run("list", kind).out
    assert kind in run("list").out
    page = run("list", kind, name)
    assert page.code == 0
    assert name in page.out.lower()
    wrong = run("list", kind, f"{name}x")
    assert (wrong.code, wrong.out) == (2, "")
    assert f"did you mean {name}" in wrong.err


def test_a_path_alone_is_inspected_and_a_directory_gets_the_output(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    assert (
        run(source, "--format", "json").out.partition("seconds")[0]
        == (run("inspect", source, "--format", "json").out.partition("seconds")[0])
    )
    assert run("advantages", source, f"{tmp_path}/new/", "-q").code == 0
    assert (tmp_path / "new" / "in.parquet").is_file()


def test_the_estimators_have_formula_columns_and_source():
    ran = run("list", "estimators")
    assert ran.code == 0
    for part in ("grpo", "dr_grpo", "reward, values", "arXiv:1506.02438", "r - mean_g"):
        assert part in ran.out
    assert "…" not in ran.out


def test_the_losses_have_formula_columns_options_and_source():
    ran = run("list", "losses", "--format", "markdown")
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
    rows = json.loads(run("list", "losses", "--format", "json").out)
    assert [row["loss"] for row in rows] == [*LOSSES]
    tis = next(row for row in rows if row["loss"] == "tis")
    assert tis["options"][0] == {
        "option": "weight",
        "type": "LOW:HIGH",
        "default": "0:1",
        "meaning": "lowest and highest importance weight",
    }
    detailed = run("list", "losses", "tis").out
    assert "weight          LOW:HIGH  0:1      lowest and highest importance" in detailed
    two = json.loads(run("list", "losses", "gspo", "ppo", "--format", "json").out)
    assert [row["loss"] for row in two] == ["gspo", "ppo"]
    wrong = run("list", "losses", "gsppo")
    assert wrong.code == 2
    assert "did you mean gspo" in wrong.err
    markdown = run("list", "losses", "ppo", "--format", "markdown").out
    assert "| ppo | advantages, log_probs, old_log_probs |" in markdown
