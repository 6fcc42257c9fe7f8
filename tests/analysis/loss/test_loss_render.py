"""`rlpost loss` as people meet it: what it says fits the loss, and what is odd is warned."""

import io
import json
import math
import re

import numpy as np
import pyarrow as pa
import pytest
from loss_runs import of_all, of_measures, texts, with_lists, with_nan
from rich.console import Console
from runs import loads, run
from test_loss_command import SAMPLE, dump, policy_tokens, save, summary_of, warnings

from rlpost.analysis.loss import render as render_loss
from rlpost.analysis.loss import run as loss_run
from rlpost.losses import LOSSES
from rlpost.losses.config import LossConfig
from rlpost.recipe.loss import LossOptions


def bounded(table):
    """The table with no log-prob above 0."""
    for name in ("log_probs", "old_log_probs", "ref_log_probs", "infer_log_probs"):
        table = with_lists(table, name, lambda x: min(x, 0.0))
    return table


# The cost of a sweep


# Columns


@pytest.mark.parametrize("role", ["log_probs", "old_log_probs", "infer_log_probs"])
def test_token_ids_are_rejected_as_log_probs(tmp_path, role):
    table = dump(8)
    ids = [[7] * len(row) for row in table.column("log_probs").to_pylist()]
    path = save(
        table.append_column("response_tokens", pa.array(ids, pa.list_(pa.int64()))),
        tmp_path / "in.parquet",
    )
    ran = run("loss", path, "--map", f"{role}=response_tokens")
    assert ran.code == 3
    assert f"`response_tokens` was chosen as {role}" in ran.err
    assert "lists of integers, like token ids" in ran.err


# Wrong log-probs


def test_positive_log_probs_are_counted(tmp_path):
    table = bounded(dump())
    assert "above 0" not in warnings(save(table, tmp_path / "good.parquet"))
    wrong = with_lists(table, "old_log_probs", lambda x: 0.75 if x < -1.5 else x)
    path = save(wrong, tmp_path / "bad.parquet")
    count = int((policy_tokens(path)["old_log_probs"] > 0).sum())
    assert count > 5
    text = re.compile(rf"`old_log_probs` .*\b{count} tokens .*\b0\.75\b")
    assert text.search(warnings(path))
    ran = run("advantages", path, tmp_path / "out.parquet", "--kl-coef", "0.1", "--replace")
    assert text.search(" ".join(ran.err.split()))
    rounded = with_lists(table, "old_log_probs", lambda x: 2e-5 if x > -0.2 else x)
    assert "above 0" not in warnings(save(rounded, tmp_path / "rounded.parquet"))


def test_probabilities_in_place_of_log_probs_give_a_warning(tmp_path):
    table = bounded(dump())
    for name in ("log_probs", "old_log_probs"):
        table = with_lists(table, name, math.exp)
    warned = warnings(save(table, tmp_path / "in.parquet"))
    for name in ("log_probs", "old_log_probs"):
        assert f"`{name}` ({name}) is between" in warned
    assert "these are probabilities" in warned
    assert "infer_log_probs" not in warned


def test_clamped_ratios_and_a_low_effective_sample_size_give_warnings(tmp_path):
    table = with_lists(bounded(dump()), "old_log_probs", lambda x: x - 30 if x < -2 else x)
    path = save(table, tmp_path / "in.parquet")
    tokens = policy_tokens(path)
    count = int(((tokens["log_probs"] - tokens["old_log_probs"]).abs() > 20).sum())
    assert count > 5
    got = summary_of(path)
    warned = " ".join(texts(got))
    assert f"|log_probs - old_log_probs| is above 20 at {count} tokens, up to" in warned
    assert of_all(got, "ratio_clamped", "total") == count
    assert of_all(got, "ratio_ess", "value") < 0.1
    assert "effective sample size" in warned
    assert "is above 20" not in warnings(path, "--ratio-clamp", "100")
    calm = warnings(save(bounded(dump()), tmp_path / "calm.parquet"))
    assert "effective sample size" not in calm


# Tables on a terminal


def screen(summary, width):
    """What a terminal of some width shows."""
    out = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    render_loss.page({"preset": None, "requested_estimator": None, **summary}).show(out)
    return re.sub(r"\x1b\[[0-9;]*m", "", out.file.getvalue())


FOUR = {
    "pg_clip": ("0.1:0.28", "0.2:0.28"),
    "dual_clip": (3.0,),
    "ratio_clamp": (20.0,),
    "aggregation": ("seq-mean-token-sum-norm", "token-mean"),
}


@pytest.mark.parametrize("width", [80, 60, 40])
def test_no_number_of_a_wide_sweep_is_cut_on_a_narrow_terminal(tmp_path, width):
    path = save(dump(), tmp_path / "in.parquet")
    values = [
        {"pg_clip": clip, "dual_clip": 3.0, "ratio_clamp": 20.0} | {"aggregation": how}
        for clip in FOUR["pg_clip"]
        for how in FOUR["aggregation"]
    ]
    summary = loss_run.loss(path, None, None, [LossConfig(LossOptions(**x), x) for x in values])
    shown = screen(summary, width)
    assert "…" not in shown
    words = shown.split()
    for one in summary["settings"]:
        assert render_loss.percent(of_all(one, "no_gradient")).split()[0] in words
    for loss in render_loss.aligned([of_all(x, "total_loss") for x in summary["settings"]]):
        assert loss in words
    for name in FOUR:
        assert name in shown
    assert max(map(len, shown.splitlines())) <= width
    assert words.count("seq-mean-token-sum-norm") >= 2  # no value of an option is broken


LABELS = {
    "ppo": ("clipped, ratio < 0.8", "clipped, ratio > 1.2"),
    "cispo": ("clipped, ratio > 5",),
    "dppo": ("clipped or masked, low", "clipped or masked, high"),
    "clip_cov": ("selected",),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_rows_of_clipped_tokens_name_their_bounds(tmp_path, name):
    path = save(dump(drift=1.5), tmp_path / "in.parquet")
    summary = loss_run.loss(path, None, None, [LossConfig(LossOptions(loss=name))])
    shown = " ".join(screen(summary, 80).split())
    assert math.isfinite(of_all(summary, "total_loss"))
    assert f" · {name}" in shown
    assert summary["formula"] in shown
    assert all(label in shown for label in LABELS.get(name, ())), shown
    labels = render_loss.branch_labels(summary)
    for state in ("clipped_low", "clipped_high", "clipped_dual", "selected"):
        total = of_all(summary, state, "total")
        if total or state in labels:
            assert f"{labels[state]} {total} " in shown


# The ratio with the rollout engine


def test_the_ratio_divides_by_the_engine_if_the_loss_does(tmp_path):
    table = dump()
    path = save(table, tmp_path / "in.parquet")
    got = summary_of(path, "--behaviour", "infer")
    tokens = policy_tokens(path)
    drift = tokens["log_probs"] - tokens["infer_log_probs"]
    ratio = drift.exp()
    assert got["behaviour"] == "infer"
    assert of_all(got, "ratio") == pytest.approx(ratio.mean())
    assert of_all(got, "ratio", "max") == pytest.approx(ratio.max())
    ess = ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())
    assert of_all(got, "ratio_ess", "value") == pytest.approx(ess)
    assert of_all(got, "log_ratio") == pytest.approx(drift.mean())
    median = np.sort(drift.to_numpy())[math.ceil(len(drift) / 2) - 1]
    assert math.log(of_all(got, "ratio", "quantiles")["0.5"]) == pytest.approx(median, rel=1 / 64)
    assert of_measures(got, "engine_") == of_measures(summary_of(path), "engine_") != {}
    shown = run("loss", path, "--behaviour", "infer").out
    assert "ratio r: exp(log_probs - infer_log_probs)" in shown
    assert "KL(rollout engine ‖ current)" in shown
    bare = save(table.drop_columns(["old_log_probs"]), tmp_path / "bare.parquet")
    without = summary_of(bare, "--behaviour", "infer")
    assert of_measures(without, "engine_") == {}
    for name in ("policy_loss", "clipped", "no_gradient"):
        assert without["facts"][name] == got["facts"][name]
    assert without["options"] == got["options"]
    assert run("loss", bare).code == 3
    preset = run("loss", bare, "--preset", "prime-rl")
    assert preset.code == 0, preset.err
    both = run("loss", path, "--sweep", "behaviour=old,infer")
    assert "ratio with behaviour infer: exp(log_probs - infer_log_probs)" in both.out


# Advantages


def test_recipe_options_without_effect_give_a_warning(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('estimator = "rloo"\nreward_clip = 2.0\n')
    warned = warnings(path, "--config", recipe)
    assert "--estimator, --reward-clip: without effect, since the input has advantages" in warned
    assert "--map advantages=none computes them anew" in warned
    anew = run("loss", path, "--config", recipe, "--map", "advantages=none")
    assert "computed by rloo; column advantages of the input is not used" in anew.out
    assert "since the input has none" not in anew.out
    assert "without effect" not in anew.out


def test_advantages_of_a_framework_give_a_warning(tmp_path):
    table = dump()
    names = ["dumped_advantages" if x == "advantages" else x for x in table.schema.names]
    path = save(table.rename_columns(names), tmp_path / "in.parquet")
    warned = warnings(path)
    assert "--map advantages=dumped_advantages uses them" in warned
    taken = summary_of(path, "--map", "advantages=dumped_advantages")
    assert taken["advantages_from"] == "dumped_advantages"
    assert "dumped_advantages" not in " ".join(texts(taken))


# Options


@pytest.mark.parametrize(
    "options",
    [
        *({"loss": name} for name in LOSSES),
        {"loss": "ppo", "pg_clip": 0.3, "dual_clip": "twice"},
        {"loss": "ppo", "pg_clip": ":0.4"},
        {"loss": "gspo", "dual_clip": "twice", "pg_clip": "3e-4:"},
        {"loss": "cispo", "loss_options": {"bounds": "ratio"}, "pg_clip": 2.0},
        {"loss": "dppo", "loss_options": {"prob_mask": "0.05:0.1"}},
        {"loss": "ppo", "aggregation": "seq-mean-token-sum-norm", "agg_norm": "rows"},
    ],
    ids=str,
)
def test_resolved_options_are_complete_and_give_the_same_loss(tmp_path, options):
    path = save(dump(), tmp_path / "in.parquet")
    want = loss_run.loss(path, None, None, [LossConfig(LossOptions.of(options))])
    values = want["options"]
    assert [name for name, value in values.items() if value is None] == (
        ["agg_length"] if "sum-norm" in values["aggregation"] else []
    )
    again = LossConfig(LossOptions.of(loads(json.dumps(values))))
    got = loss_run.loss(path, None, None, [again])
    for name in ("options", "formula", "bounds", "aggregation", "facts"):
        assert got[name] == want[name]


def test_the_summary_prints_the_parameters_of_a_formula(tmp_path):
    path = save(dump(), tmp_path / "in.parquet")
    for words, text in (
        ([], "; ε = 0.2, |log r| ≤ 20"),
        (["--pg-clip", "0.2:0.28", "--dual-clip", "3"], "ε = 0.2:0.28, c = 3"),
        (["--loss", "kimi15"], "τ = 0.1"),
        (["--loss", "cispo"], "ε = :4, bounds = offset"),
        (["--loss", "dppo", "--loss-option", "prob_mask=0.1:0.2"], "δ = 0.1:0.2, κ = 0.001"),
        (["--loss", "tis"], "weight = 0:1"),
        (["--loss", "dppo_tv", "--loss-option", "weight_cap=3"], "δ = 0.15, c = 3, |log r| ≤"),
        (["--loss", "clip_cov", "--loss-option", "share=0.01"], "cov = 1:5, share = 0.01"),
    ):
        assert text in run("loss", path, *words).out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--loss", "sapo", "--pg-clip", "2"], "--pg-clip: without effect on sapo"),
        (
            ["--agg-length", "9"],
            "--agg-length: without effect on ppo with --aggregation token-mean",
        ),
        (["--agg-rows", "all"], "--agg-rows: without effect"),
        (["--behaviour", "infer", "--loss", "pg"], "--behaviour: without effect on pg"),
    ],
)
def test_options_that_a_loss_ignores_give_a_warning(tmp_path, words, text):
    path = save(dump(), tmp_path / "in.parquet")
    assert text in warnings(path, *words)
    warned = warnings(path, "--pg-clip", "0.1", "--dual-clip", "3", "--kl-loss-estimator", "k1")
    assert "without effect" not in warned


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            '[loss]\nloss = "gpso"\n',
            "recipe.toml, [loss]: no policy loss 'gpso'\n  did you mean gspo",
        ),
        ("[loss]\npg_clip = -1\n", "recipe.toml, [loss]: pg_clip is -1"),
        (
            "[loss]\npg_clp = 1\n",
            "recipe.toml, [loss]: no option 'pg_clp'\n  did you mean pg_clip",
        ),
        (
            "pg_clip = 0.3\n",
            "'pg_clip': it is an option of the policy loss",
        ),
    ],
)
def test_errors_of_a_recipe_file_name_the_file_and_the_table(tmp_path, text, error):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(text)
    ran = run("loss", save(dump(8), tmp_path / "in.parquet"), "--config", recipe)
    assert ran.code == 2
    assert error in ran.err


# The output


def test_data_that_rlpost_did_not_write_is_never_overwritten(tmp_path):
    first, second = (save(dump(8, seed), tmp_path / f"{seed}.parquet") for seed in range(2))
    before = second.read_bytes()
    for command in ("loss", "advantages"):
        ran = run(command, first, second, "--overwrite", "--replace")
        assert ran.code == 2
        assert "OUT is a Parquet file that rlpost did not write" in ran.err
        assert second.read_bytes() == before
    for command in ("loss", "advantages"):
        out = tmp_path / f"{command}.parquet"
        assert run(command, first, out, "--replace").code == 0
        assert run(command, first, out, "--replace").code == 2
        assert run(command, first, out, "--replace", "--overwrite").code == 0
    scrap = tmp_path / "scrap.parquet"
    scrap.write_bytes(b"half a file")
    assert run("loss", first, scrap, "--overwrite").code == 0
    folder = tmp_path / "in"
    for seed in range(2):
        save(dump(8, seed), folder / f"{seed}.parquet")
    assert run("loss", folder, tmp_path, "--overwrite").code == 2
    assert second.read_bytes() == before


def test_clamped_kl_and_left_out_responses_are_reported(tmp_path):
    table = with_lists(bounded(dump()), "log_probs", lambda x: x - 8 if x < -2 else x)
    path = save(table, tmp_path / "in.parquet")
    tokens = policy_tokens(path)
    drift = tokens["ref_log_probs"] - tokens["log_probs"]
    count = int((drift.exp() - 1 - drift > 10).sum())
    assert count > 3
    assert of_all(summary_of(path), "kl_clamped", "total") == count
    assert f"KL was clamped to ±10 nats at {count} tokens." in run("loss", path).out
    free = run("loss", path, "--kl-loss-clamp", "never")
    assert "KL was clamped" not in free.out
    broken = save(with_nan(table)[1], tmp_path / "n.pq")
    got = summary_of(broken, "--nonfinite", "mask")
    assert got["nonfinite"] == 1
    warned, empty = " ".join(texts(got)), of_all(got, "without_tokens", "total") - 1
    assert "1 response left out: a number is not finite" in warned
    assert f"{empty} responses without a token in the loss" in warned


def test_markdown_has_header_warnings_and_notes():
    ran = run("loss", SAMPLE / "arithmetic.parquet", "--format", "markdown", "--agg-length", "2")
    assert ran.out.startswith("# rlpost loss · ")
    assert ran.out.splitlines()[2].startswith("- 2.0 % of 10,991 policy tokens")
    for text in (
        "advantages: computed by grpo",
        "- ratio r: exp(log_probs - old_log_probs)",
        "- ! --agg-length: without effect on ppo with --aggregation token-mean",
        "Aggregation token-mean",
    ):
        assert text in ran.out
    swept = run(
        "loss", SAMPLE / "arithmetic.parquet", "--format", "markdown", "--sweep", "pg_clip=0.1,0.2"
    )
    assert "| pg_clip | zero grad |" in swept.out


def test_no_gradient_at_all_is_the_last_line(tmp_path):
    table = dump()
    path = save(with_lists(table, "advantages", lambda _: 0.0), tmp_path / "z.pq")
    assert run("loss", path).out.splitlines()[-1].startswith("✗ ")
    out = tmp_path / "out.parquet"
    done = run("loss", save(table, tmp_path / "in.parquet"), out)
    assert done.out.splitlines()[-1].startswith(f"✓ {out}")
