"""Streams with an index: which episodes are opened, hostile indexes, attempts of a run."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from format_writers import seekable
from hypothesis import given, settings
from hypothesis import strategies as st
from indexed_stream import episode, read_index, write_index, write_stream

import rlpost
from rlpost.errors import DataError, UsageError


def converted(folder, where, **options):
    """The ids of the rows that match, and the counts; none if no row does."""
    out = folder / "o.parquet"
    try:
        summary = rlpost.convert(folder, out, where=where, overwrite=True, **options)
    except DataError as error:
        if "match --where" not in str(error):
            raise
        return [], {}
    return pq.read_table(out)["rollout_id"].to_pylist(), summary


def ids(stream, where):
    return converted(stream.parent, where)[0]


EPISODE = st.fixed_dictionaries(
    {
        "reward": st.sampled_from([-1.0, 0.0, 0.1 + 0.2, 0.3, 1.0]),
        "step": st.integers(0, 2),
        "env": st.sampled_from(["math", "code", ""]),
        "traces": st.integers(1, 2),
        "ok": st.booleans(),
    }
)
CONDITION = st.lists(
    st.sampled_from(
        ["reward > 0", "reward = 0.3", "reward < 0.5", "ok", "env = 'math'", "domain <> 'code'",
         "step >= 1", "group == 'g0'", "not (reward > 0)", "stop_condition = 'done'", "turns = 1",
         "num_errors = 0", "line <= 3", "prompt_id in ('g0', 'g1')", "not truncated"]
    ),
    min_size=1, max_size=3,
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(
    own=st.lists(EPISODE, min_size=1, max_size=6), parts=CONDITION,
    joint=st.sampled_from([" and ", " or "]), indexed=st.integers(0, 6),
)  # fmt: skip
def test_an_index_gives_what_a_whole_pass_gives(tmp_path_factory, own, parts, joint, indexed):
    if any(name in part for part in parts for name in ("turns", "line")):
        indexed = len(own)  # only the index has them
    records = [episode(i, **one) for i, one in enumerate(own)]
    text = joint.join(parts)
    stream = write_stream(tmp_path_factory.mktemp("index") / "a", [records[:2], records[2:]])
    rows = read_index(stream)
    write_index(stream, rows[:indexed])  # the writer stopped before the others
    expected = [
        trace["id"]
        for i, record in enumerate(records)
        for k, trace in enumerate(record["traces"])
        if matches(parts, joint, own[i], i, k)
    ]
    assert ids(stream, text) == expected


def matches(parts, joint, own, number, trace):
    """Whether a row matches, by plain comparisons."""
    reward = own["reward"] + trace
    values = {
        "reward > 0": reward > 0, "reward = 0.3": reward == 0.3, "reward < 0.5": reward < 0.5,
        "ok": own["ok"], "env = 'math'": own["env"] == "math",
        "domain <> 'code'": own["env"] == "math" or None, "step >= 1": own["step"] >= 1,
        "group == 'g0'": number < 4, "not (reward > 0)": reward <= 0, "num_errors = 0": True,
        "stop_condition = 'done'": True, "turns = 1": True, "line <= 3": number < 3,
        "prompt_id in ('g0', 'g1')": True, "not truncated": True,
    }  # fmt: skip
    if own["env"] == "":  # without a name, the environment's id is its domain: none here
        values["domain <> 'code'"] = False
    found = [bool(values[part]) for part in parts]
    return all(found) if joint == " and " else any(found)


def test_only_episodes_that_can_match_are_opened(tmp_path):
    records = [episode(i, reward=float(i % 5 == 0), env=f"env{i % 3}") for i in range(30)]
    stream = write_stream(tmp_path / "a", [records[:20], records[20:]])
    sealed = stream / "00000.jsonl"
    (stream / "00000.jsonl.zst").write_bytes(seekable(sealed.read_bytes()))
    sealed.unlink()
    rows, summary = converted(tmp_path / "a", "reward > 0.5 and env = 'env0'")
    assert rows == ["t0.0", "t15.0"]
    counts = summary["where"]
    assert (counts["episodes"], counts["episodes_skipped"], counts["rows"]) == (30, 28, 2)
    assert counts["bytes_skipped"] > 0
    assert counts["notes"] == ["prompt groups may be incomplete"]
    _, summary = converted(tmp_path / "a", "step = 0 and env = 'env0'")
    assert summary["where"]["episodes_skipped"] == 20
    assert "no step" in summary["where"]["line"]


def test_a_compressed_chunk_without_frames_is_read_from_its_start(tmp_path):
    records = [episode(i, env=f"env{i % 3}") for i in range(6)]
    stream = write_stream(tmp_path / "a", [records, [episode(9, env="env0")]])
    plain = stream / "00000.jsonl"
    (stream / "00000.jsonl.zst").write_bytes(seekable(plain.read_bytes(), table=False))
    plain.unlink()
    assert ids(stream, "env = 'env0'") == ["t0.0", "t3.0", "t9.0"]
    rows = read_index(stream)
    rows[0]["offset"] += 1
    path = write_index(stream, rows)
    with pytest.raises(DataError, match=rf"{path.name}, line 1: .*chunk 0"):
        rlpost.convert(tmp_path / "a", tmp_path / "o.parquet", where="env = 'env0'")


def _moved(rows, by):
    rows[1]["offset"] += by


HOSTILE = {
    "inside a record": lambda rows: _moved(rows, 7),
    "at an object inside a record": lambda rows: _moved(rows, 20),
    "beyond the end": lambda rows: _moved(rows, 1 << 40),
    "another record": lambda rows: _moved(rows, -rows[1]["offset"]),
    "another id": lambda rows: rows[1].update(id="e7"),
    "a chunk that is not there": lambda rows: rows[1].update(chunk=7),
    "below zero": lambda rows: rows[1].update(offset=-1),
    "no number": lambda rows: rows[1].update(offset="x"),
    "no place": lambda rows: rows[1].pop("chunk"),
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_wrong_place_in_the_index_names_index_line_and_chunk(tmp_path, damage):
    stream = write_stream(tmp_path / "a", [[episode(i, env=f"env{i}") for i in range(4)]])
    rows = read_index(stream)
    HOSTILE[damage](rows)
    path = write_index(stream, rows)
    with pytest.raises(DataError, match=rf"{path.name}, line 2: .*(chunk|offset)"):
        rlpost.convert(tmp_path / "a", tmp_path / "o.parquet", where="env = 'env1'")
    assert not (tmp_path / "o.parquet").exists()


def test_a_damaged_line_of_the_index_is_an_error_and_a_torn_last_one_is_not(tmp_path):
    stream = write_stream(tmp_path / "a", [[episode(i, env=f"env{i}") for i in range(3)]])
    path = stream.with_name("stream.index.jsonl")
    text = path.read_text()
    path.write_text(text[:-20])
    rows, summary = converted(tmp_path / "a", "env = 'env2'")
    assert rows == ["t2.0"]
    assert "1 episode of 00000.jsonl that" in summary["where"]["line"]
    path.write_text(text.replace('"chunk": 0}\n', '"chunk": 0\n', 1))
    with pytest.raises(DataError, match="line 1"):
        rlpost.convert(tmp_path / "a", tmp_path / "x.parquet", where="env = 'env2'")


@pytest.mark.parametrize(
    ("where", "message"),
    [("envs = 'a'", "env"), ("nodes = 1", "a list"), ("rewards = 1", "an object"),
     ("reward > 'a'", "does not fit")],
)  # fmt: skip
def test_names_are_columns_roles_and_scalar_fields(tmp_path, where, message):
    write_stream(tmp_path / "a", [[episode(i) for i in range(3)]])
    with pytest.raises(UsageError, match=message):
        rlpost.convert(tmp_path / "a", tmp_path / "o.parquet", where=where)


def test_dumps_without_an_index_have_the_same_names(tmp_path):
    stream = write_stream(tmp_path / "a", [[episode(i, ok=i > 1) for i in range(4)]], indexed=False)
    for where, expected in (
        ("ok", ["t2.0", "t3.0"]),
        ("\"agent.name\" = 'solver' and id = 'e1'", ["t1.0"]),
        ("kind = 'train' and num_errors = 0 and not ok and step = 0", ["t0.0", "t1.0"]),
    ):
        assert ids(stream, where) == expected
    found = rlpost.inspect(stream, where="ok")
    assert (found.responses, found.where["rows"]) == (2, 4)


def test_the_newest_attempt_of_a_step_is_kept(tmp_path):
    first = [episode(i, step=i, run="a") for i in range(4)]
    second = [episode(i + 9, step=i, run="b") for i in (2, 3)]
    stream = write_stream(tmp_path / "a", [first, second])
    rows, summary = converted(tmp_path / "a", None)
    assert rows == ["t0.0", "t1.0", "t11.0", "t12.0"]
    assert summary["attempts"] == {"kept": "newest", "left_out": 2}
    assert any("2 rows" in text and "--attempts all" in text for text in summary.warnings)
    assert summary["responses"] == 4
    every, summary = converted(tmp_path / "a", None, attempts="all")
    assert (len(every), summary["attempts"]["left_out"]) == (6, 0)
    attempts = pq.read_table(tmp_path / "a" / "o.parquet")["run_attempt"].to_pylist()
    assert attempts == [1, 1, 1, 1, 2, 2]
    # The newest attempt of a step counts, though none of its rows match.
    rows, _ = converted(tmp_path / "a", "rollout_id in ('t1.0', 't2.0', 't12.0')")
    assert rows == ["t1.0", "t12.0"]
    assert json.loads((stream / "00000.jsonl").read_text().splitlines()[0])["id"] == "e0"


def test_attempts_span_the_files_of_a_conversion(tmp_path):
    for attempt, steps in ((1, (0, 1)), (2, (1, 2))):
        rows = [{"prompt_id": "a", "reward": 1.0, "step": step, "run_attempt": attempt}
                for step in steps]  # fmt: skip
        folder = tmp_path / "in" / str(attempt)
        folder.mkdir(parents=True)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = rlpost.convert(tmp_path / "in", tmp_path / "out")
    assert (summary["responses"], summary["attempts"]["left_out"]) == (3, 1)
    steps = {path.parent.name: pq.read_table(path)["step"].to_pylist()
             for path in (tmp_path / "out").rglob("*.parquet")}  # fmt: skip
    assert steps == {"1": [0], "2": [1, 2]}
