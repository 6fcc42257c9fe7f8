"""Replay of logged metrics: plain loops write a log, and a configuration has to reproduce it."""

import io
import json
import math
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import rlpost
from rlpost.analysis.replay.metrics import replay as work
from rlpost.analysis.replay.metrics.findings import FINDINGS
from rlpost.analysis.replay.metrics.logs import read_log
from rlpost.analysis.replay.metrics.run import MetricRequest, replay_log
from rlpost.analysis.replay.render import page
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.recipe.loss import ABOUT, LossOptions

FLOATS = pa.list_(pa.float32())


def dump(steps=3, groups=4, size=4, seed=0, *, drift=0.25, longest=40, observations=True):
    """Whole steps with log-probs of four policies, masks, and an advantage for each response."""
    rng = np.random.default_rng(seed)
    count = steps * groups * size
    columns = {name: [] for name in ("log_probs", "old_log_probs", "ref_log_probs", "advantages")}
    columns |= {"infer_log_probs": [], "response_mask": [], "entropy": []}
    for _ in range(count):
        n = int(rng.integers(3, longest))
        old = -rng.exponential(0.7, n)
        columns["old_log_probs"].append(old)
        columns["log_probs"].append(old + drift * rng.standard_normal(n))
        columns["infer_log_probs"].append(old + 0.05 * rng.standard_normal(n))
        columns["ref_log_probs"].append(old + 0.3 * rng.standard_normal(n))
        mask = rng.random(n) < 0.85 if observations else np.ones(n, bool)
        mask[0] = True
        columns["response_mask"].append(mask)
        columns["advantages"].append(np.full(n, rng.normal()) * mask)
        columns["entropy"].append(rng.exponential(1.0, n))
    lists = {name: pa.array([row.astype(np.float32) for row in rows], FLOATS)
             for name, rows in columns.items() if name != "response_mask"}  # fmt: skip
    return pa.table(
        {
            "step": np.repeat(np.arange(1, steps + 1), groups * size),
            "prompt_id": [f"p{i // size}" for i in range(count)],
            "reward": pa.array(rng.integers(0, 3, count), pa.float32()),
            "response_mask": pa.array(
                [row.astype(np.uint8) for row in columns["response_mask"]], pa.list_(pa.uint8())
            ),
            **lists,
        }
    )


def rows_of(table, step):
    """The responses of a step, as dicts of float64 arrays of policy tokens."""
    names = ("log_probs", "old_log_probs", "ref_log_probs", "infer_log_probs", "advantages")
    found = []
    for row in table.to_pylist():
        if row["step"] == step:
            mask = np.array(row["response_mask"], bool)
            own = {name: np.array(row[name])[mask] for name in (*names, "entropy")}
            found.append(own | {"reward": row["reward"], "all": len(mask)})
    return found


def ppo(row, low, high, dual=math.inf, old="old_log_probs"):
    """The loss of each token, and what is clipped below, above and by the dual clip."""
    ratio, advantage = np.exp(row["log_probs"] - row[old]), row["advantages"]
    loss = np.maximum(-advantage * ratio, -advantage * np.clip(ratio, 1 - low, 1 + high))
    below, above = (ratio < 1 - low) & (advantage < 0), (ratio > 1 + high) & (advantage > 0)
    capped = (advantage < 0) & (loss > -advantage * dual)
    return np.where(capped, -advantage * dual, loss), below, above, capped


def mean(rows, how, values, length=None):
    """Aggregate numbers of tokens over some responses."""
    sums = [float(np.sum(x)) for x in values]
    if how == "token-mean":
        return sum(sums) / sum(len(x) for x in values)
    if how == "seq-mean-token-mean":
        return sum(float(np.mean(x)) for x in values) / len(rows)
    if how == "seq-mean-token-sum":
        return sum(sums) / len(rows)
    assert how == "seq-mean-token-sum-norm"
    return sum(sums) / len(rows) / length


def blocks(rows, ranks=1, micro=None, strided=False, updates=1):
    """The micro-batches of a step, by rank and update."""
    found = []
    for rank in range(ranks):
        own = rows[rank::ranks] if strided else rows[
            rank * len(rows) // ranks : (rank + 1) * len(rows) // ranks
        ]  # fmt: skip
        for update in range(updates):
            part = own[update * len(own) // updates : (update + 1) * len(own) // updates]
            size = micro or len(part)
            found += [part[i : i + size] for i in range(0, len(part), size)]
    return found


def metrics_of(rows, how, low, high, dual=math.inf, old="old_log_probs", **split):
    """What a trainer would log of a step."""
    found = {"pg_loss": [], "pg_clipfrac": [], "ppo_kl": [], "pg_clipfrac_lower": []}
    for part in blocks(rows, **split):
        losses = [ppo(row, low, high, dual, old) for row in part]
        found["pg_loss"].append(mean(part, how, [one[0] for one in losses]))
        clipped = [(one[1] | one[2]) * 1.0 for one in losses]
        found["pg_clipfrac"].append(mean(part, "token-mean", clipped))
        found["pg_clipfrac_lower"].append(
            mean(part, "token-mean", [one[3] * 1.0 for one in losses])
        )
        kl = [row[old] - row["log_probs"] for row in part]
        found["ppo_kl"].append(mean(part, "token-mean", kl))
    return {f"actor/{name}": float(np.mean(values)) for name, values in found.items()}


def log_of(table, path, **options):
    """Write JSON lines as verl's file logger does."""
    steps = sorted({*table.column("step").to_pylist()})
    lines = []
    for step in steps:
        data = metrics_of(rows_of(table, step), **options) | {"perf/mfu": 0.4}
        data["critic/rewards/mean"] = float(
            np.mean([row["reward"] for row in rows_of(table, step)])
        )
        lines.append(json.dumps({"step": step, "data": data}))
    path.write_text("\n".join(lines) + "\n")
    return path


def replay_metrics(table, log, **fields):
    """Replay a log by a policy loss; the fields of the loss stay, those of the split, too."""
    split = {
        name: fields.pop(name) for name in ("micro_batch", "ranks", "updates") if name in fields
    }
    loss = LossOptions(**fields)
    return work.replay_metrics(table, log, None, loss, stated=fields, split=split)


CASES = [
    ({"how": "token-mean", "low": 0.2, "high": 0.2}, {"--pg-clip 0.2", "--aggregation token-mean"}),
    ({"how": "token-mean", "low": 0.2, "high": 0.28}, {"--pg-clip-high 0.28"}),
    (
        {"how": "seq-mean-token-mean", "low": 0.1, "high": 0.1, "micro": 8},
        {"--pg-clip 0.1", "--aggregation seq-mean-token-mean", "--micro-batch 8"},
    ),
    (
        {"how": "token-mean", "low": 0.2, "high": 0.2, "micro": 2, "ranks": 4, "strided": True},
        {"--micro-batch 2", "--ranks 4"},
    ),
    ({"how": "token-mean", "low": 0.2, "high": 0.2, "ranks": 2}, {"--micro-batch 8"}),  # a tie
    (
        {"how": "seq-mean-token-sum", "low": 0.3, "high": 0.3, "dual": 2.0, "micro": 2},
        {"--pg-clip 0.3", "--dual-clip 2", "--aggregation seq-mean-token-sum", "--micro-batch 2"},
    ),
    ({"how": "token-mean", "low": 0.15, "high": 0.4}, {"--pg-clip-low 0.15", "--pg-clip-high 0.4"}),
    (
        {"how": "token-mean", "low": 0.2, "high": 0.2, "old": "infer_log_probs"},
        {"--behaviour infer", "--pg-clip 0.2"},
    ),
    (
        {"how": "seq-mean-token-mean", "low": 0.2, "high": 0.272, "micro": 4, "ranks": 2},
        {"--pg-clip-high 0.272", "--micro-batch 4"},
    ),
]


@pytest.mark.parametrize(("options", "expected"), CASES)
def test_a_configuration_reproduces_a_log_with_its_aggregation_and_split(
    options, expected, tmp_path
):
    table = dump()
    log = log_of(table, tmp_path / "log.jsonl", **options)
    loss = {"pg_clip_low": options["low"], "pg_clip_high": options["high"]}
    loss |= {"dual_clip": options["dual"]} if "dual" in options else {}
    loss |= {"behaviour": "infer"} if "old" in options else {}
    found = replay_metrics(table, log, **loss)
    text = " ".join(found["description"]["options"])
    assert found["reproduced"], found["findings"]
    assert all(part in text for part in expected), text
    assert found["unknown_keys"] == ["perf/mfu"]
    assert found["findings"] == []


OWN = """
def ppo(ratio, advantages, *, width: float = 0.5):
    clipped = ratio.clamp(1 - width, 1 + width)
    return (-advantages * ratio).maximum(-advantages * clipped)


def of_whole_groups(ratio, advantages, offsets, group):
    assert (group.bincount() % 4 == 0).all()
    return ppo(ratio, advantages, width=0.2)
"""


@pytest.mark.parametrize("name", ["ppo", "of_whole_groups"])
def test_a_users_own_loss_reproduces_a_log(name, tmp_path, monkeypatch):
    table = dump()
    log = log_of(table, tmp_path / "log.jsonl", how="seq-mean-token-mean", low=0.2, high=0.2)
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.setattr("rlpost.pipeline.stages.loss._BLOCK", 64)  # less than a prompt group
    options = {"loss_options": {"width": 0.2}} if name == "ppo" else {}
    found = replay_metrics(table, log, loss=f"{tmp_path}/own.py:{name}", **options)
    (row,) = (one for one in found["metrics"] if one["key"] == "actor/pg_loss")
    assert row["reproduced"], found["findings"]
    assert row["aggregation"] == "seq-mean-token-mean"
    if name == "ppo":  # its default width is another one
        other = replay_metrics(table, log, loss=f"{tmp_path}/own.py:ppo")
        (row,) = (one for one in other["metrics"] if one["key"] == "actor/pg_loss")
        assert not row["reproduced"]


@pytest.mark.parametrize(("options", "expected"), [one for one in CASES if one[0]["low"] != 0.15])
def test_a_bound_that_is_not_stated_is_solved_for(options, expected, tmp_path):
    """One bound, or both if they are equal: a share of clipped tokens is one equation."""
    table = dump()
    log = log_of(table, tmp_path / "log.jsonl", **options)
    found = replay_metrics(table, log, loss="ppo")
    text = " ".join(found["description"]["options"])
    assert found["reproduced"], found["findings"]
    assert all(part in text for part in expected), text
    same = (options["low"], options["high"], options.get("old")) == (0.2, 0.2, None)
    assert len(found["findings"]) == (not same)
    assert all("the configuration has" in one["text"] for one in found["findings"])


def written(lines, path):
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def test_kl_term_of_a_rounded_loss_is_found(tmp_path):
    """TRL logs the loss with its KL term, with four digits."""
    table, lines = dump(steps=4, seed=3), []
    for step in range(1, 5):
        rows = rows_of(table, step)
        kl = [np.exp(row["ref_log_probs"] - row["log_probs"]) for row in rows]
        kl = [x - 1 - np.log(x) for x in kl]
        losses = [ppo(row, 0.2, 0.2) for row in rows]
        policy = mean(rows, "seq-mean-token-mean", [one[0] for one in losses])
        lines.append(
            {
                "step": step,
                "loss": round(policy + 0.04 * mean(rows, "seq-mean-token-mean", kl), 4),
                "kl": mean(rows, "token-mean", kl),
                "clip_ratio/low_mean": mean(rows, "token-mean", [one[1] * 1.0 for one in losses]),
                "clip_ratio/high_mean": mean(rows, "token-mean", [one[2] * 1.0 for one in losses]),
                "reward_std": float(np.std([row["reward"] for row in rows], ddof=1)),
                "completions/mean_length": float(np.mean([len(row["advantages"]) for row in rows])),
            }
        )
    found = replay_metrics(table, written(lines, tmp_path / "log.jsonl"), loss="ppo")
    text = " ".join(found["description"]["options"])
    assert found["reproduced"], found["findings"]
    assert "--aggregation seq-mean-token-mean" in text
    assert "--kl-loss-coef 0.04 --kl-loss-estimator k3" in text
    assert found["findings"][0]["name"] == "kl-loss"


@pytest.mark.parametrize("name", ABOUT)
def test_every_loss_reproduces_what_rlpost_loss_computes(name, tmp_path):
    """Also those that select tokens of a whole batch."""
    table, lines = dump(steps=2, groups=2, seed=3), []
    how = {"aggregation": "token-mean"} if name == "oreal" else {}  # its own is not searched for
    for step in (1, 2):
        rows = table.filter(pc.equal(table["step"], step))
        own = rlpost.loss(rows, loss=LossOptions(loss=name, **how)).to_dict()["settings"][0]
        lines.append({"step": step, "pg_loss": own["loss"]["policy"]})
    found = replay_metrics(table, written(lines, tmp_path / "log.jsonl"), loss=name)
    assert found["reproduced"], found["findings"]
    assert found["description"]["loss"]["loss"] == name


def other_loss(row, name):
    """The loss of each token, and what is clipped: of cispo, and of gspo with one ratio a row."""
    log_ratio, advantage = row["log_probs"] - row["old_log_probs"], row["advantages"]
    if name == "cispo":
        ratio = np.exp(log_ratio)
        clipped = (ratio < 0.9) | (ratio > 1.3)
        return -np.clip(ratio, 0.9, 1.3) * advantage * row["log_probs"], clipped
    ratio = np.exp(np.full(len(log_ratio), log_ratio.mean()))
    clipped = ((ratio < 0.98) & (advantage < 0)) | ((ratio > 1.03) & (advantage > 0))
    plain = -advantage * ratio
    return np.maximum(plain, -advantage * np.clip(ratio, 0.98, 1.03)), clipped


OTHER_LOSSES = [
    ("cispo", {"pg_clip_low": 0.1}, "--loss cispo --pg-clip-low 0.1 --pg-clip-high 0.3"),
    (
        "cispo",
        {"pg_clip_low": 0.9, "cispo_bounds": "ratio"},
        "--pg-clip-low 0.9 --pg-clip-high 1.3",
    ),
    ("gspo", {"pg_clip_high": 0.03}, "--loss gspo --pg-clip-low 0.02 --pg-clip-high 0.03"),
]


@pytest.mark.parametrize(("loss", "stated", "expected"), OTHER_LOSSES)
def test_a_bound_of_another_loss_is_solved_for(loss, stated, expected, tmp_path):
    table, lines = dump(steps=4, seed=21, longest=60), []
    for step in range(1, 5):
        rows = rows_of(table, step)
        both = [other_loss(row, loss) for row in rows]
        line = {"step": step, "pg_loss": mean(rows, "seq-mean-token-mean", [x for x, _ in both])}
        lines.append(line | {"clipfrac": mean(rows, "token-mean", [x * 1.0 for _, x in both])})
    found = replay_metrics(table, written(lines, tmp_path / "log.jsonl"), loss=loss, **stated)
    text = " ".join(found["description"]["options"])
    assert found["reproduced"], found["findings"]
    assert expected in text, text


def test_a_share_of_ratios_outside_of_the_bounds_is_solved_for(tmp_path):
    """ROLL counts tokens whose ratio is outside, also if the sign of A leaves them as they are."""
    table, lines = dump(seed=22), []
    for step in (1, 2, 3):
        rows = rows_of(table, step)
        ratios = [np.exp(row["log_probs"] - row["old_log_probs"]) for row in rows]
        outside = [((x < 0.8) | (x > 1.28)) * 1.0 for x in ratios]
        line = metrics_of(rows, "token-mean", 0.2, 0.28)
        line["actor/ppo_ratio_clipfrac"] = mean(rows, "token-mean", outside)
        del line["actor/pg_clipfrac"]
        lines.append({"step": step} | line)
    found = replay_metrics(table, written(lines, tmp_path / "log.jsonl"), loss="ppo")
    assert found["reproduced"], found["findings"]
    assert "--pg-clip-low 0.2 --pg-clip-high 0.28" in " ".join(found["description"]["options"])
    (share,) = (one for one in found["metrics"] if one["metric"] == "clip_frac")
    assert share["computed_as"].startswith("ratio outside the bounds, any advantage")


def test_bounds_of_two_and_three_digits_are_solved_for(tmp_path):
    table = dump(seed=4)
    log = log_of(table, tmp_path / "log.jsonl", how="token-mean", low=0.17, high=0.23)
    text = " ".join(replay_metrics(table, log, pg_clip_low=0.17)["description"]["options"])
    assert "--pg-clip-low 0.17 --pg-clip-high 0.23" in text
    log = log_of(table, tmp_path / "log.jsonl", how="token-mean", low=0.187, high=0.187)
    text = " ".join(replay_metrics(table, log)["description"]["options"])
    assert "--pg-clip 0.187" in text


CONTRADICTIONS = [
    ({"pg_clip_high": 0.2}, "--pg-clip-high 0.28; the configuration has --pg-clip-high 0.2"),
    ({"dual_clip": 3.0}, "--dual-clip 1.3; the configuration has --dual-clip 3"),
    ({"behaviour": "infer"}, "--behaviour old; the configuration has --behaviour infer"),
    (
        {"micro_batch": 4, "ranks": 1, "updates": 1},
        "--micro-batch 8; the configuration has --micro-batch 4",
    ),
    (
        {"aggregation": "token-mean"},
        "--aggregation seq-mean-token-sum; the configuration has --aggregation token-mean",
    ),
]


@pytest.mark.parametrize(("wrong", "expected"), CONTRADICTIONS)
def test_an_option_that_the_log_contradicts_is_named(wrong, expected, tmp_path):
    table, right = dump(seed=8), {"pg_clip_low": 0.2, "pg_clip_high": 0.28, "dual_clip": 1.3}
    how = {"how": "seq-mean-token-sum", "low": 0.2, "high": 0.28, "dual": 1.3, "micro": 8}
    log = log_of(table, tmp_path / "log.jsonl", **how)
    assert replay_metrics(table, log, **right)["findings"] == []
    found = replay_metrics(table, log, **{**right, **wrong})
    assert not found["reproduced"]
    (finding,) = found["findings"]
    assert finding["name"] == f"option:{next(iter(wrong))}"
    assert finding["text"].endswith(expected), finding["text"]


def test_metrics_that_differ_are_named_and_change_nothing_else(tmp_path):
    table = dump(seed=5)
    lines = [
        {"step": step} | metrics_of(rows_of(table, step), "token-mean", 0.2, 0.2, micro=8)
        for step in (1, 2, 3)
    ]
    for step, line in enumerate(lines):
        line["actor/pg_loss"] *= -8
        line["actor/ppo_kl"] = 0.01 + 0.003 * step**2
    found = replay_metrics(table, written(lines, tmp_path / "log.jsonl"))
    assert not found["reproduced"]
    rows = {row["key"]: row for row in found["metrics"]}
    assert rows["actor/pg_clipfrac"]["reproduced"]
    assert not rows["actor/ppo_kl"]["reproduced"]
    assert [one["name"] for one in found["findings"]] == ["factor", "unexplained"]
    assert "actor/pg_loss is -8 times" in found["findings"][0]["text"]
    assert "--micro-batch 8" in " ".join(found["description"]["options"])


def test_screens_fit_80_columns_and_print_what_differs(tmp_path):
    table = dump()
    lines = [{"step": step, "actor/pg_loss": 0.3 * step, "lr": 1.0} for step in (1, 2, 3)]
    found = replay_metrics(table, written(lines, tmp_path / "log.jsonl"))
    assert found["description"]["options"] == []  # none explains anything
    out = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    page({**found, "input": "in.parquet"}).show(out)
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("unexplained: actor/pg_loss" in line for line in lines[2:5])
    assert lines[-1].startswith("✗ ")
    unknown = lines[lines.index("Not compared") + 1]
    assert "lr" in unknown
    assert "--map-metric" in unknown


@pytest.mark.parametrize(
    ("dropped", "compared"),
    [
        (["log_probs"], ["reward_mean", "advantage_max"]),
        (["old_log_probs", "infer_log_probs", "advantages"], ["reward_mean"]),
    ],
)
def test_without_log_probs_rewards_are_compared(dropped, compared, tmp_path):
    table = dump()
    path = log_of(table, tmp_path / "log.jsonl", how="token-mean", low=0.2, high=0.2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        own = [row["advantages"].max() for row in rows_of(table, line["step"])]
        line["data"]["critic/advantages/max"] = float(max(own))
    found = replay_metrics(table.drop_columns(dropped), written(lines, path))
    assert found["reproduced"]
    assert [row["metric"] for row in found["metrics"]] == compared
    needs = {one["key"]: one["needs"] for one in found["not_computed"]}
    assert needs["actor/pg_loss"] == needs["actor/ppo_kl"] == dropped[0]


def test_logs_of_other_steps_are_shifted_or_rejected(tmp_path):
    table = dump(seed=6)
    rewards = [float(np.mean([row["reward"] for row in rows_of(table, s)])) for s in (1, 2, 3)]
    lines = [{"step": step, "reward": rewards[step - 2]} for step in (2, 3, 4)]
    found = replay_metrics(table, written(lines, tmp_path / "log.jsonl"))
    assert found["reproduced"]
    assert [one["name"] for one in found["findings"]] == ["input:step-order"]
    lines = [{"step": step, "reward": 0.5} for step in (70, 80)]
    with pytest.raises(DataError, match="steps 70, 80, but the input has 1, 2, 3"):
        replay_metrics(table, written(lines, tmp_path / "log.jsonl"))


@pytest.mark.parametrize("kind", ["csv", "console", "trainer", "dashboard"])
def test_kinds_of_logs(kind, tmp_path):
    table, path = dump(), tmp_path / "log"
    rewards = [float(np.mean([row["reward"] for row in rows_of(table, s)])) for s in (1, 2, 3)]
    if kind == "csv":
        lines = ["step,reward_mean,note", *(f"{s},{x},a" for s, x in enumerate(rewards, 1))]
    elif kind == "dashboard":
        lines = ['"Step","run 7 - critic/score/mean"']
        lines += [f'"{s}","{x}"' for s, x in enumerate(rewards, 1)]
    elif kind == "console":
        lines = ["loading"] + [
            f"step:{s} - critic/rewards/mean:np.float64({x}) - perf/mfu:0.3"
            for s, x in enumerate(rewards, 1)
        ]
    else:
        history = [{"step": s, "reward": x} for s, x in enumerate(rewards, 1)]
        lines = [json.dumps({"log_history": history, "global_step": 3})]
    path.write_text("\n".join(lines) + "\n")
    found = replay_metrics(table, path)
    assert found["reproduced"]
    assert found["steps"]["matched"] == 3


def lines_with_kl(table, *, coef, digits=None, high=0.28):
    """Lines of a trainer that logs the policy loss, its KL loss (k3), and both together."""
    lines = []
    for step in sorted({*table["step"].to_pylist()}):
        rows = rows_of(table, step)
        kl = [np.exp(row["ref_log_probs"] - row["log_probs"]) for row in rows]
        own = metrics_of(rows, "token-mean", 0.2, high)
        own["actor/kl_loss"] = mean(rows, "token-mean", [x - 1 - np.log(x) for x in kl])
        own["actor/loss"] = own["actor/pg_loss"] + coef * own["actor/kl_loss"]
        rounded = {key: x if digits is None else round(x, digits) for key, x in own.items()}
        lines.append({"step": step} | rounded)
    return lines


def test_kl_loss_that_is_set_stays(tmp_path):
    table = dump(steps=4, seed=13)
    log = written(lines_with_kl(table, coef=0.001), tmp_path / "log.jsonl")
    found = replay_metrics(table, log)
    text = " ".join(found["description"]["options"])
    assert found["reproduced"]
    assert "--kl-loss-coef 0.001 --kl-loss-estimator k3" in text
    for value in (0.01, 0.0):
        found = replay_metrics(table, log, pg_clip_high=0.28, kl_loss_coef=value)
        assert not found["reproduced"]
        assert [one["text"] for one in found["findings"]] == [
            f"actor/loss needs --kl-loss-coef 0.001; the configuration has --kl-loss-coef {value:g}"
        ]
        assert [row["key"] for row in found["metrics"] if not row["reproduced"]] == ["actor/loss"]
    assert replay_metrics(table, log, pg_clip_high=0.28, kl_loss_coef=0.001)["reproduced"]


def test_ties_reproduce_a_loss_with_its_terms(tmp_path):
    table = dump(steps=4, seed=13)
    lines = lines_with_kl(table, coef=0.001)
    for line in lines:
        del line["actor/pg_loss"], line["actor/pg_clipfrac_lower"]
    log = written(lines, tmp_path / "log.jsonl")
    found = replay_metrics(table, log)
    assert found["reproduced"]
    assert "--pg-clip-high 0.28" in " ".join(found["description"]["options"])
    assert {tie["option"] for tie in found["ties"]} <= {"--micro-batch, --ranks"}
    other = {"loss", "step"}
    lines = [{k: x for k, x in line.items() if k.rpartition("/")[2] in other} for line in lines]
    for line, own in zip(lines, lines_with_kl(table, coef=0.001, high=0.2), strict=True):
        line["actor/loss"] = own["actor/loss"]
    found = replay_metrics(table, written(lines, tmp_path / "log.jsonl"))
    assert "--pg-clip 0.2" in " ".join(found["description"]["options"])
    assert {tie["option"] for tie in found["ties"]} <= {"--micro-batch, --ranks"}


def test_a_step_with_another_clip_range_is_named(tmp_path):
    table = dump(steps=4, seed=13)
    lines = lines_with_kl(table, coef=0.001)
    lines[1] |= metrics_of(rows_of(table, 2), "token-mean", 0.1, 0.1)
    lines[1]["actor/loss"] = lines[1]["actor/pg_loss"] + 0.001 * lines[1]["actor/kl_loss"]
    log = written(lines, tmp_path / "log.jsonl")
    for stated in ({}, {"pg_clip_low": 0.2, "pg_clip_high": 0.28}):
        found = replay_metrics(table, log, **stated)
        text = " ".join(found["description"]["options"])
        assert "--pg-clip-low 0.2 --pg-clip-high 0.28 --aggregation token-mean" in text
        assert "--kl-loss-coef 0.001 --kl-loss-estimator k3" in text
        texts = [one["text"] for one in found["findings"] if one["name"] == "some-steps"]
        same = "is reproduced at 75.0 % of the steps; it differs at step 2"
        assert texts == [f"actor/{one} {same}" for one in ("pg_loss", "pg_clipfrac", "loss")]


def test_an_entropy_bonus_is_found(tmp_path):
    table, lines = dump(seed=14), []
    for step in (1, 2, 3):
        rows = rows_of(table, step)
        own = metrics_of(rows, "token-mean", 0.2, 0.28)
        entropy = mean(rows, "token-mean", [row["entropy"] for row in rows])
        own["actor/loss"] = own["actor/pg_loss"] - 0.01 * entropy
        lines.append({"step": step} | own)
    found = replay_metrics(table, written(lines, tmp_path / "log.jsonl"), pg_clip_high=0.28)
    assert found["reproduced"]
    (bonus,) = found["findings"]
    assert bonus["name"] == "entropy-bonus"
    assert "actor/loss has a further term: " in bonus["text"]
    assert "- 0.01 x entropy" in bonus["text"]


@pytest.mark.parametrize("name", FINDINGS)
def test_every_check_of_a_log_has_a_meaning_and_advice(name):
    check = FINDINGS[name]
    for text in (check.meaning, check.advice):
        assert re.fullmatch(r"[A-Z].*[^.]\.", text), text


def test_rounding_leaves_the_coefficient_of_a_kl_loss_open(tmp_path):
    table = dump(steps=4, seed=13)
    log = written(lines_with_kl(table, coef=0.003, digits=4), tmp_path / "log.jsonl")
    found = replay_metrics(table, log)
    assert "--kl-loss-estimator k3" in " ".join(found["description"]["options"])
    (tie,) = (one for one in found["ties"] if one["option"] == "--kl-loss-coef")
    low, high = map(float, tie["values"][0].split(" to "))
    assert low < 0.003 < high


def test_what_is_no_number_in_a_log_is_named(tmp_path):
    table, path = dump(), tmp_path / "log.jsonl"
    lines = [{"step": step} | metrics_of(rows_of(table, step), "token-mean", 0.2, 0.2)
             for step in (1, 2, 3)]  # fmt: skip
    lines[1]["actor/pg_loss"] = math.nan
    lines[0]["actor/ppo_kl"] = math.inf
    lines[2]["actor/pg_clipfrac"] = None
    lines[2]["actor/pg_clipfrac_lower"] = "oops"
    lines = [line | {"actor/entropy": None} for line in [*lines, {"step": 9}]]
    found = replay_metrics(table, written(lines, path))
    assert not found["reproduced"]
    assert [(one["name"], one["text"].split(" is ")[1]) for one in found["findings"]] == [
        ("not-finite", "NaN in the log at step 2"), ("not-finite", "infinite in the log at step 1"),
    ]  # fmt: skip
    warnings = " ".join(found["warnings"])
    assert "actor/pg_clipfrac is null at step 3 of the log" in warnings
    assert "actor/pg_clipfrac_lower is 'oops' at step 3 of the log" in warnings
    assert "1 of 4 steps" in warnings
    assert [one["key"] for one in found["not_computed"]] == ["actor/entropy"]
    verdict = page({**found, "input": "in.parquet"}).verdict
    assert verdict.severity == "error"
    assert re.findall(r"\d+", verdict.text)[:2] == ["2", "4"]
    assert verdict.text.endswith("; 1 not compared")
    for line in lines:
        line["actor/ppo_kl"] = line["actor/pg_loss"] = None
    assert replay_metrics(table, written(lines, path))["reproduced"]


def test_files_that_are_no_log_are_rejected(tmp_path):
    table, path = dump(), tmp_path / "log"
    with pytest.raises(ReadWriteError, match="No such file"):
        replay_metrics(table, path)
    pq.write_table(table, path)
    with pytest.raises(DataError, match="a Parquet file; a file of a logger is needed"):
        replay_metrics(table, path)
    path.write_text("step;reward\n1;0,5\n")
    with pytest.raises(DataError, match="a CSV with semicolons between its columns; commas"):
        replay_metrics(table, path)
    with pytest.raises(UsageError, match="metrics is of type Table: the path of a log is needed"):
        replay_metrics(table, table)


def test_files_are_read_in_chunks_with_the_numbers_of_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr("rlpost.analysis.replay.metrics.replay.SAMPLE_RESPONSES", 32)
    table = dump(steps=5, seed=9)
    log = log_of(table, tmp_path / "log.jsonl", how="token-mean", low=0.2, high=0.2, micro=4)
    split = {"micro_batch": 4, "ranks": 1, "updates": 1}
    expected = replay_metrics(table, log, pg_clip=0.2, **split)
    numbers = [max(row, key=abs) for row in table["advantages"].to_pylist()]
    columns = table.drop_columns(["advantages"]).append_column("advantages", pa.array(numbers))
    for file, part in enumerate((columns.slice(0, 30), columns.slice(30))):
        pq.write_table(part, tmp_path / f"{file}.parquet", row_group_size=7)
    loss = LossOptions(pg_clip=0.2)
    request = MetricRequest(log, loss, frozenset({"pg_clip"}), split=split)
    found = replay_log([str(tmp_path / "*.parquet")], request)
    assert found["reproduced"]
    assert found["metrics"] == expected["metrics"]
    assert found["description"] == expected["description"]


LINE = '{"step": 1, "actor/pg_loss": 0.1}'


@pytest.mark.parametrize(
    "text",
    [
        LINE[:-1] + ', "sample": "a\u2028b\u0085c"}\n' + LINE,
        "step,actor/pg_loss,sample\n1,0.1," + "x" * 300_000,
        '{"log_history": 3, "step": 1, "actor/pg_loss": 0.1}',
        LINE[:-1] + ', "big": 1.5e-' + "9" * 600 + ', "none": 0.0e' + "9" * 5000 + "}",
        f"{LINE}\n{LINE.replace('0.1', '1e308')}\n{LINE.replace('0.1', '1e308')}",
        f"{LINE}\n{LINE.replace('0.1', 'Infinity')}\n{LINE.replace('0.1', '-Infinity')}",
    ],
    ids=["line ends in texts", "long cell", "no history", "exponents", "overflow", "infinities"],
)
def test_hostile_logs_are_read(text, tmp_path):
    path = tmp_path / "log"
    path.write_text(text, encoding="utf-8")
    log = read_log(path)
    assert "1" in log.keys["actor/pg_loss"]


@pytest.mark.parametrize("text", ["[" * 20_000, '{"a":' * 5_000 + "1" + "}" * 5_000], ids=len)
def test_logs_that_are_nested_too_deeply_are_errors(text, tmp_path):
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(DataError, match=f"--metrics {path}"):
        read_log(path)
