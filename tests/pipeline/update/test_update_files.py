"""`--update`: which files are new or changed, and which outputs are theirs."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from updates import PLAIN, UPDATE, counts, part, stamps, update

import rlpost
from rlpost import api
from rlpost.display.reporter import SilentReporter
from rlpost.errors import BlockedError, DataError, UsageError
from rlpost.io.locks import FileLock
from rlpost.pipeline.update.inputs import UpdateInputs


def test_nothing_to_do_writes_nothing_and_imports_no_torch(trained):
    before = stamps(trained)
    script = (
        "import sys; from rlpost.cli.main import _run\n"
        f"sys.argv = ['rlpost', 'advantages', '{trained}/in', '{trained}/out', '--update']\n"
        "print(_run(), 'torch' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "0 False\n"
    assert "nothing to write: 3 files" in ran.stderr
    assert stamps(trained) == before
    assert sorted(path.name for path in (trained / "out").iterdir()) == sorted(before)


def test_objects_of_a_store_are_inputs(trained, s3):
    for number in (0, 1):
        s3.put(f"in/part-{number}.parquet", part(trained, number).read_bytes())
    for expected in ({"new": 2}, {}):
        found = rlpost.advantages("s3://lab/in/", trained / "remote", options=UPDATE)
        assert counts(found) == expected
    s3.put("in/part-1.parquet", part(trained, 1).read_bytes() + b"")
    s3.put("in/part-2.parquet", part(trained, 2).read_bytes())
    found = rlpost.advantages("s3://lab/in/", trained / "remote", options=UPDATE)
    assert counts(found)["new"] == 1
    for path in (trained / "remote").iterdir():
        got, want = pq.read_table(path), pq.read_table(trained / "out" / path.name)
        assert got.equals(want)


def test_new_and_changed_files_are_written_alone(trained):
    before = stamps(trained)
    os.utime(part(trained, 1), ns=(1, 1))
    table = pq.read_table(part(trained, 2))
    steps = pa.array([7] * len(table), table.schema.field("step").type)
    new = table.set_column(table.schema.get_field_index("step"), "step", steps)
    pq.write_table(new, part(trained, 7))
    found = update(trained)
    assert counts(found) == {"new": 1, "changed": 1}
    assert found["inputs"] == [str(part(trained, 1)), str(part(trained, 7))]
    after = stamps(trained)
    assert {name for name in before if after[name] != before[name]} == {"part-1.parquet"}
    assert rlpost.verify(trained / "out")["ok"]


def test_another_recipe_another_estimator_file_and_other_semantics_are_written_again(
    trained, monkeypatch
):
    assert counts(update(trained, rlpost.Recipe(estimator="rloo"))) == {"recipe": 3}
    own = trained / "own.py"
    for factor in (1, 2):
        own.write_text(f"def own(rewards):\n    return {factor} * rewards\n")
        recipe = rlpost.Recipe(estimator=f"{own}:own")
        assert counts(update(trained, recipe)) == {"recipe": 3}
        assert counts(update(trained, recipe)) == {}
    monkeypatch.setattr("rlpost.pipeline.update.files.SEMANTICS", 99)
    assert counts(update(trained, recipe)) == {"semantics": 3}


def test_the_defaults_of_a_recipe_written_out_are_the_same_recipe(trained):
    found = update(trained, rlpost.Recipe(estimator="grpo", gamma=1.0))
    assert counts(found) == {}
    assert "nothing to write: 3 files" in found._repr_html_()


def test_an_output_without_a_fingerprint_is_written_again_and_a_foreign_file_never(trained):
    plain = replace(PLAIN, overwrite=True)
    rlpost.advantages(trained / "in", trained / "out", options=plain)
    assert b"rlpost.source" not in pq.read_metadata(trained / "out/part-1.parquet").metadata
    assert counts(update(trained)) == {"unknown": 3}
    for foreign in (pq.read_table(part(trained, 1)), None):
        target = trained / "out/part-1.parquet"
        target.unlink()
        (trained / "out/part-2.parquet").unlink()
        if foreign is None:
            target.write_text("not Parquet")
        else:
            pq.write_table(foreign, target)
        before = target.read_bytes()
        with pytest.raises(BlockedError, match=r"part-1\.parquet") as told:
            update(trained, overwrite=True)
        assert counts(told.value.summary) == {"new": 1}  # the others are written
        assert told.value.summary["update"]["blocked"] == [str(target)]
        assert (trained / "out/part-2.parquet").exists()
        assert target.read_bytes() == before


def test_a_damaged_output_that_must_be_read_is_written_again(trained):
    table = pq.read_table(part(trained, 2))
    steps = pa.array([7] * len(table), table.schema.field("step").type)
    new = table.set_column(table.schema.get_field_index("step"), "step", steps)
    damaged = trained / "out/part-1.parquet"
    data = damaged.read_bytes()
    kept = data.rindex(b"rlpost.source") - 2  # its type and length are before it
    damaged.write_bytes(bytes(kept) + data[kept:])
    assert counts(update(trained)) == {}  # its entry is there
    pq.write_table(new, part(trained, 7))
    assert counts(update(trained)) == {"new": 1, "damaged": 1}
    assert rlpost.verify(trained / "out")["ok"]


def test_files_without_rows_wait_for_one_with_rows(trained):
    table = pq.read_table(part(trained, 2))
    pq.write_table(table.slice(0, 0), part(trained, 8))
    for _ in range(2):
        found = update(trained)
        assert counts(found) == {}
        assert found["update"]["empty"] == [str(part(trained, 8))]
    steps = pa.array([9] * len(table), table.schema.field("step").type)
    new = table.set_column(table.schema.get_field_index("step"), "step", steps)
    pq.write_table(new, part(trained, 9))
    found = update(trained)
    assert (counts(found), found["update"]["empty"]) == ({"new": 2}, [])


def test_a_file_that_another_program_writes_again_during_the_run_is_incomplete(
    trained, monkeypatch
):
    """It is whole when the update looks, and is cut off when the update reads it."""
    whole = part(trained, 1).read_bytes()
    os.utime(part(trained, 0), ns=(5, 5))
    os.utime(part(trained, 1), ns=(5, 5))
    files = UpdateInputs.files

    def cut(self):
        found = files(self)
        if part(trained, 1) in [file.path for file in found]:
            part(trained, 1).write_bytes(whole[: len(whole) // 2])
        return found

    monkeypatch.setattr(UpdateInputs, "files", cut)
    found = update(trained)
    assert counts(found) == {"changed": 1}
    assert found["update"]["incomplete"] == [str(part(trained, 1))]
    monkeypatch.undo()
    part(trained, 1).write_bytes(whole)
    assert counts(update(trained)) == {"changed": 1}


def test_what_an_input_says_of_its_own_input_is_no_part_of_the_output(trained):
    """An enriched file as the input of a run, and of an update."""
    recipe = rlpost.Recipe(estimator="rloo", replace=True)
    rlpost.advantages(trained / "out", trained / "again", recipe, PLAIN)
    for path in (trained / "again").iterdir():
        assert b"rlpost.source" not in pq.read_metadata(path).metadata
        assert b"rlpost.source" not in (pq.read_schema(path).metadata or {})
    own = trained / "third"
    rlpost.advantages(trained / "out", own, recipe, UPDATE)
    entry = json.loads(pq.read_metadata(own / "part-1.parquet").metadata[b"rlpost.source"])
    assert entry["file"] == "../out/part-1.parquet"


def test_half_written_files_are_left_alone_until_they_are_whole(trained):
    whole = part(trained, 2).read_bytes()
    for size in (0, 1, 9, len(whole) // 2, len(whole) - 1):
        part(trained, 9).write_bytes(whole[:size])
        found = update(trained)
        assert counts(found) == {}
        assert found["update"]["incomplete"] == [str(part(trained, 9))]
    part(trained, 9).write_bytes(whole)
    with pytest.raises(UsageError, match=r"part-9.parquet and .*part-2.parquet: share"):
        update(trained)  # it has the same groups
    assert counts(update(trained, overwrite=True)) == {"new": 1, "coupled": 1}


def test_dumps_are_converted_only_where_they_are_new(tmp_path):
    top = tmp_path / "in"
    top.mkdir()

    def dump(step):
        rows = [
            {"input": f"q{i // 2}", "output": "a", "score": i % 3, "step": step} for i in range(6)
        ]
        return "".join(json.dumps(row) + "\n" for row in rows)

    (top / "1.jsonl").write_text(dump(1))
    (top / "config.json").write_text("{}")
    (top / "2.jsonl").write_text(dump(2)[:-40])
    lines = []
    reporter = SilentReporter(lines.append)
    options = {
        "recipe": rlpost.Recipe(estimator="dr_grpo"),
        "options": replace(UPDATE, reporter=reporter),
    }
    found = api.advantages([top], tmp_path / "out", **options)
    assert counts(found) == {"new": 1}
    assert found["inputs"] == [str(top / "1.jsonl")]
    assert found["update"]["incomplete"] == [str(top / "2.jsonl")]
    assert found["update"]["skipped"] == [str(top / "config.json")]
    (top / "2.jsonl").write_text(dump(2)[:-1])  # a last line without its break is whole
    assert counts(api.advantages([top], tmp_path / "out", **options)) == {"new": 1}
    assert [line.partition(":")[0] for line in lines] == [str(top / f"{n}.jsonl") for n in (1, 2)]
    assert counts(api.advantages([top], tmp_path / "out", **options)) == {}
    (top / "2.jsonl").write_text(dump(2).replace('"score": 2', '"score": "x"'))
    with pytest.raises(DataError, match=r"in/2\.jsonl"):
        api.advantages([top], tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("options", "out", "text"),
    [
        ({"resume": True}, "out", "--update with --resume: is not supported"),
        ({"engine": "ray"}, "out", "--update with --engine ray: is not supported"),
        ({}, "out.parquet", "--update needs a directory as OUT"),
        ({}, "s3://lab/out/", "--update needs a local directory as OUT"),
        ({}, "in", "OUT and IN are the same directory"),
    ],
)
def test_what_an_update_does_not_support_is_an_error(trained, options, out, text):
    target = out if "://" in out else trained / out
    with pytest.raises(UsageError, match=text):
        rlpost.advantages(trained / "in", target, options=replace(UPDATE, **options))
    with pytest.raises(UsageError, match="Table came"):
        rlpost.advantages(pa.table({}), trained / "x", options=UPDATE)


def test_parquet_may_have_any_name(trained):
    """As a single file or by a glob, as for other runs."""
    part(trained, 1).rename(trained / "in/part-1.pq")
    for source in ("in/part-1.pq", "in/*.pq"):
        shutil.rmtree(trained / "out")
        assert counts(update(trained, source=source)) == {"new": 1}
        assert counts(update(trained, source=source)) == {}
        assert (trained / "out/part-1.pq").exists()


def test_out_may_be_inside_in(trained):
    out = trained / "in/enriched"
    for expected in ({"new": 3}, {}):
        found = rlpost.advantages(trained / "in", out, options=UPDATE)
        assert counts(found) == expected


def test_what_killed_runs_left_of_outputs_that_are_up_to_date_goes(trained):
    """Unless a run writes that output."""
    left = [trained / f"out/.part-{n}.parquet.rlpost-1-0000000{n}.tmp" for n in range(4)]
    for path in left:
        path.touch()
    with FileLock([trained / "out/part-1.parquet"]):
        left[1].touch()
        assert counts(update(trained)) == {}
    assert [path.exists() for path in left] == [False, True, False, True]
