"""`--update`: an error if the numbers would not be those of one run over all files."""

import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from strategies import to_table
from test_invariance import big
from updates import PLAIN, counts, part, save, stamps, update

import rlpost
from rlpost.errors import UsageError


def test_outputs_that_were_computed_with_a_deleted_one_are_named(tmp_path):
    (tmp_path / "in").mkdir()
    table = pa.table({"prompt_id": [*"aabb"], "reward": [1.0, 0.0, 1.0, 0.0]})
    for index in (0, 1):  # each has a response of each prompt
        pq.write_table(table.take([index, 2 + index]), part(tmp_path, index))
    update(tmp_path)
    part(tmp_path, 1).unlink()
    found = update(tmp_path, delete=True)["update"]
    other = tmp_path / "out/part-0.parquet"
    assert found["computed_with_deleted"] == [str(other)]
    other.unlink()
    update(tmp_path)
    assert rlpost.verify(tmp_path / "out").ok


def test_a_new_file_that_shares_a_group_is_an_error_that_names_both(trained):
    table = pq.read_table(part(trained, 1))
    pq.write_table(table.slice(0, 3), part(trained, 3))
    before = stamps(trained)
    group, step = table["prompt_id"][0], table["step"][0]
    with pytest.raises(UsageError) as told:
        update(trained)
    for text in (
        f"{part(trained, 3)} and {part(trained, 1)}: share the prompt group ",
        f" of step {step}, and estimator grpo ",
        "--overwrite",
    ):
        assert text in str(told.value)
    assert str(group) in str([row.group for row in big(60)])
    assert stamps(trained) == before
    assert counts(update(trained, rlpost.Recipe(estimator="raw"))) == {"new": 1, "recipe": 3}


def test_without_steps_a_recipe_of_batches_names_the_column_to_give(tmp_path):
    rows = big(40)
    table = to_table(rows, without=("step",))
    halves = [index // 20 for index in range(40)]
    save(table, [0 if half == 0 else -1 for half in halves], tmp_path / "in")
    recipe = rlpost.Recipe(estimator="raw", norm_mean="batch", norm_std="batch")
    update(tmp_path, recipe)
    save(table, halves, tmp_path / "in")
    with pytest.raises(UsageError, match=r"without steps all files are one batch.*--map batch=COL"):
        update(tmp_path, recipe)
    assert counts(update(tmp_path, recipe, overwrite=True)) == {"new": 1, "coupled": 1}


def test_a_column_that_not_all_files_have_is_an_error(trained):
    table = pq.read_table(part(trained, 2)).drop_columns(["ref_log_probs"])
    steps = pa.array([9] * len(table), table.schema.field("step").type)
    new = table.set_column(table.schema.get_field_index("step"), "step", steps)
    pq.write_table(new, part(trained, 9))
    with pytest.raises(UsageError, match=r"computed with `ref_log_probs` as ref_log_probs, and"):
        update(trained)
    assert counts(update(trained, overwrite=True)) == {"new": 1, "coupled": 3}


def test_carried_statistics_need_a_state_file_and_steps_in_order(trained):
    recipe = rlpost.Recipe(estimator="raw", norm_mean="running", norm_std="running")
    top = trained / "second"
    rows = big(60)
    save(to_table(rows), [-1 if row.batch == 1 else row.batch for row in rows], top / "in")
    with pytest.raises(UsageError, match=r"--update: running reward statistics .*needs --state"):
        update(top, recipe)
    state = {"state": top / "state.json"}
    assert counts(update(top, recipe, **state)) == {"new": 2}
    assert json.loads((top / "state.json").read_text())["step"] == "2"
    save(to_table(rows), [row.batch for row in rows], top / "in")
    for over in (False, True):
        with pytest.raises(UsageError, match=r"part-1.*has step 1, and .*part-2.*: start over"):
            update(top, recipe, **state, overwrite=over)
    part(top, 1).unlink()
    os.utime(part(top, 0), ns=(5, 5))
    with pytest.raises(UsageError, match=r"part-0.parquet: changed, .*start over"):
        update(top, recipe, **state)
    shutil.rmtree(top / "out")
    with pytest.raises(UsageError, match=r"has step 0, and the state file has step 2"):
        update(top, recipe, **state)
    (top / "state.json").unlink()
    assert counts(update(top, recipe, **state)) == {"new": 2}
    (top / "state.json").unlink()
    save(to_table(rows), [3 if row.batch == 1 else row.batch for row in rows], top / "in")
    with pytest.raises(UsageError, match=r"state.json: does not exist, and .* 2 files"):
        update(top, recipe, **state)


def test_carried_statistics_wait_for_an_incomplete_file_before(tmp_path):
    recipe = rlpost.Recipe(estimator="raw", norm_mean="running")
    rows, state = big(60), tmp_path / "state.json"
    save(to_table(rows), [row.batch for row in rows], tmp_path / "in")
    whole = part(tmp_path, 1).read_bytes()
    for size, expected, waiting in ((9, {"new": 1}, 1), (99, {}, 1), (len(whole), {"new": 2}, 0)):
        part(tmp_path, 1).write_bytes(whole[:size])
        found = update(tmp_path, recipe, state=state)
        assert counts(found) == expected
        assert found["update"]["waiting"] == [str(part(tmp_path, 2))] * waiting
    rlpost.advantages(tmp_path / "in", tmp_path / "whole", recipe, PLAIN)
    for path in (tmp_path / "whole").iterdir():
        assert pq.read_table(path).equals(pq.read_table(tmp_path / "out" / path.name))


def test_hive_partitions_are_steps(tmp_path):
    rows = big(40)
    table = to_table(rows, without=("step",))
    for step in (1, 2):
        folder = tmp_path / f"in/step={step}"
        folder.mkdir(parents=True)
        pq.write_table(table.slice(20 * step - 20, 20), folder / "a.parquet")
        recipe = rlpost.Recipe(estimator="reinforce_pp")
        assert counts(update(tmp_path, recipe)) == {"new": 1}
        entry = pq.read_metadata(tmp_path / f"out/step={step}/a.parquet").metadata
        assert json.loads(entry[b"rlpost.source"])["file"] == f"../../in/step={step}/a.parquet"
    rlpost.advantages(tmp_path / "in", tmp_path / "whole", recipe, PLAIN)
    for step in (1, 2):
        name = f"step={step}/a.parquet"
        got, want = (pq.ParquetFile(tmp_path / top / name).read() for top in ("out", "whole"))
        assert got.equals(want)
