"""Responses that failed do not vote, and rows that a later attempt replaced can be left out."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agentic_run import agentic_run
from runs import run
from summaries import warnings_of, whole

import rlpost
from rlpost.errors import DataError
from rlpost.recipe.presets import values_of

REWARDS = [1.0, 3.0, 2.0, 0.0]  # the last one is what a failed judge left


def table(failure, rewards=REWARDS, **columns):
    """One prompt group, two policy tokens a response."""
    count = len(rewards)
    own = {"prompt_id": ["a"] * count, "reward": rewards, "response_mask": [[1, 1]] * count}
    own |= {} if failure is None else {"failure": failure}
    return pa.table(own | columns)


def credit(got):
    return [row[0] for row in got["advantages"].to_pylist()]


def centred(got_table, **options):
    got, summary = rlpost.enrich(got_table, rlpost.Recipe(estimator="dr_grpo", **options))
    return credit(got), got, summary


def test_a_failed_response_is_out_of_the_baseline_and_of_training():
    advantages, got, summary = centred(table([None, "", "  ", "judge timed out"]))
    assert advantages == [-1.0, 1.0, 0.0, 0.0]
    assert got["sample_mask"].to_pylist() == [True, True, True, False]
    assert whole(summary, "left_out:failure")["total"] == 1
    assert summary["failures"]["reasons"] == {"judge timed out": 1}
    assert whole(summary, "reward")["mean"] == 2.0


@pytest.mark.parametrize(
    ("options", "last", "kept"),
    [
        ({"failures": "keep"}, -1.5, None),
        ({"failures": "mask"}, 0.0, [True] * 3 + [False]),
        ({"failures": "zero"}, -1.5, None),
    ],
)
def test_other_treatments_count_it(options, last, kept):
    advantages, got, _ = centred(table([False, False, False, True]), **options)
    assert kept is None or got["sample_mask"].to_pylist() == kept
    assert ("sample_mask" in got.column_names) == (kept is not None)
    assert advantages == [-0.5, 1.5, 0.5, last]


def test_a_failed_response_needs_no_reward():
    """An error of a judge leaves none; whoever counts failures needs one."""
    rows = table([None, None, None, "judge"], [1.0, 3.0, 2.0, None])
    assert centred(rows)[0] == [-1.0, 1.0, 0.0, 0.0]
    assert centred(rows, failures="zero")[0] == [-0.5, 1.5, 0.5, -1.5]
    with pytest.raises(DataError, match="row 3: `reward` is null"):
        centred(rows, failures="keep")
    with pytest.raises(DataError, match="row 1: `reward` is null"):
        centred(table([None, None, None, "judge"], [1.0, None, 2.0, 1.0]))


def test_a_failed_rollout_has_reward_0_whatever_its_rows_hold():
    """Of two rows, the failure stands in the last one, and neither has a reward."""
    rows = table([None, None, None, "sandbox"], [1.0, 3.0, None, None])
    rows = rows.append_column("rollout_id", pa.array(["a", "b", "c", "c"]))
    rows = rows.append_column("turn", pa.array([0, 0, 0, 1]))
    ids = {"columns": {"rollout": "rollout_id"}, "failures": "zero"}
    for rule in ("equal", "last"):
        third = 4 / 3
        wanted = pytest.approx([1 - third, 3 - third, -third, -third])
        assert centred(rows, rollout_reward=rule, **ids)[0] == wanted


def test_an_object_with_a_type_is_a_reason_and_long_texts_are_cut():
    objects = [None, {"type": "SandboxError"}, None, {"type": "SandboxError"}]
    assert centred(table(objects))[2]["failures"]["reasons"] == {"SandboxError": 2}
    trace = f"Traceback{'!' * 100}\nline 2"
    (reason,) = centred(table([trace, None, None, None]))[2]["failures"]["reasons"]
    assert reason.startswith("Traceback!")
    assert "\n" not in reason
    assert len(reason) < 70


def test_wrong_contents_are_errors():
    with pytest.raises(DataError, match=r"row 2: `failure` is 0\.5"):
        centred(table([0.0, 1.0, 0.5, 0.0]))
    with pytest.raises(DataError, match=r"row 1: `run_attempt` is 1\.5"):
        centred(table(None, run_attempt=[1, 1.5, 1, 1]))
    with pytest.raises(DataError, match="every response failed"):
        centred(table(["x"] * 4))


def test_an_option_without_its_column_is_an_error(tmp_path):
    pq.write_table(table(None), tmp_path / "in.parquet")
    paths = tmp_path / "in.parquet", tmp_path / "out.parquet"
    ran = run("advantages", *paths, "--failures", "zero")
    assert ran.code == 3
    assert "--failures zero" in ran.err
    assert run("advantages", *paths, "--attempts", "newest").code == 0


PRESETS = {
    "verl": "keep", "trl": "keep", "openrlhf": "keep", "open-instruct": "keep",
    "slime": "count", "nemo-rl": "count", "prime-rl": "drop",
}  # fmt: skip


@pytest.mark.parametrize(("preset", "treatment"), PRESETS.items())
def test_a_preset_does_with_failures_what_its_framework_does(preset, treatment):
    """Of [1, 3, 2] and a failed 0: does the baseline have the zero, and is it trained on?

    verl, TRL, OpenRLHF and open-instruct have no failures: such a row is one of reward 0. slime
    sets the loss mask of samples with `remove_sample` to 0 after it normalised all rewards
    (slime/ray/rollout.py, 624b824a), NeMo-RL `loss_multiplier` of those with `mask_sample`
    (nemo_rl/algorithms/grpo.py, 7ea279ab). prime-rl leaves traces with an error out of both
    (orchestrator/algo/base.py, 559b4477).
    """
    options = values_of(preset, {"estimator": "grpo"})
    columns = {"old_log_probs": [[-1.0, -1.0]] * 4}
    recipe = rlpost.Recipe.of({**options, "emit": ("advantages", "sample_mask")})
    got, _ = rlpost.enrich(table([None, None, None, "crash"], **columns), recipe)
    stays, without = (
        rlpost.enrich(table(None, rewards, **{k: v[: len(rewards)] for k, v in columns.items()}),
                      recipe)[0]["advantages"].to_pylist()
        for rewards in (REWARDS, REWARDS[:3])
    )  # fmt: skip
    rows = got["advantages"].to_pylist()
    assert rows[:3] == (without if treatment == "drop" else stays[:3])
    assert got["sample_mask"].to_pylist()[3] is (treatment == "keep")
    assert without != stays[:3]


def attempts_table():
    """Step 1 was written twice: the second attempt began with it."""
    return table(
        None,
        [1.0, 0.0, 5.0, 7.0, 1.0, 0.0],
        step=[0, 0, 1, 1, 1, 1],
        run_attempt=[1, 1, 1, 1, 2, 2],
    )


def test_rows_of_an_older_attempt_count_with_a_warning_or_are_left_out():
    advantages, got, summary = centred(attempts_table(), attempts="all")
    assert "sample_mask" not in got.column_names
    assert summary["attempts"]["superseded"] == 2
    assert any("--attempts newest" in one for one in warnings_of(summary))
    advantages, got, summary = centred(attempts_table())
    assert advantages == [0.5, -0.5, 0.0, 0.0, 0.5, -0.5]
    assert got["sample_mask"].to_pylist() == [True, True, False, False, True, True]
    assert whole(summary, "left_out:superseded")["total"] == 2
    assert not any("--attempts" in one for one in warnings_of(summary))


@pytest.mark.parametrize("unit", ["row", "rollout"])
def test_a_rollout_that_was_tried_again_counts_as_its_newest_attempt(unit):
    """Only rows of one prompt, step, run and id are attempts of one rollout."""
    rows = pa.table(
        {
            "prompt_id": [*"aaaaaabb"],
            "step": [0, 0, 0, 0, 1, 1, 0, 0],
            "rollout_id": [*"00112213"],
            "attempt": [0, 1, 0, None, 0, 0, 1, 0],
            "reward": [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0],
            "response_mask": [[1]] * 8,
        }
    )
    recipe = rlpost.Recipe(estimator="raw", unit=unit)
    got, summary = rlpost.enrich(rows, recipe)
    assert got["sample_mask"].to_pylist() == [False, True, True, False, *[True] * 4]
    assert summary["attempts"] == {"column": "attempt", "kept": "newest", "superseded": 2}
    again = pa.table({**rows.to_pydict(), "run_attempt": [1, 2, 2, 1, 1, 1, 1, 1]})
    got, summary = rlpost.enrich(again, recipe)
    assert got["sample_mask"].to_pylist() == [False, True, True, False, True, True, False, False]
    assert rlpost.enrich(rows.drop_columns(["rollout_id"]))[1].get("attempts") is None


@pytest.mark.parametrize("rule", ["last", "sum", "mean"])
def test_rollouts_of_an_older_attempt_with_the_same_ids_are_others(rule):
    """A run that restarts writes a step again, with the ids of its rollouts."""
    newest = pa.table(
        {
            "prompt_id": ["a"] * 6,
            "rollout_id": ["0", "0", "1", "1", "2", "2"],
            "turn": [0, 1] * 3,
            "run_attempt": [1] * 6,
            "reward": [0.5, 1.0, 0.5, 0.0, 0.0, 0.0],
            "response_mask": [[1, 1]] * 6,
        }
    )
    older = pa.table({**newest.to_pydict(), "run_attempt": [-1] * 6, "reward": [9.0] * 6})
    recipe = rlpost.Recipe(
        estimator="grpo", unit="rollout", attempts="newest", rollout_reward=rule,
        emit=("advantages",),
    )  # fmt: skip
    alone, _ = rlpost.enrich(newest, recipe)
    for parts in ([older, newest], [newest, older]):
        both, summary = rlpost.enrich(pa.concat_tables(parts), recipe)
        assert whole(summary, "left_out:superseded")["total"] == 6
        assert summary["rollouts"] == 6
        newer = both.filter(pa.compute.equal(both["run_attempt"], 1))
        assert newer["advantages"].to_pylist() == alone["advantages"].to_pylist()


def test_the_right_advantages_of_an_agentic_run():
    """Each rollout that is an answer counts once; the naive reading has other numbers."""
    generated = agentic_run()
    recipe = rlpost.Recipe(
        estimator="grpo", unit="rollout", attempts="newest", emit=("advantages",)
    )
    got, summary = rlpost.enrich(generated.table, recipe)
    truth, rows = generated.truth, got["advantages"].to_pylist()
    right, naive = (truth[name].to_numpy() for name in ("right", "naive"))
    written = np.array([row[0] if row else 0.0 for row in rows])
    trained = np.array([bool(row) for row in rows])
    np.testing.assert_allclose(written, np.where(trained, right, 0.0), atol=1e-6)
    assert summary["failures"]["responses"] == generated.counts()["failed rows"]
    assert (np.sign(naive) != np.sign(right))[trained].mean() > 0.2


def test_a_rollout_fails_with_its_last_turn_alone():
    rows = {
        "rollout_id": ["r", "r", "s", "s"],
        "turn": [1, 0, 0, 1],  # the file has turns in any order
    }
    failure = ["crash", None, "tool error", None]
    rewards = [0.0, 0.0, 1.0, 1.0]
    advantages, got, summary = centred(table(failure, rewards, **rows), unit="rollout")
    assert got["sample_mask"].to_pylist() == [False, False, True, True]
    assert summary["failures"]["responses"] == 2
    assert summary["failures"]["survived"] == 1
    assert advantages == [0.0] * 4
    without_turns = {"rollout_id": rows["rollout_id"]}
    with pytest.raises(DataError, match="every response failed"):
        centred(table(failure, rewards, **without_turns), unit="rollout")
