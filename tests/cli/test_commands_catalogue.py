"""`rlpost list`: each kind has a list and a page of each entry; a path alone is inspected."""

from __future__ import annotations

import json

import pytest
from runs import rollout, run, save

from rlpost.cli.completion import KINDS as OFFERED
from rlpost.cli.render.catalogue import KINDS
from rlpost.estimators import ESTIMATORS
from rlpost.losses import LOSSES

HAS = {
    "estimators": ("gae", "reward, values", "δₜ = rₜ", "arXiv:1506.02438", "--lam", "lambda_value"),
    "losses": ("kl_cov", "advantages, log_probs, old_log_probs", "β|log r|", "0.0002",
               "arXiv:2505.22617"),
    "presets": ("verl", "kl_credit = ", "[loss]", "# Clip range"),
    "dumps": ("slime-train", "group, mask", "if dumped", "never"),
    "targets": ("verl", "prompt_token_ids", "the package verl", "optional"),
    "checks": ("unequal_lengths", "token lists", "differ in length"),
}  # fmt: skip
"""An entry of each kind, and what its page has."""


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_list_and_a_page_of_each_entry(kind):
    rows = json.loads(run("list", kind, "--format", "json").out)
    names = [next(iter(row.values())) for row in rows]
    assert kind in run("list").out
    assert kind in OFFERED
    assert all(name in run("list", kind).out for name in names)
    name, *texts = HAS[kind]
    page = run("list", kind, name)
    assert page.code == 0
    assert [text for text in texts if text not in page.out] == []
    assert "…" not in page.out
    wrong = run("list", kind, f"{name}x")
    assert (wrong.code, wrong.out) == (2, "")
    assert f"did you mean {name}" in wrong.err


def test_the_lists_have_all_entries_in_order_and_options_as_records():
    losses, estimators = (
        json.loads(run("list", kind, "--format", "json").out) for kind in ("losses", "estimators")
    )
    assert [row["loss"] for row in losses] == [*LOSSES]
    assert [row["estimator"] for row in estimators][: len(ESTIMATORS)] == [*ESTIMATORS]
    (tis,) = [row for row in losses if row["loss"] == "tis"]
    assert tis["options"][0] == {
        "option": "weight",
        "type": "LOW:HIGH",
        "default": "0:1",
        "meaning": "lowest and highest importance weight",
    }
    two = json.loads(run("list", "losses", "gspo", "ppo", "--format", "json").out)
    assert [row["loss"] for row in two] == ["gspo", "ppo"]
    markdown = run("list", "losses", "--format", "markdown").out
    assert "| ppo | advantages, log_probs, old_log_probs |" in markdown


def test_a_path_alone_is_inspected_and_a_directory_gets_the_output(tmp_path):
    source = save(rollout(), tmp_path / "in.parquet")
    texts = [run(*words, "--format", "json").out.partition("seconds")[0]
             for words in ((source,), ("inspect", source))]  # fmt: skip
    assert texts[0] == texts[1]
    assert run("advantages", source, f"{tmp_path}/new/", "-q").code == 0
    assert (tmp_path / "new" / "in.parquet").is_file()
