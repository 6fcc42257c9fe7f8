"""Losses of users' own: a function in a file, or an entry point."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from runs import loads, run

import rlpost
from rlpost.errors import RlpostError, UsageError
from rlpost.functional import policy_loss
from rlpost.recipe.loss import LossOptions

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "sample_data" / "arithmetic.parquet"
EXAMPLES = ROOT / "tests" / "examples" / "losses"
PLAIN = '''
import torch


def ppo(ratio, advantages, *, pg_clip=(0.2, 0.2)):
    """PPO"""
    clipped = ratio.clamp(1 - pg_clip[0], 1 + pg_clip[1])
    return torch.maximum(-advantages * ratio, -advantages * clipped)


def marked(ratio, advantages, mask):
    return -advantages * ratio, mask * 4


def scaled(log_probs, difficulty, offsets, *, scale: float):
    return -scale * log_probs * torch.repeat_interleave(difficulty, offsets.diff())


def best(log_probs, rewards, offsets, group):
    codes = group.unique(return_inverse=True)[1]
    highest = torch.full_like(rewards, -torch.inf).scatter_reduce(0, codes, rewards, "amax")
    chosen = (rewards == highest[codes]).to(log_probs.dtype)
    return -log_probs * torch.repeat_interleave(chosen, offsets.diff())
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(PLAIN, encoding="utf-8")
    return path


def facts(*words):
    return loads(run("loss", *words, "--format", "json").out)["facts"]


def test_ppo_as_a_user_writes_it_is_ppo(file, tmp_path):
    own, theirs = tmp_path / "own.parquet", tmp_path / "ppo.parquet"
    for path, name in ((own, f"{file}:ppo"), (theirs, "ppo")):
        rlpost.loss(SAMPLE, path, loss=LossOptions(loss=name, pg_clip="0.2:0.1"))
    left, right = (pq.read_table(path, columns=["pg_loss", "clip_state"]) for path in (own, theirs))
    assert left["clip_state"].equals(right["clip_state"])
    for mine, other in zip(*(x["pg_loss"].to_pylist() for x in (left, right)), strict=True):
        assert mine == pytest.approx(other, rel=1e-6, abs=1e-9)
    mine, other = (facts(SAMPLE, "--loss", x) for x in (f"{file}:ppo", "ppo"))
    assert mine["no_gradient"] == other["no_gradient"]
    losses = [x["total_loss"]["all"]["mean"] for x in (mine, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_options_are_typed_and_swept(file):
    words = (SAMPLE, "--loss", f"{EXAMPLES / 'sppo.py'}:sppo")
    swept = run("loss", *words, "--sweep", "epsilon=0.1,0.5", "--format", "json")
    one, two = loads(swept.out)["settings"]
    assert [x["options"]["loss_options"] for x in (one, two)] == [
        {"epsilon": 0.1},
        {"epsilon": 0.5},
    ]
    clipped = [x["facts"]["clipped"]["all"]["total"] for x in (one, two)]
    assert clipped[0] > clipped[1] > 0
    own = facts(*words, "--loss-option", "epsilon=0.5")
    assert own["total_loss"] == two["facts"]["total_loss"]
    for name, texts in (("sppo", ("epsilom=1", "epsilon=no")), ("scaled", ("other=1",))):
        path = EXAMPLES / "sppo.py" if name == "sppo" else file
        for text in texts:
            assert run("loss", SAMPLE, "--loss", f"{path}:{name}", "--loss-option", text).code == 2


def test_columns_by_name_and_clip_states_of_its_own(file):
    scaled = facts(SAMPLE, "--loss", f"{file}:scaled", "--loss-option", "scale=2")
    table = pq.read_table(SAMPLE, columns=["difficulty", "log_probs", "response_mask", "step"])
    losses = [
        (row["step"], -2 * row["difficulty"] * x)
        for row in table.to_pylist()
        for x, m in zip(row["log_probs"], row["response_mask"], strict=True)
        if m
    ]
    of_steps = scaled["policy_loss"]["step"]
    for label, loss in zip(of_steps["label"], of_steps["mean"], strict=True):
        own = [x for step, x in losses if step == label]
        assert loss == pytest.approx(np.mean(own), rel=1e-9)
    assert facts(SAMPLE, "--loss", f"{file}:marked")["selected"]["all"]["mean"] == 1


def test_a_loss_of_groups_gets_whole_groups(file, tmp_path):
    name = f"{file}:best"
    whole = facts(SAMPLE, "--loss", name, "--chunk-tokens", "64")
    table = pq.read_table(SAMPLE)
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    pq.write_table(shuffled, tmp_path / "shuffled.parquet")
    other = facts(tmp_path / "shuffled.parquet", "--loss", name)
    totals = [x["total_loss"]["all"]["mean"] for x in (whole, other)]
    assert totals[1] == pytest.approx(totals[0], rel=1e-12)
    rows = table.select(["step", "prompt_id", "reward", "log_probs", "response_mask"]).to_pylist()
    highest = {}
    for row in rows:
        key = (row["step"], row["prompt_id"])
        highest[key] = max(highest.get(key, -np.inf), row["reward"])
    losses = [
        -x * (row["reward"] == highest[row["step"], row["prompt_id"]])
        for row in rows
        if row["step"] == 0
        for x, m in zip(row["log_probs"], row["response_mask"], strict=True)
        if m
    ]
    assert whole["policy_loss"]["step"]["mean"][0] == pytest.approx(np.mean(losses), rel=1e-9)
    (tmp_path / "parts").mkdir()
    for part, at in (("a", 0), ("b", 3)):
        size = 3 if part == "a" else None
        pq.write_table(table.slice(at, size), tmp_path / "parts" / f"{part}.parquet")
    ran = run("loss", tmp_path / "parts", "--loss", name)
    assert (ran.code, "group" in ran.err) == (3, True)


def trinity(name, new, old, advantages):
    """trinity_rft 0.6.0: policy_loss_fn/sppo_loss_fn.py:41-46, opmd_policy_loss.py:30-32."""
    losses = []
    for x, y, a in zip(new, old, advantages, strict=True):
        inside = 1 / 1.3 <= torch.exp(x - y) <= 1.3
        losses.append(-a * (x - y) * inside if name == "sppo" else -a * x / 2)
    return sum(losses) / len(losses)


@pytest.mark.parametrize("name", ["sppo", "opmd"])
def test_losses_of_trinity_as_files(name):
    old, advantages = torch.randn(2, 40, dtype=torch.float64, generator=torch.manual_seed(3))
    new = (old + 0.3 * torch.randn(40, dtype=torch.float64)).requires_grad_()
    offsets, loss = torch.tensor([0, 15, 40]), f"{EXAMPLES / name}.py:{name}"
    found = policy_loss(new, old, advantages, offsets, loss=loss)
    want = trinity(name, new, old, advantages)
    torch.testing.assert_close(found.loss, want)
    (gradient,) = torch.autograd.grad(found.loss, new)
    torch.testing.assert_close(gradient, torch.autograd.grad(want, new)[0])


WRONG = {
    "return ratio[:3]": "3",
    "return ratio / (1 // 0)": "line 2: ZeroDivisionError",
    "return None": "NoneType",
    "return (ratio - ratio).sqrt()": "gradient",
    "return -ratio.detach()": "no gradient",
    "return ratio.mean()": "scalar",
    "return ratio.detach().numpy()": "ndarray",
}


@pytest.mark.parametrize("body", WRONG)
def test_the_error_of_a_failing_function_names_it(body, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"def wrong(ratio):\n    {body}\n", encoding="utf-8")
    with pytest.raises(RlpostError, match=WRONG[body]) as caught:
        rlpost.loss(SAMPLE, loss=LossOptions(loss=f"{path}:wrong"))
    assert "wrong" in str(caught.value)


def test_policy_loss_names_every_missing_argument(file):
    new, offsets = torch.zeros(3), torch.tensor([0, 3])
    for name, options, words in (
        ("best", {}, ("rewards=", "units=")),
        ("scaled", {"scale": 1.0}, ("columns={'difficulty'",)),
        ("scaled", {"scal": 1.0}, ("did you mean scale",)),
    ):
        with pytest.raises(UsageError) as caught:
            policy_loss(new, new, new, offsets, loss=f"{file}:{name}", **options)
        assert all(word in str(caught.value) for word in words)


def test_fields_are_numbers_where_the_function_has_numbers(tmp_path):
    path = tmp_path / "mine.py"
    text = "def own(ratio, *, pg_clip: float = 0.2, kl_loss_clamp=1.0):\n    "
    path.write_text(f"{text}return ratio * (pg_clip + kl_loss_clamp)\n", encoding="utf-8")
    new, offsets = torch.zeros(2), torch.tensor([0, 2])
    for options, want in (({}, 10.2), ({"pg_clip": 0.5, "kl_loss_clamp": "all:3"}, 3.5)):
        loss = policy_loss(new, new, new, offsets, loss=f"{path}:own", **options).tokens
        torch.testing.assert_close(loss, torch.full((2,), want))
    with pytest.raises(UsageError, match=r"^--pg-clip 0.1:0.2: must be a valid number"):
        policy_loss(new, new, new, offsets, loss=f"{path}:own", pg_clip="0.1:0.2")
