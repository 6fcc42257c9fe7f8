"""`--to harbor`: our reader reads the trials back, and each field that is declared is in them."""

from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exported_rows import rollouts
from hypothesis import given, settings
from hypothesis import strategies as st

import rlpost
from rlpost.errors import DataError, UsageError
from rlpost.formats.targets.harbor import TARGET

FLOATS, IDS, MASK = pa.list_(pa.float32()), pa.list_(pa.int32()), pa.list_(pa.uint8())
CARRIED = (
    "step", "prompt_id", "rollout_id", "reward", "domain", "failure", "truncated", "agent_role",
    "prompt_token_ids", "response_token_ids", "infer_log_probs",
)  # fmt: skip


@st.composite
def tables(draw, with_observations):
    """Rollouts of several turns and agents, some of which failed."""
    rows = []
    for i in range(draw(st.integers(1, 4))):
        calls = draw(st.integers(1, 3))
        failure = draw(st.sampled_from([None, None, "SandboxError"]))
        whole = {
            "step": draw(st.integers(3, 4)),
            "prompt_id": draw(st.sampled_from(["a/b c", "ü", "q"])),
            "rollout_id": str(UUID(int=i)),
            "reward": None if failure else draw(st.floats(-1e9, 1e9)),
            "domain": draw(st.sampled_from(["x", None])),
            "failure": failure,
            "error": failure and draw(st.text(max_size=3)),
            "truncated": not failure and draw(st.booleans()),
            "prompt": draw(st.text(max_size=4)),
        }
        for turn in range(calls):
            length = draw(st.integers(1, 5))
            mask = [1] * length
            if with_observations:
                mask = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
            numbers = st.lists(st.integers(0, 9), min_size=length, max_size=length)
            own = {
                "turn": turn,
                "branch": draw(st.sampled_from(["0", "1"])),
                "agent_role": draw(st.sampled_from(["solver", "judge"])),
                "response": draw(st.text(max_size=4)),
                "prompt_token_ids": [i, turn, *draw(numbers)],
                "response_token_ids": draw(numbers),
                "response_mask": mask,
                "infer_log_probs": [-x / 7 for x in draw(numbers)],
            }
            rows.append({**whole, **own})
    rows = draw(st.permutations(rows))
    kinds = {"prompt_token_ids": IDS, "response_token_ids": IDS, "response_mask": MASK,
             "infer_log_probs": FLOATS, "failure": pa.string(), "error": pa.string(),
             "reward": pa.float64(), "domain": pa.string()}  # fmt: skip
    return pa.table({name: pa.array([x[name] for x in rows], kinds.get(name)) for name in rows[0]})


def trials_of(table, folder):
    """The rows of a table, and what comes back, by rollout in the order of turns."""
    rlpost.export(table, folder / "jobs", "harbor")
    rlpost.convert(folder / "jobs", folder / "back.parquet")
    found = []
    for rows in (table.to_pylist(), pq.read_table(folder / "back.parquet").to_pylist()):
        by_rollout = {}
        for row in sorted(rows, key=lambda one: one["turn"]):
            by_rollout.setdefault((row["step"], row["prompt_id"], row["rollout_id"]), []).append(
                row
            )
        found.append(by_rollout)
    return found


@settings(max_examples=15, deadline=None)
@given(tables(with_observations=False))
def test_calls_come_back(tmp_path_factory, table):
    ours, back = trials_of(table, tmp_path_factory.mktemp("law"))
    assert ours.keys() == back.keys()
    for key, rows in ours.items():
        for row, other in zip(rows, back[key], strict=True):
            own = {name: other.get(name) for name in CARRIED}
            assert own == {name: row[name] for name in CARRIED}
            assert (other["response"], other["turn"]) == (row["response"], row["turn"])
            assert (other["error"] or None, other["prompt"]) == (
                row["error"] or None,
                row["prompt"],
            )


@settings(max_examples=15, deadline=None)
@given(tables(with_observations=True))
def test_policy_tokens_come_back_behind_the_tokens_that_they_followed(tmp_path_factory, table):
    ours, back = trials_of(table, tmp_path_factory.mktemp("law"))
    for key, rows in ours.items():
        expected = []
        for row in rows:
            sequence = [*row["prompt_token_ids"], *row["response_token_ids"]]
            begin = len(row["prompt_token_ids"])
            expected += [
                (sequence[: begin + t], row["response_token_ids"][t], row["infer_log_probs"][t])
                for t, policy in enumerate(row["response_mask"])
                if policy
            ]
        calls = [
            ([*row["prompt_token_ids"], *row["response_token_ids"][:t]], token, log_prob)
            for row in back[key]
            if row["response_length"]
            for t, (token, log_prob) in enumerate(
                zip(row["response_token_ids"], row["infer_log_probs"], strict=True)
            )
        ]
        assert calls == expected


def files_of(table, folder):
    rlpost.export(table, folder, "harbor", lossy=True)
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.json")}


def test_the_trials_have_what_is_declared_and_nothing_else(tmp_path):
    table = pa.table(
        {
            "step": [3, 3, 4],
            "prompt_id": ["p", "p", "q"],
            "rollout_id": ["r", "r", "s"],
            "turn": [0, 1, 0],
            "branch": ["0", "0", "0"],
            "domain": ["d"] * 3,
            "reward": [1.0, 1.0, 0.0],
            "truncated": [False] * 3,
            "failure": pa.array([None] * 3, pa.string()),
            "error": pa.array([None, "e", "e"], pa.string()),
            "agent_role": ["a", "a", "a"],
            "prompt": ["x"] * 3,
            "response": ["y"] * 3,
            "prompt_token_ids": pa.array([[1], [1, 2], [3]], IDS),
            "response_token_ids": pa.array([[4, 5], [6], [7]], IDS),
            "response_mask": pa.array([[1, 1], [1], [1]], MASK),
            "infer_log_probs": pa.array([[-1.0, -2.0], [-3.0], [-4.0]], FLOATS),
            "advantages": pa.array([[1.0, 2.0], [3.0], [4.0]], FLOATS),
        }
    )
    changed = {
        "step": [4, 4, 4], "rollout_id": ["r", "t", "s"], "turn": [1, 0, 0],
        "branch": ["0", "1", "0"], "reward": [2.0, 2.0, 0.0], "truncated": [False, True, True],
        "failure": ["f", None, None], "response_mask": [[0, 1], [1], [1]],
    }  # fmt: skip
    before = files_of(table, tmp_path / "first")
    table = table.set_column(7, "truncated", pa.array([False, True, False]))  # so errors are used
    truncated = files_of(table, tmp_path / "second")
    assert truncated != before
    for i, name in enumerate(table.column_names):
        values = table[name].to_pylist()
        lists = isinstance(values[0], list)
        other = changed.get(name) or [[9, *one[1:]] if lists else "z" for one in values]
        kind = table.schema.field(i).type
        after = files_of(table.set_column(i, name, pa.array(other, kind)), tmp_path / name)
        assert (after != truncated) == (name != "advantages"), name
    roles = {
        "group": "prompt_id",
        "rollout": "rollout_id",
        "batch": "step",
        "mask": "response_mask",
    }
    assert {roles.get(item, item) for item in TARGET.fields} == {*table.column_names} - {
        "advantages"
    }


def test_rows_without_rollouts_are_trials_of_their_own(tmp_path):
    found = rlpost.export(rollouts(), tmp_path / "o", "harbor", lossy=True)
    assert found.outputs == [str(tmp_path / "o")]
    results = sorted(str(file.parent.relative_to(tmp_path / "o"))
                     for file in tmp_path.rglob("result.json"))  # fmt: skip
    assert results == [
        "step_5/q0__0", "step_5/q1__2", "step_5/q2__4", "step_5/q3__6", "step_6/q0__1",
        "step_6/q1__3", "step_6/q2__5",
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o"]


def test_what_is_no_trial_leaves_nothing_behind(tmp_path):
    table = rollouts()
    rows = table.set_column(0, "rollout_id", pa.array(["r"] * 7)).set_column(
        1, "prompt_id", pa.array(["p"] * 7)
    )
    with pytest.raises(DataError, match=r"row 1: `reward` is .* a trial has one reward"):
        rlpost.export(rows, tmp_path / "o", "harbor", lossy=True)
    numbers = table["infer_log_probs"].to_pylist()
    masked = table["response_mask"].to_pylist()
    numbers[0] = [np.nan] * len(masked[0])
    place = table.column_names.index("infer_log_probs")
    bad = table.set_column(place, "infer_log_probs", pa.array(numbers, FLOATS))
    with pytest.raises(DataError, match="row 0: `infer_log_probs` is nan"):
        rlpost.export(bad, tmp_path / "o", "harbor", lossy=True)
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "x").touch()
    for out, options, text in (
        ("o", {}, "has files"),
        ("n", {"overwrite": True}, "--overwrite: has no effect"),
        ("n.jsonl", {}, "writes a directory, not .jsonl"),
    ):
        with pytest.raises(UsageError, match=text):
            rlpost.export(table, tmp_path / out, "harbor", lossy=True, **options)
