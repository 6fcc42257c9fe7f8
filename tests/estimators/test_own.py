"""What a user's function may return, read and be set to."""

import json
from importlib.metadata import EntryPoint
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import run

import rlpost
from rlpost.errors import DataError, UsageError
from rlpost.estimators import base, estimator_named

HEAD = """
from typing import Literal
import numpy as np
import torch

"""


def table():
    """Two groups of two responses; 6 of 7 tokens are policy tokens."""
    return pa.table({
        "prompt_id": ["a", "a", "b", "b"],
        "step": [1, 1, 2, 2],
        "reward": [1.0, 0.0, 2.0, 5.0],
        "response_mask": [[1, 1], [1], [1, 0, 1], [1]],
        "values": [[0.1, 0.2], [0.3], [0.4, 0.5, 0.6], [0.7]],
        "correct": [True, False, True, True],
        "kind": ["x", "y", "x", "z"],
        "turns": [1, 2, 3, 4],
        "entropy": [[1.0, 2.0], [3.0], [4.0, 99.0, 5.0], [6.0]],
        "three": [[1.0, 2.0, 3.0]] * 4,
        "words": [["a"], ["b"], [], []],
        "hash": [2**60, 1, 2, 3],
        "gap": [1.0, None, 2.0, 3.0],
        "unsure": [True, None, True, True],
    })  # fmt: skip


@pytest.fixture
def of(tmp_path):
    """Return the name of an estimator that is defined by a source."""

    def name(source):
        path = tmp_path / "mine.py"
        path.write_text(HEAD + source, encoding="utf-8")
        return f"{path}:f"

    return name


def enriched(name, **fields):
    out, summary = rlpost.enrich(table(), rlpost.Recipe(estimator=name, **fields))
    return out, summary


def advantages(name, **fields):
    return enriched(name, **fields)[0].column("advantages").to_pylist()


# What it returns

RETURNED = {
    "torch.zeros(len(rewards))": [0, 0, 0, 0],
    "torch.arange(len(rewards))": [0, 1, 2, 3],
    "rewards > 0": [1, 0, 1, 1],
    "rewards.half()": [1, 0, 2, 5],
    "rewards.numpy()": [1, 0, 2, 5],
    "rewards.numpy().astype('>i2')": [1, 0, 2, 5],
    "rewards.clone().requires_grad_()": [1, 0, 2, 5],
    "rewards.to_sparse()": [1, 0, 2, 5],
    "torch.ones(1).expand(4)": [1, 1, 1, 1],
    "(rewards, torch.zeros(4, dtype=torch.int8))": [1, 0, 2, 5],
    "rewards.mul_(2)": [2, 0, 4, 10],
}


@pytest.mark.parametrize("value", RETURNED)
def test_real_numbers_of_any_type_are_advantages(value, of):
    out, _ = enriched(of(f"def f(rewards):\n    return {value}\n"))
    assert [row[0] for row in out.column("advantages").to_pylist()] == RETURNED[value]
    assert out.column("response_level_rewards").to_pylist() == [1, 0, 2, 5]


NOT_RETURNED = {
    "None": "None",
    "1.0": "float",
    "[1.0, 2.0, 3.0, 4.0]": "list",
    "{}": "dict",
    "(rewards,)": "tuple of 1",
    "(rewards, rewards, rewards)": "tuple of 3",
    "(rewards, None)": "None",
    "rewards.to(torch.complex64)": "complex64",
    "np.array(['a'] * 4)": "<U1",
    "np.ma.masked_array([1.0] * 4)": "MaskedArray",
    "torch.empty(4, device='meta')": "without plain numbers",
    "rewards[:3]": r"shape \(3,\); .*\(4,\)",
    "rewards[:, None]": r"shape \(4, 1\); .*\(4,\)",
    "rewards.mean()": r"shape \(\); .*\(4,\)",
    "rewards / 0": "NaN or infinite numbers for 4 of 4 responses",
    "rewards / (1 // 0)": "line 7: ZeroDivisionError",
}


@pytest.mark.parametrize("value", NOT_RETURNED)
def test_other_results_are_errors_that_name_the_function(value, of):
    name = of(f"def f(rewards):\n    return {value}\n")
    with pytest.raises((UsageError, DataError), match=NOT_RETURNED[value]) as caught:
        enriched(name)
    assert str(caught.value).startswith(f"estimator {name}")


@pytest.mark.parametrize("nonfinite", ["error", "mask"])
def test_numbers_that_are_not_finite_are_an_error_with_a_mask_too(nonfinite, of):
    name = of("def f(token_rewards, offsets):\n    return token_rewards / 0\n")
    with pytest.raises(DataError, match="for 6 of 6 tokens"):
        enriched(name, nonfinite=nonfinite)


def test_responses_that_are_left_out_may_get_numbers_that_are_not_finite(of):
    name = of("def f(gap, values, offsets):\n"
              "    return values + torch.repeat_interleave(gap, offsets.diff())\n")  # fmt: skip
    got = advantages(name, nonfinite="mask")
    np.testing.assert_allclose([x for row in got for x in row], [1.1, 1.2, 0, 2.4, 0, 2.6, 3.7])


# Which level it has


@pytest.mark.parametrize("first", ["rewards, values", "values, rewards", "rewards, entropy"])
def test_a_parameter_of_tokens_makes_it_an_estimator_of_tokens_wherever_it_stands(first, of):
    tokens = first.replace("rewards", "").strip(", ")
    assert advantages(of(f"def f({first}, offsets):\n    return {tokens} * 0 + 1\n")) == [
        [1, 1], [1], [1, 0, 1], [1],
    ]  # fmt: skip
    with pytest.raises(UsageError, match=rf"shape \(4,\); .*\(6,\), because `{tokens}`"):
        enriched(of(f"def f({first}, offsets):\n    return rewards\n"))
    spread = "torch.repeat_interleave(rewards, offsets.diff())"
    assert advantages(of(f"def f({first}, offsets):\n    return {spread}\n")) == [
        [1, 1], [0], [2, 0, 2], [5],
    ]  # fmt: skip


def test_a_mask_makes_it_an_estimator_of_all_tokens(of):
    assert advantages(of("def f(rewards, mask):\n    return mask * 2\n")) == [
        [2, 2], [2], [2, 0, 2], [2],
    ]  # fmt: skip


def test_it_may_change_the_columns_that_it_gets(of):
    name = of("def f(token_rewards, offsets):\n    return token_rewards.sub_(1)\n")
    emit = ("advantages", "token_level_rewards")
    out, _ = enriched(name, emit=emit)
    assert out.column("token_level_rewards").to_pylist() == [[0, 1], [0], [0, 0, 2], [5]]
    assert out.column("advantages").to_pylist() == [[-1, 0], [-1], [-1, 0, 1], [4]]


PARAMETERS = {
    "def f(): return 1": "no positional parameter",
    "def f(*rewards): return 1": r"\*rewards",
    "def f(rewards, **more): return 1": r"\*\*more",
    "def f(rewards, /): return 1": "positional-only",
    "f = 3": "of type int",
}


@pytest.mark.parametrize("source", PARAMETERS)
def test_a_signature_that_names_no_columns_is_an_error(source, of):
    with pytest.raises(UsageError, match=PARAMETERS[source]):
        enriched(of(source + "\n"))


# Columns of the input


def test_any_column_of_the_input_is_a_parameter(of):
    name = of(
        "def f(rewards, correct, kind, turns):\n"
        "    assert (correct.dtype, kind.dtype) == (torch.bool, torch.int64)\n"
        "    return rewards * correct + 10 * kind + 100 * turns\n"
    )
    out, summary = enriched(name)
    assert [row[0] for row in out.column("advantages").to_pylist()] == [101, 210, 302, 425]
    columns = {role: x["column"] for role, x in summary["roles"].items() if ":" in role}
    assert columns == {"number:turns": "turns", "flag:correct": "correct", "codes:kind": "kind"}


def test_groups_may_have_codes_and_flags(of):
    name = of("def f(rewards, offsets, correct, truncated):\n    return rewards + correct\n")
    data = table().append_column("truncated", pa.array([True, False] * 2))
    out, _ = rlpost.enrich(data, rlpost.Recipe(estimator=name))
    assert [row[0] for row in out.column("advantages").to_pylist()] == [2, 0, 3, 6]


def test_a_parameter_may_have_a_column_of_another_name(of):
    name = of("def f(x):\n    return x\n")
    assert advantages(name, columns={"x": "turns"}) == [[1, 1], [2], [3, 0, 3], [4]]
    assert advantages(name, columns={"x": "entropy"}) == [[1, 2], [3], [4, 0, 5], [6]]


WRONG_COLUMNS = {
    "tunrs": "candidates: turns",
    "three": "`three` has 3 values but `response_mask` has 2",
    "words": r"list<.*string",
    "hash": "row 0: `hash` is 1152921504606846976",
    "gap": "row 1: `gap` is null",
    "unsure": "row 1: `unsure` is null",
    "rewards, beta=0.5": r"write `\*, beta=0.5`",
}


@pytest.mark.parametrize("column", WRONG_COLUMNS)
def test_a_column_that_cannot_be_read_is_an_error(column, of):
    with pytest.raises(DataError, match=WRONG_COLUMNS[column]):
        enriched(of(f"def f({column}):\n    return torch.zeros(4)\n"))


def test_codes_of_a_rollout_have_no_mean(of):
    name = of("def f(rewards, offsets, kind):\n    return rewards\n")
    with pytest.raises(UsageError, match="--unit rollout"):
        enriched(name, unit="rollout", columns={"rollout": "turns"})


# Options of its own

OPTIONS = """
def f(rewards, *, beta: float = 0.5, k=3, on=False, kind: Literal["a", "b"] = "a",
      weights=(1.0, 2.0), cap: float | None = None, gamma=1.0):
    assert isinstance(beta, float) and isinstance(k, int)
    return rewards * beta * k + 100 * on + 1000 * (kind == "b") + 10000 * sum(weights)
"""


def test_options_have_the_type_of_their_parameter(of):
    name = of(OPTIONS)
    typed = {"beta": "2", "k": "1", "on": "true", "kind": "b", "weights": "0,0", "cap": "inf"}
    out, summary = enriched(name, options=typed)
    assert [row[0] for row in out.column("advantages").to_pylist()] == [1102, 1100, 1104, 1110]
    kept = summary["recipe"]["options"]
    assert (kept["beta"], kept["k"], kept["on"], kept["weights"]) == (2.0, 1, True, [0.0, 0.0])
    again, _ = rlpost.enrich(table(), rlpost.Recipe(**summary["recipe"]))
    assert again.equals(out)


WRONG_OPTIONS = {
    "beta": ("x", "--option beta=x: .*valid number"),
    "k": (2.5, "--option k=2.5: .*valid integer"),
    "kind": ("c", "--option kind=c"),
    "on": ("perhaps", "--option on=perhaps"),
    "bta": (1, r"--option bta=1: .*did you mean beta\?"),
    "gamma": (0.5, "--option gamma=0.5: .*use --gamma"),
    "norm_eps": (0.5, "--option norm_eps=0.5: .*--numerics norm_eps"),
}


@pytest.mark.parametrize("option", WRONG_OPTIONS)
def test_a_wrong_option_is_an_error_that_names_the_flag(option, of):
    value, text = WRONG_OPTIONS[option]
    with pytest.raises(UsageError, match=text):
        enriched(of(OPTIONS), options={option: value})


def test_an_option_without_a_default_must_be_set(of):
    name = of("def f(rewards, *, gama: float):\n    return rewards * gama\n")
    with pytest.raises(UsageError, match=r"candidates: gamma; add --option gama=VALUE"):
        enriched(name)
    assert advantages(name, options={"gama": 2})[3] == [10]


def test_an_option_without_a_type_and_a_default_is_an_error(of):
    with pytest.raises(UsageError, match="option 'scale': has neither a type nor a default"):
        enriched(of("def f(rewards, *, scale):\n    return rewards\n"))


def test_a_default_of_a_field_of_the_recipe_is_the_recipes(of):
    name = of("def f(rewards, *, gamma: float = 0.5):\n    return rewards * gamma\n")
    out, summary = enriched(name)
    assert out["advantages"].to_pylist()[3][0] == 2.5
    assert summary["recipe"]["gamma"] == 0.5
    assert advantages(name, gamma=1.0)[3] == [5]


def test_a_default_that_is_not_of_its_type_is_an_error(of):
    with pytest.raises(UsageError, match="--option on=3: must be a valid boolean"):
        enriched(of("def f(rewards, *, on: bool = 3):\n    return rewards\n"))
    mixed = of("def f(rewards, *, pair=(1, 'a')):\n    return rewards * pair[0]\n")
    assert advantages(mixed)[3] == [5]  # it has no type, so that it cannot be set


NOT_OF_GRPO = {
    "beta": "estimator grpo has no option 'beta'; it has none: leave it out",
    "order": "estimator grpo has no option 'order'; rae has it",
    "step_gamma": "no option 'step_gamma'; gigpo, step_reinforce, mt_grpo and turn_credit have it",
}


@pytest.mark.parametrize("option", NOT_OF_GRPO)
def test_an_option_of_another_estimator_is_an_error_that_names_it(option):
    with pytest.raises(UsageError, match=f"--option {option}=1: .*{NOT_OF_GRPO[option]}"):
        enriched("grpo", options={option: 1})


# On the command line

SCALED = "def f(rewards, turns, *, beta=0.5):\n    return rewards * beta + turns\n"


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for part in (0, 1):
        pq.write_table(table().slice(2 * part, 2), folder / f"{part}.parquet")
    return folder


def recipe_of(path):
    return json.loads(pq.read_schema(path).metadata[b"rlpost.recipe"])


def first_advantages(folder):
    return [row[0] for row in pq.read_table(folder)["advantages"].to_pylist()]


def test_options_are_in_the_output_and_the_recipe_file(of, files, tmp_path):
    name, out = of(SCALED), tmp_path / "out"
    done = run("advantages", files, out, "--estimator", name, "--option", "beta=2")
    assert done.code == 0, done.err
    assert recipe_of(out / "0.parquet")["options"] == {"beta": 2.0}
    assert first_advantages(out) == [3, 2, 7, 14]
    config = tmp_path / "recipe.toml"
    config.write_text(f'estimator = "{name}"\n[options]\nbeta = 2\n')
    done = run("advantages", files, tmp_path / "other", "--config", config)
    assert done.code == 0, done.err
    assert first_advantages(tmp_path / "other") == [3, 2, 7, 14]


def test_a_file_of_an_installed_estimator_is_verified_with_its_options(files, tmp_path):
    point = EntryPoint("theirs", "test_own:theirs", "rlpost.estimators")
    with mock.patch("rlpost.recipe.functions.entry_points", return_value=[point]):
        out = tmp_path / "out"
        words = ["--estimator", "theirs", "--option", "beta=2"]
        assert (done := run("advantages", files, out, *words)).code == 0, done.err
        assert run("verify", out).code == 2
        assert run("verify", out, "--estimator", "theirs").code == 0
        replayed = run("replay", out, "--preset", "default", *words)
        assert replayed.code == 0, replayed.err + replayed.out
        words[-1] = "beta=3"
        assert run("replay", out, "--preset", "default", *words).code == 1


def theirs(rewards, turns, *, beta=0.5):
    """beta·r + turns"""
    return rewards * beta + turns


def test_an_entry_point_is_found_by_name_and_listed():
    point = EntryPoint("theirs", "rlpost.estimators.groups:raw", "rlpost.estimators")
    with mock.patch("rlpost.recipe.functions.entry_points", return_value=[point]):
        assert advantages("theirs")[3] == [5]
        assert "\ntheirs " in run("list", "estimators").out
        with pytest.raises(UsageError, match="did you mean theirs"):
            estimator_named("their")


NAMES = {
    "none.py:f": "there is no such Python file",
    "mine.txt:f": "there is no such Python file",
    "folder.py:f": "there is no such Python file",
    "broken.py:f": "cannot be imported: SyntaxError",
    "mine.py:centrd": r"has no 'centrd'; did you mean centred\?",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_cannot_be_imported_is_an_error(name, tmp_path):
    (tmp_path / "mine.txt").write_text("")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "broken.py").write_text("def f(\n")
    (tmp_path / "mine.py").write_text("def centred(rewards): return rewards\n")
    with pytest.raises(UsageError, match=NAMES[name]):
        estimator_named(f"{tmp_path / name}")


def test_an_estimator_that_compares_rows_itself_rejects_rollouts(of):
    by_rows = of("def f(rewards, group):\n    return rewards - rewards.mean()\n")
    for name in (by_rows, "rae", "gigpo", "hierarchical_grpo"):
        columns = dict.fromkeys(("step_score", "episode_score", "turn"), "reward")
        columns |= dict.fromkeys(("rollout", "state_id", "domain", "group"), "kind")
        with pytest.raises(UsageError, match=r"--unit rollout: estimator .* compares rows itself"):
            enriched(name, unit="rollout", columns=columns)


def test_a_custom_function_becomes_an_estimator():
    def mine(rewards):
        """Twice the reward.

        More of it.
        """
        return 2 * rewards

    found = base.as_estimator(mine, "mine", "here")
    assert (found.name, found.formula, found.source) == ("mine", "Twice the reward.", "here")
    assert (found.returns, found.beyond_steps) == ("own", True)
    knobs = rlpost.Recipe()
    credit = found({"rewards": np.array([1.0])}, None, knobs)
    assert (credit.advantages.tolist(), credit.returns.tolist()) == ([2.0], [2.0])
    nan = found({"rewards": np.array([1.0, np.nan])}, None, knobs)
    with pytest.raises(DataError, match=r"estimator mine .* 1 of 2 responses"):
        found.check_finite(nan)
    found.check_finite(nan, lambda: np.array([True, False]))
