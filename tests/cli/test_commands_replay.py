"""`rlpost replay`: its screens, its formats, its exit codes and its errors."""

import io
import re
import shlex
import tomllib
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manual.program import ROOT, run
from runs import strict_json

import rlpost
from rlpost import manual
from rlpost.analysis.replay import render
from rlpost.display.console import console
from rlpost.errors import DataError, UsageError

SAMPLE = ROOT / "sample_data" / "arithmetic.parquet"
STAGES = ("kl", "token_level_rewards", "raw_advantages", "advantages", "returns")
GAE = ("--preset", "verl", "--estimator", "gae", "--kl-coef", "0.05")


@pytest.fixture(autouse=True)
def lines_that_do_not_wrap(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="module")
def rollouts():
    """Two steps of a few groups."""
    table = pq.read_table(SAMPLE).drop_columns(["prompt", "response"])
    step = table["step"].to_numpy()
    rows = np.concatenate([np.flatnonzero(step == one)[:40] for one in (1, 2)])
    return table.take(rows)


@pytest.fixture(scope="module")
def folder(rollouts, tmp_path_factory):
    """Files with recorded columns: of GAE, of GRPO, and one under another name."""
    home = tmp_path_factory.mktemp("replay")
    gae = rlpost.preset("verl", estimator="gae", kl_coef=0.05, emit=STAGES)
    pq.write_table(rlpost.enrich(rollouts, gae)[0], home / "gae.parquet")
    grpo = rlpost.enrich(rollouts, rlpost.preset("verl", emit=("advantages",)))[0]
    pq.write_table(grpo, home / "grpo.parquet")
    theirs = grpo.rename_columns([n if n != "advantages" else "adv" for n in grpo.column_names])
    pq.write_table(theirs, home / "theirs.parquet")
    return home


def test_a_reproduced_recipe_is_code_0_with_every_stage_equal(folder):
    ran = run(["replay", "gae.parquet", *GAE, "--format", "json"], folder)
    found = strict_json(ran.out)
    assert ran.code == 0
    assert found["reproduced"]
    assert [one["stage"] for one in found["stages"]] == [
        "kl", "token_level_rewards", "raw_advantages", "returns", "advantages",
    ]  # fmt: skip
    assert {one["verdict"] for one in found["stages"]} == {"equal"}
    assert found["recipe"]["named"] == " ".join(GAE)
    keys = {"schema_version", "input", "tolerance", "stages", "first", "findings", "examples"}
    assert keys < found.keys()
    lines = run(["replay", "gae.parquet", *GAE], folder).out.splitlines()
    assert lines[0] == "rlpost replay · gae.parquet"
    assert lines[-1].startswith("✓ ")
    assert "5 recorded columns" in lines[-1]


@pytest.fixture(scope="module")
def parted(folder):
    """A replay with another λ, of one of two steps and of everything."""
    words = ["--lam", "0.5", "--sample", "500", "--format", "json"]
    ran = run(["replay", "gae.parquet", *GAE, *words], folder)
    assert ran.code == 1
    return strict_json(ran.out)


def printed(found, **options):
    """The lines of the page of a result, in a pipe."""
    out = console(io.StringIO())
    render.page(found, **options).show(out)
    return out.file.getvalue().splitlines()


def block(lines, title):
    """The lines below a title that begins so, with it, up to the next blank line."""
    first = next(i for i, line in enumerate(lines) if line.startswith(title))
    return lines[first : [*lines[first:], ""].index("") + first]


def test_the_first_stage_that_parts_is_the_verdict_with_its_largest_differences(parted, folder):
    found, lines = parted, printed(parted)
    assert "`--lam 1`" in lines[2]  # what the difference is
    assert lines.index("Stages") > 2
    (parts,) = [one for one in found["stages"] if one["first"]]
    (verdict,) = [line for line in lines if line.startswith("✗ ")]
    counts = re.search(r"(\S+) of (\S+) tokens", verdict)
    assert [counts[1], counts[2]] == [f"{parts[k]:,}" for k in ("differing", "compared")]
    assert "`raw_advantages`" in verdict
    first = found["examples"][0]
    table = pq.read_table(folder / "gae.parquet")
    stored = table["raw_advantages"][first["row"]].as_py()
    np.testing.assert_allclose(first["recorded"], stored[first["token"]], rtol=1e-6)
    _, headings, line, *_ = block(lines, "Largest differences")
    assert headings.split() == [
        "row",
        "step",
        "prompt",
        "token",
        "reward",
        "recorded",
        "computed",
        "Δ",
    ]
    row, step, prompt, token, _, *numbers = line.split()
    keys = [first[key] for key in ("row", "step", "prompt_id", "token")]
    assert [row, step, prompt, token] == [str(key) for key in keys]
    of_token = [first[side] for side in ("recorded", "computed", "difference")]
    np.testing.assert_allclose([float(x) for x in numbers], of_token, 1e-3)


def test_a_search_prints_its_recipe_and_saves_what_config_reads(folder, rollouts):
    words = ["replay", "grpo.parquet", "--estimator", "grpo"]
    ran = run(words, folder)
    assert ran.code == 0, ran.err
    recipes = block(ran.out.splitlines(), "Recipes with the same numbers on this file")[1:]
    assert recipes[0].startswith("--estimator grpo  ")
    assert any(line.startswith("--preset") for line in recipes[1:])
    command = next(line for line in ran.out.splitlines() if "rlpost config" in line)
    found = run(shlex.split(command.partition("rlpost ")[2], comments=True), folder).out
    assert tomllib.loads(found) == {}  # the default
    (folder / "found.toml").write_text(found)
    pq.write_table(rollouts, folder / "in.parquet")
    config = ["--config", "found.toml"]
    assert run(["advantages", "in.parquet", "again.parquet", *config, "-q"], folder).code == 0
    again = pq.read_table(folder / "again.parquet")["advantages"]
    recorded = pq.read_table(folder / "grpo.parquet")["advantages"]
    for one, other in zip(again.to_pylist(), recorded.to_pylist(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert run(["replay", "grpo.parquet", "--config", "found.toml"], folder).code == 0


def test_the_recipe_in_the_metadata_is_compared_before_a_search(rollouts, tmp_path):
    named = ["--preset", "verl", "--estimator", "grpo", "--numerics", "norm_eps=0.01"]
    pq.write_table(rollouts, tmp_path / "in.parquet")
    assert run(["advantages", "in.parquet", "out.parquet", *named, "-q"], tmp_path).code == 0
    words = ["replay", "out.parquet", "--estimator", "grpo", "--format", "json"]
    found = strict_json(run(words, tmp_path).out)
    best = found["search"]["best"]
    assert (best["named"], best["by_metadata"]) == (shlex.join(named), True)
    assert (found["reproduced"], found["search"]["tried"]) == (True, 0)
    other = strict_json(run([*words, "--numerics", "norm_eps=0.02"], tmp_path).out)
    assert other["search"]["tried"] > 0


def of_turns(name):
    """Two steps of rollouts of several turns, whose ids are in a column of this name."""
    table = pq.read_table(SAMPLE.with_name("calculator.parquet")).slice(0, 160)
    table = table.drop_columns(["prompt", "response", "state_id", "step_score", "episode_score"])
    bonus = pa.array([[int(10 * x)] for x in table["reward"].to_pylist()])
    table = table.append_column("bonus", bonus)
    return table.rename_columns([name if n == "traj_id" else n for n in table.column_names])


IDS = ("traj_id", "rollout_id", "trajectory_id", "conversation")
COLUMNS_NAMED = {
    **{name: f"--estimator grpo --map rollout={name} --rollout-reward last" for name in IDS},
    "components": "--estimator gdpo --reward-components bonus,difficulty --unit row",
    "teacher": "--estimator opd --teacher infer_log_probs=0.5 --unit row",
}
"""Options that name a column; text and lists of whole numbers are read only if one names them."""


@pytest.mark.parametrize("name", COLUMNS_NAMED)
@pytest.mark.parametrize(
    "mode",
    [("--preset", "default"), pytest.param((), marks=pytest.mark.nightly)],
    ids=["recipe", "search"],
)
def test_options_that_name_a_column_read_any_column(name, mode, tmp_path):
    options = COLUMNS_NAMED[name].split()
    pq.write_table(of_turns(name if name in IDS else "traj_id"), tmp_path / "in.parquet")
    made = run(["advantages", "in.parquet", "out.parquet", *options], tmp_path)
    assert made.code == 0, made.err
    ran = run(["replay", "out.parquet", *mode, *options, "--format", "json"], tmp_path)
    assert ran.code == 0, ran.err
    found = strict_json(ran.out)
    assert found["reproduced"]
    assert ("search" in found) == (mode == ())


def test_a_table_in_memory_is_an_input_like_its_file(folder):
    recipe = rlpost.preset("verl", estimator="gae", kl_coef=0.05)
    path = folder / "gae.parquet"
    own, other = rlpost.replay(path, recipe), rlpost.replay(pq.read_table(path), recipe)
    assert own.input == str(path)
    assert other.input == "Table"
    assert own.to_dict() | {"input": ""} == other.to_dict() | {"input": ""}
    with pytest.raises(UsageError, match="recipe and fixed exclude each other"):
        rlpost.replay(path, recipe, fixed={"lam": 1})
    with pytest.raises(UsageError, match=r"recipe is the text 'trl': .* rlpost.preset\(\"trl\"\)"):
        rlpost.replay(path, "trl")
    with pytest.raises(DataError, match=r"^Table: no recorded column"):
        rlpost.replay(pq.read_table(path, columns=["reward", "prompt_id"]), recipe)


GAE_FILE, WEIGHTS = "gae.parquet", ("--map", "sample_weight=values", "--map", "advantages=none")
ERRORS = {
    (str(SAMPLE),): (3, r"no recorded column \(.*choose one with --map advantages=COLUMN"),
    (GAE_FILE, "--map", "kl=nothing"): (3, "--map kl=nothing: no such column"),
    (GAE_FILE, "--map", "kl=prompt_id"): (3, "`prompt_id` is text; a number, or a list"),
    (GAE_FILE, "--map", "advantage=adv"): (2, "did you mean advantages"),
    (GAE_FILE, "--map", "advantages=prompt_tokens"): (
        3, "row 0: `prompt_tokens` has .*one for each token is needed.*--map advantages=",
    ),
    (GAE_FILE, "--tolerance", "-1"): (2, "--tolerance -1.0: a number from 0 on is needed"),
    (GAE_FILE, "--sample", "0"): (2, "--sample 0: at least 1 token is needed"),
    (GAE_FILE, *GAE, "-v", "--format", "json"): (2, "--verbose: has no effect with --format json"),
    (GAE_FILE, "--emit", "kl"): (2, "no option --emit"),
    (GAE_FILE, "--lam", "2"): (2, "--lam 2: must be less than or equal to 1"),
    (GAE_FILE, "--estimator", "no"): (2, "--estimator: no estimator 'no'"),
    (GAE_FILE, "--estimator", "grpo", "--lam", "0.5"): (2, "--lam .*grpo"),
    (GAE_FILE, "--preset", "trl", "--reward-components", "a,b"): (
        3, "gae.parquet: --reward-components a: no column 'a'",
    ),
    (GAE_FILE, "--numerics", "sinlge=raw"): (2, "--numerics sinlge: no .* mean single"),
    (GAE_FILE, "--kl-target", "1"): (2, "--kl-target needs --kl-coef above 0"),
    (GAE_FILE, "--estimator", "gdpo", "--preset", "verl"): (2, "gdpo needs --reward-components"),
    ("grpo.parquet", "--preset", "trl", *WEIGHTS): (3, "computes none of the recorded columns"),
}  # fmt: skip


@pytest.mark.parametrize("words", ERRORS, ids=lambda words: " ".join(words[-2:]))
def test_errors_name_what_came_and_what_to_do(words, folder):
    code, text = ERRORS[words]
    ran = run(["replay", *words], folder)
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert re.search(text, " ".join(ran.err.split())), ran.err


def test_the_manuals_function_records_verls_batch(rollouts, tmp_path):
    """A DataProto has tensors padded on the right, with the prompt before them."""
    torch = pytest.importorskip("torch")
    code = re.search(r"```py\n(# record_verl\.py\n.+?)```", manual.page("compare"), re.DOTALL)[1]
    module = types.ModuleType("record_verl")
    exec(compile(code, "record_verl.py", "exec"), module.__dict__)  # noqa: S102
    table = rlpost.enrich(rollouts, rlpost.preset("verl", emit=("advantages", "returns")))[0]
    lengths = [len(row) for row in table["response_mask"].to_pylist()]
    width = max(lengths)

    def padded(name):
        rows = table[name].to_pylist()
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])

    scores = torch.zeros(len(lengths), width)
    for i, (length, reward) in enumerate(zip(lengths, table["reward"].to_pylist(), strict=True)):
        scores[i, length - 1] = reward
    inside = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    tensors = {
        **{name: padded(name) for name in ("response_mask", "old_log_probs", "advantages")},
        "attention_mask": torch.cat([torch.ones(len(lengths), 3, dtype=torch.long), inside], 1),
        "token_level_scores": scores,
    }
    batch = types.SimpleNamespace(
        batch=tensors, non_tensor_batch={"uid": table["prompt_id"].to_pylist()}
    )
    steps = table["step"].to_numpy()
    module.record(batch, 1, tmp_path / "verl.parquet")
    written = pq.read_table(tmp_path / "verl.parquet")
    assert written["advantages"].to_pylist() == table["advantages"].to_pylist()
    kept = written.append_column("own", pa.array(steps))
    kept = kept.drop_columns(["step"]).rename_columns({"own": "step"})
    pq.write_table(kept, tmp_path / "verl.parquet")
    ran = run(["replay", "verl.parquet", "--preset", "verl", "--format", "json"], tmp_path)
    found = strict_json(ran.out)
    assert ran.code == 0, found["stages"]
    assert found["recorded"] == {"advantages": "advantages"}
