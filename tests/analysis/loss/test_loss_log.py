"""`rlpost loss --log`: logged metrics beside computed ones, on logs with planted differences."""

import json

import numpy as np
import pyarrow as pa
import pytest
from runs import run, save

import rlpost
from rlpost.errors import DataError, ReadWriteError, UsageError

STEPS, GROUP, KL = 4, 4, 0.01


@pytest.fixture(scope="module")
def table():
    """Four steps of responses of unequal lengths, with log-probs of three policies."""
    rng = np.random.default_rng(7)
    steps = np.repeat(np.arange(1, STEPS + 1), 4 * GROUP)
    lengths = rng.integers(3, 30, len(steps))
    lists = {
        "old_log_probs": [-rng.exponential(1, n) for n in lengths],
        "advantages": [np.full(n, rng.normal()) for n in lengths],
    }
    for name, scale in (("log_probs", 0.2), ("ref_log_probs", 0.1), ("infer_log_probs", 0.01)):
        lists[name] = [
            np.minimum(row + rng.normal(0, scale, len(row)), 0) for row in lists["old_log_probs"]
        ]
    columns = {
        "step": steps,
        "prompt_id": np.arange(len(steps)) // GROUP,
        "reward": rng.random(len(steps)),
        "response_mask": [[1] * int(n) for n in lengths],
    }
    return pa.table(columns | {name: pa.array(rows) for name, rows in lists.items()})


def logged(table, **options):
    """The rows that a trainer with these options logs, under verl's names."""
    facts = rlpost.loss(table, loss=rlpost.LossOptions(**options)).facts
    means = {name: np.array(entry["step"]["mean"]) for name, entry in facts.items()
             if "mean" in entry.get("step", ())}  # fmt: skip
    columns = {
        "actor/pg_loss": means["policy_loss"],
        "actor/kl_loss": means["kl_loss"],
        "loss": means["total_loss"],
        "actor/pg_clipfrac": means["clipped_low"] + means["clipped_high"],
        "actor/ppo_kl": -means["log_ratio"],
        "rollout_corr/k3_kl": means["engine_k3"],
        "actor/ratio_max": facts["ratio"]["step"]["max"],
        "actor/entropy": [0.5] * STEPS,
        "lr": [1e-6] * STEPS,
    }
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, map(float, row), strict=True)) for row in rows]


def write(path, rows, first=1):
    lines = [json.dumps({"step": first + i, "data": row}) for i, row in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def compared(table, path, **options):
    """The summary, and its findings by metric."""
    found = rlpost.loss(table, loss=rlpost.LossOptions(**options), log=path)
    return found, {x["metric"]: x for x in found["findings"] if x["check"] == "log"}


def test_a_log_that_agrees_has_no_finding(table, tmp_path):
    path = write(tmp_path / "log.jsonl", logged(table, kl_loss_coef=KL))
    found, findings = compared(table, path, kl_loss_coef=KL)
    assert findings == {}
    metrics = {metric["metric"]: metric for metric in found["log"]["metrics"]}
    assert metrics.pop("entropy")["computed_as"] is None
    assert len(metrics) == 7
    assert {sum(metric["step"]["equal"]) for metric in metrics.values()} == {STEPS}
    assert metrics["pg_loss"]["step"]["label"] == ["1", "2", "3", "4"]
    assert metrics["engine_kl"]["computed_as"] == "engine_k3"


@pytest.mark.parametrize(
    ("options", "differ"),
    [
        ({"aggregation": "seq-mean-token-mean"}, {"pg_loss", "kl_loss", "loss"}),
        ({"pg_clip": "0.2:0.28"}, {"pg_loss", "loss", "clip_frac"}),
        ({"kl_loss_coef": 5 * KL}, {"loss"}),
    ],
)
def test_metrics_of_another_loss_differ(options, differ, table, tmp_path):
    path = write(tmp_path / "log.jsonl", logged(table, **options))
    _, findings = compared(table, path)
    assert findings.keys() == differ
    for name in differ:
        assert "4 of 4 steps: the logged one is" in findings[name]["text"]


def test_a_factor_a_nan_and_steps_of_one_side(table, tmp_path):
    rows = logged(table)[1:]
    for i, row in enumerate(rows):
        row["actor/pg_loss"] *= -2
        row["actor/ppo_kl"] = float("nan") if i == 1 else row["actor/ppo_kl"]
        row["actor/kl_loss"] = None
    found, findings = compared(table, write(tmp_path / "log.jsonl", [*rows, *rows], first=2))
    assert "logged = -2 x computed at every step" in findings["pg_loss"]["text"]
    by_name = {metric["metric"]: metric for metric in found["log"]["metrics"]}
    assert by_name["ppo_kl"]["step"]["label"] == ["2", "4"]
    assert [found["log"][name] for name in ("steps", "only_in_log", "only_in_input")] == [3, 3, 1]
    json.dumps(found.to_dict(), allow_nan=False)


def test_numbers_that_a_logger_rounded_are_equal_within_half_a_decimal(table, tmp_path):
    lines = ["step,actor/pg_loss,actor/pg_clipfrac"]
    lines += [
        f"{i},{row['actor/pg_loss']:.4f},{row['actor/pg_clipfrac']:.4f}"
        for i, row in enumerate(logged(table), 1)
    ]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    assert compared(table, tmp_path / "log.csv")[1] == {}
    off = [line.rpartition(",")[0] + ",0.0" for line in lines[1:]]
    (tmp_path / "log.csv").write_text("\n".join([lines[0], *off]) + "\n")
    assert compared(table, tmp_path / "log.csv")[1].keys() == {"clip_frac"}


def test_the_command_prints_both_and_reads_named_columns(table, tmp_path):
    rows = [{"my/loss": row["actor/pg_loss"] + 1} for row in logged(table)]
    path, source = write(tmp_path / "log.jsonl", rows), save(table, tmp_path / "in.parquet")
    words = ("loss", source, "--log", path, "--log-map", "pg_loss=my/loss")
    ran = run(*words, "--verbose")
    assert ran.code == 0, ran.err
    assert "Logged metrics of 4 steps" in ran.out
    assert "pg_loss (`my/loss`) differs at 4 of 4 steps" in " ".join(ran.out.split())
    found = json.loads(run(*words, "--format", "json").out)
    assert found["log"]["metrics"][0]["step"]["label"][3] == "4"
    assert found["findings"][0]["columns"] == ["my/loss"]
    for more, text in (
        (("--sweep", "pg_clip=0.1,0.2"), "exclude each other"),
        (("--log-map", "x=my/loss"), "no metric 'x'"),
    ):
        ran = run(*words, *more)
        assert (ran.code, text in ran.err) == (2, True)
    assert run("loss", source, "--log-map", "pg_loss=a").code == 2


ERRORS = {
    '{"step": 1, "actor/pg_loss": 0.1}\n{': (DataError, "cannot be parsed"),
    '{"actor/pg_loss": 0.1}': (DataError, "no column for the step"),
    '{"step": 1, "mine": 0.1}': (DataError, "no column is a known metric"),
    "[" * 50_000: (DataError, "no column for the step"),
    '{"a":' * 50_000: (DataError, "cannot be parsed"),
    "step,a\n": (DataError, "no column for the step"),
}


@pytest.mark.parametrize("text", ERRORS, ids=lambda text: text[:20])
def test_logs_that_cannot_be_compared_are_errors(text, table, tmp_path):
    (tmp_path / "log").write_text(text)
    kind, message = ERRORS[text]
    with pytest.raises(kind, match=message):
        rlpost.loss(table, log=tmp_path / "log")


def test_other_errors_name_the_log(table, tmp_path):
    with pytest.raises(ReadWriteError, match="gone: No such file"):
        rlpost.loss(table, log=tmp_path / "gone")
    path = write(tmp_path / "log.jsonl", logged(table))
    with pytest.raises(DataError, match="--log-map pg_loss=x: no column 'x'"):
        rlpost.loss(table, log=path, log_map={"pg_loss": "x"})
    with pytest.raises(UsageError, match="--log-map: has no effect"):
        rlpost.loss(table, log_map={"pg_loss": "x"})
    path = write(tmp_path / "log.jsonl", logged(table), first=90)
    (finding,) = rlpost.loss(table, log=path).findings
    assert "none of its steps, 90, 91, 92, ..., is in the input: 1, 2, 3" in finding["text"]
