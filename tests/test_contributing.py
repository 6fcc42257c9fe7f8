"""The examples in CONTRIBUTING run, and the files that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import reference_estimators
import reference_losses
import torch
from reference import Response
from runs import run

from rlpost import Recipe, enrich
from rlpost.analysis.loss.render import parameters
from rlpost.losses import LOSSES, Tokens
from rlpost.losses.config import LossConfig
from rlpost.recipe.loss import KNOWN, NAMES, LossOptions

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = {
    block.partition("\n")[0].removeprefix("# "): block
    for block in re.findall(r"```python\n(.+?)```", PAGE, flags=re.DOTALL)
}


def names_of(title, helpers=None):
    names = dict(vars(helpers)) if helpers else {}
    exec(BLOCKS[title], names)  # noqa: S102
    return names


@pytest.mark.parametrize("options", [{}, {"of_two": "upper", "share": 0.5}])
def test_the_example_estimator_equals_its_reference(options, tmp_path):
    path = tmp_path / "median.py"
    path.write_text(BLOCKS["rlpost/estimators/groups.py"], encoding="utf-8")
    table = pq.read_table(ROOT / "sample_data" / "arithmetic.parquet")
    enriched, _ = enrich(table, Recipe(estimator=f"{path}:median", options=options))
    reference = names_of("tests/reference_estimators.py", reference_estimators)["median"]
    columns = table.select(["prompt_id", "step", "reward", "response_mask"]).to_pydict()
    rows = [
        Response(group=(step, prompt), reward=reward, mask=mask)
        for prompt, step, reward, mask in zip(*columns.values(), strict=True)
    ]
    token_rewards = [[0.0] * (len(row.mask) - 1) + [row.reward] for row in rows]
    expected, _ = reference(rows, token_rewards, **options)
    for row, written in zip(expected, enriched["advantages"].to_pylist(), strict=True):
        assert written == pytest.approx(row, abs=1e-6)


@pytest.fixture
def capped(monkeypatch):
    monkeypatch.setitem(vars(KNOWN), "own", (*NAMES, "capped"))
    loss = names_of("rlpost/losses/capped.py")["LOSSES"][-1]
    monkeypatch.setitem(LOSSES, "capped", loss)
    return loss


@pytest.mark.parametrize("clamp", [20.0, 0.5])
def test_the_example_loss_and_its_gradient_equal_the_reference(clamp, capped):
    reference = names_of("tests/reference_losses.py", reference_losses)["capped"]
    torch.manual_seed(7)
    new, old, advantages = torch.randn(3, 64, dtype=torch.float64)
    new.requires_grad_()
    mask = torch.ones(64, dtype=torch.bool)
    tokens = Tokens(new, old, advantages, mask, torch.tensor([0, 64]))
    found = capped(tokens, LossOptions(loss="capped", loss_options={"cap": 1.4}, ratio_clamp=clamp))
    row = reference_losses.Row(
        new.tolist(), new.tolist(), old.tolist(), old.tolist(), advantages.tolist(), 1.0
    )
    values, states, _ = zip(*reference(row, cap=1.4, clamp=clamp), strict=True)
    assert found.values.tolist() == pytest.approx(list(values))
    assert found.clip.tolist() == list(states)
    assert len({*states}) == 2
    (gradient,) = torch.autograd.grad(found.values.sum(), new)
    torch.testing.assert_close(gradient, found.gradient)


@pytest.mark.usefixtures("capped")
def test_the_option_of_the_example_loss_is_typed_shown_and_swept():
    config = LossConfig(LossOptions(loss="capped", loss_options={"cap": "1.1"}))
    assert parameters(config.resolved()) == "cap = 1.1, |log r| ≤ 20"
    assert config.ignored(["pg_clip", "ratio_clamp"]) == {"pg_clip": "capped"}
    sample = ROOT / "sample_data" / "arithmetic.parquet"
    ran = run("loss", sample, "--loss", "capped", "--sweep", "cap=1.1,2")
    rows = [line.split() for line in ran.out.splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("1.1", "2")] == ["1.1", "2"]
    assert "highest ratio" in run("list", "losses", "capped").out


def test_every_file_named_in_contributing_exists():
    named = set(re.findall(r"`((?:rlpost|tests|\.github|\.ci)/[\w./-]+)`", PAGE))
    examples = {"rlpost/losses/capped.py"}
    missing = {
        path
        for path in named - examples
        if not re.search(r"NAME|FRAMEWORK", path) and not (ROOT / path).exists()
    }
    assert missing == set()
