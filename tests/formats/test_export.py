"""Exports are read back by readers written from the sources of the targets.

`tests/peers/test_exports.py` reads them with the targets' own code.
"""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exported_rows import FLOATS, MASK, rollouts
from exports import load_debug_rollout_data, records
from forked_runs import run

import rlpost
from rlpost.errors import DataError, UsageError
from rlpost.formats import export as work
from rlpost.formats.targets import TARGETS


def test_jsonl_has_all_columns_and_is_read_as_any_json(source, tmp_path):
    found = rlpost.export(source, tmp_path / "o.jsonl", "jsonl")
    rows = rollouts().to_pylist()
    assert records(tmp_path / "o.jsonl") == rows
    assert found.others == rollouts().column_names
    assert found.note == ""
    back = rlpost.convert(tmp_path / "o.jsonl", tmp_path / "back.parquet")
    assert back["format"] == "jsonl"
    known = rollouts().drop_columns(["parts", "advantages", "returns", "sample_mask"])
    table = pq.read_table(tmp_path / "back.parquet")
    assert table.select(known.column_names).to_pylist() == known.to_pylist()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([2**40, 1]), pa.array([1, None], pa.int32())),
        (pa.array([1, 2]), pa.array([1.5, 2])),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "c"])),
        (pa.nulls(2), pa.array([[1.0], []], FLOATS)),
    ],
)
def test_jsonl_of_files_of_several_types_has_the_values_of_all(first, second, tmp_path):
    for order in ((first, second), (second, first)):
        for i, values in enumerate(order):
            pq.write_table(pa.table({"x": values, "uid": ["q"] * 2}), tmp_path / f"{i}.parquet")
        rlpost.export(tmp_path / "*.parquet", tmp_path / "o" / "o.jsonl", "jsonl", overwrite=True)
        written = [record["x"] for record in records(tmp_path / "o" / "o.jsonl")]
        assert written == [x for values in order for x in values.to_pylist()]
    pq.write_table(pa.table({"x": ["a"], "uid": ["q"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"x": [1], "uid": ["q"]}), tmp_path / "0.parquet")
    with pytest.raises(UsageError, match=r"2 columns: x \(int64 and string in different files\)"):
        rlpost.export(tmp_path / "*.parquet", tmp_path / "o.jsonl", "jsonl")


def test_jsonl_has_no_nan_and_no_bytes(tmp_path):
    table = rollouts().append_column("nested", pa.array([[{"x": float("inf")}]] * 7))
    with pytest.raises(DataError, match=r"row 0: `nested` has a number that JSON has not"):
        rlpost.export(table, tmp_path / "o.jsonl", "jsonl")
    found = rlpost.export(table, tmp_path / "o.jsonl", "jsonl", lossy=True)
    assert found.warnings == ["nested: 7 numbers that JSON has not (NaN, infinite) became null"]
    assert records(tmp_path / "o.jsonl")[6]["nested"] == [{"x": None}]
    raw = rollouts().append_column("raw", pa.array([b"\xff"] * 7))
    with pytest.raises(
        UsageError, match=r"cannot hold 1 of 17 columns: raw \(jsonl has no place for bin"
    ):
        rlpost.export(raw, tmp_path / "raw.jsonl", "jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.jsonl"]


@pytest.mark.parametrize(
    ("out", "to", "text"),
    [
        ("o.parquet", "jsonl", r"--to jsonl writes a .jsonl file, not .parquet: name another"),
        (
            "o.jsonl",
            "slime",
            r"--to slime writes a directory, not .jsonl: name another",
        ),
        ("o.jsonl", "prime-rl", r"--to prime-rl writes a directory, not .jsonl"),
        ("", "jsonl", r"is a directory; --to jsonl writes one file: name it"),
        ("new/", "jsonl", r"new/: is a directory; --to jsonl writes one file: name it"),
    ],
)
def test_a_name_of_another_kind_of_file_is_an_error(out, to, text, source, tmp_path):
    with pytest.raises(UsageError, match=text):
        rlpost.export(source, f"{tmp_path}/{out}", to, lossy=True)


def test_weights_outside_the_loss_and_missing_advantages_are_warnings(tmp_path):
    weights = pa.array([[1.0] * len(one) for one in rollouts()["advantages"].to_pylist()], FLOATS)
    table = rollouts().append_column("is_weight", weights)
    table = table.append_column("sample_weight", pa.array([0.5] * 7))
    found = rlpost.export(table, tmp_path / "o", "slime", lossy=True)
    (warning,) = found.warnings
    assert warning.startswith(
        "the weights (`sample_weight` and `is_weight`) are not in the loss of slime; multiply the "
    )
    none = rollouts().drop_columns(["advantages"])
    assert rlpost.export(none, tmp_path / "n", "slime").warnings == [
        "no advantages: slime computes its own; `rlpost advantages` writes them"
    ]
    assert rlpost.export(table, tmp_path / "j.jsonl", "jsonl").warnings == []


def test_rewards_that_are_no_numbers_and_masks_of_nothing_are_warnings(tmp_path):
    table = rollouts()
    none = pa.array([[0] * len(one) for one in table["response_mask"].to_pylist()], MASK)
    rewards = pa.array([1.0, None, float("nan"), 0, 0, 0, 0])
    table = table.set_column(3, "reward", rewards).set_column(9, "response_mask", none)
    found = rlpost.export(table, tmp_path / "o", "slime")
    assert found.warnings == [
        "`reward` is NaN, infinite or null in 2 responses",
        "no token is trained on: response_mask and sample_mask leave all out",
    ]


def test_jsonl_counts_response_tokens(tmp_path):
    tokens = sum(map(len, rollouts()["response_token_ids"].to_pylist()))
    assert rlpost.export(rollouts(), tmp_path / "o.jsonl", "jsonl").tokens == tokens
    texts = rollouts().select(["prompt_id", "reward", "response"])
    assert rlpost.export(texts, tmp_path / "t.jsonl", "jsonl").tokens == 0


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ([], "IN and OUT are"),
        (["a", "--to", "jsonl"], "OUT is"),
        (["a", "b.jsonl"], "--to is"),
    ],
)
def test_the_error_names_what_is_missing_and_the_targets(words, missing):
    ran = run("export", *words)
    assert ran.code == 2
    assert f"{missing} missing\n  tip: rlpost export IN... OUT --to " in ran.err
    assert all(name in ran.err for name in TARGETS)


@pytest.mark.parametrize("target", ["jsonl", "slime"])
def test_files_do_not_depend_on_chunks(target, source, tmp_path, monkeypatch):
    rlpost.export(source, tmp_path / "a", target, lossy=True)
    monkeypatch.setattr(work, "CHUNK_TOKENS", 4)
    rlpost.export(source, tmp_path / "b", target, lossy=True)
    if target == "slime":
        for step in (5, 6):
            a, b = (
                load_debug_rollout_data(str(tmp_path / name / "{rollout_id}.pt"), step)
                for name in "ab"
            )
            assert str([vars(one) for one in a]) == str([vars(one) for one in b])
    else:
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_step_can_be_in_the_paths_of_files(tmp_path):
    """And a number that is too long for an integer, which is a text."""
    table, run = rollouts().drop_columns(["step"]), "1" * 20
    for step in (5, 6):
        folder = tmp_path / "in" / f"step={step}" / f"run={run}"
        folder.mkdir(parents=True)
        pq.write_table(table, folder / "a.parquet")
    found = rlpost.export(tmp_path / "in", tmp_path / "o", "slime")
    assert [path.rpartition("/")[2] for path in found.outputs[:2]] == ["5.pt", "6.pt"]
    rlpost.export(tmp_path / "in", tmp_path / "o.jsonl", "jsonl")
    rlpost.convert(tmp_path / "o.jsonl", tmp_path / "back.parquet")
    back = pq.read_table(tmp_path / "back.parquet")
    assert (back["step"].type, back["step"].to_pylist()) == (pa.int64(), [5] * 7 + [6] * 7)
    assert {*back["run"].to_pylist()} == {run}
