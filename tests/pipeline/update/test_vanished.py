"""Inputs that no longer exist: their outputs are deleted only if that is proven."""

import os
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from updates import UPDATE, counts, part, stamps, update

import rlpost
from rlpost.errors import UsageError
from rlpost.pipeline.update.entry import Entry

NAMES = {f"part-{number}.parquet" for number in range(3)}


def remove(top, number):
    part(top, number).unlink()
    return str(top / f"out/part-{number}.parquet")


def test_the_output_of_an_input_that_vanished_is_kept_or_deleted(trained):
    kept = remove(trained, 0)
    found = update(trained)
    assert counts(found) == {}
    assert found["update"]["missing_inputs"] == [kept]
    pq.write_table(pq.read_table(kept), trained / "out/mine.parquet")  # no output of an update
    found = update(trained, delete=True)
    assert (found["update"]["missing_inputs"], found["update"]["deleted"]) == ([], [kept])
    assert {*stamps(trained)} == NAMES - {"part-0.parquet"} | {"mine.parquet"}
    with pytest.raises(UsageError, match="--delete: needs --update"):
        rlpost.advantages(trained / "in", trained / "x", options=rlpost.Options(delete=True))


def test_an_empty_input_deletes_nothing(trained):
    (trained / "other").mkdir()
    with pytest.raises(UsageError, match="--delete: IN has no files"):
        update(trained, source="other", delete=True)
    assert {*stamps(trained)} == NAMES


@pytest.mark.parametrize("source", ["in/part-0.parquet", "in/part-*.parquet", "in"])
def test_outputs_have_the_same_inputs_if_in_and_out_are_reached_through_links(trained, source):
    (trained / "deep/er").mkdir(parents=True)
    (trained / "deep/er/out").symlink_to(trained / "out")
    (trained / "deep/in").symlink_to(trained / "in")
    for top in (trained, trained / "deep"):
        found = run(top / source, trained / "deep/er/out")
        assert counts(found) == {}
        assert (found["update"]["deleted"], found["update"]["unproven"]) == ([], {})
    assert {*stamps(trained)} == NAMES
    gone = remove(trained, 1)
    found = run(trained / "deep/in", trained / "deep/er/out")
    assert found["update"]["deleted"] == [gone.replace("/out/", "/deep/er/out/")]
    assert {*stamps(trained)} == NAMES - {"part-1.parquet"}


@pytest.mark.parametrize("source", ["in/part-0.parquet", "in/part-*.parquet", "other"])
def test_what_in_does_not_list_is_kept_and_the_reason_is_in_the_summary(trained, source):
    """A file and a glob list no directory, and another directory is another input."""
    (trained / "other").mkdir()
    table = pq.read_table(part(trained, 0))
    steps = pa.array([7] * len(table), table.schema.field("step").type)
    new = table.set_column(table.schema.get_field_index("step"), "step", steps)
    pq.write_table(new, trained / "other/part-7.parquet")
    gone = remove(trained, 1)
    found = update(trained, source=source, delete=True)
    assert found["update"]["deleted"] == []
    assert found["update"]["unproven"] == {gone: f"{trained / 'in'} is no directory of IN"}
    assert {*stamps(trained)} >= NAMES


def test_an_output_that_was_moved_is_kept(trained):
    (trained / "moved").mkdir()
    (trained / "out").rename(trained / "moved/out")
    remove(trained, 1)
    found = run(trained / "in", trained / "moved/out")
    assert (counts(found), found["update"]["deleted"]) == ({}, [])
    assert {*found["update"]["unproven"]} == {str(trained / "moved/out/part-1.parquet")}


def test_the_inputs_of_a_file_system_that_is_not_mounted_are_not_gone(tmp_path):
    """Its directory is missing, or is empty, as a mount point is."""
    for step in (1, 2, 3):
        folder = tmp_path / f"in/step={step}"
        folder.mkdir(parents=True)
        rows = {"prompt_id": ["a", "a"], "reward": [1.0, 0.0]}
        pq.write_table(pa.table(rows), folder / "a.parquet")
    assert counts(update(tmp_path)) == {"new": 3}
    shutil.rmtree(tmp_path / "in/step=2")
    (tmp_path / "in/step=3/a.parquet").unlink()
    found = update(tmp_path, delete=True)["update"]
    assert found["deleted"] == []
    assert {path: why.partition(" ")[2][:14] for path, why in found["unproven"].items()} == {
        str(tmp_path / "out/step=2/a.parquet"): "does not exist",
        str(tmp_path / "out/step=3/a.parquet"): "is empty; its ",
    }
    (tmp_path / "in/step=3/other").touch()
    found = update(tmp_path, delete=True)["update"]
    assert found["deleted"] == [str(tmp_path / "out/step=3/a.parquet")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads all directories")
def test_the_inputs_of_a_directory_that_cannot_be_listed_are_not_gone(trained):
    """With the right to enter it, a file in it is not found, and nobody can list the others."""
    (trained / "in/sub").mkdir()
    part(trained, 1).rename(trained / "in/sub/part-1.parquet")
    update(trained)
    (trained / "in/sub/part-1.parquet").unlink()
    (trained / "in/sub").chmod(0o300)
    found = update(trained, delete=True)["update"]
    assert [*found["unproven"]] == [str(trained / "out/sub/part-1.parquet")]


def test_a_link_in_the_place_of_an_input_is_not_gone(trained):
    part(trained, 1).unlink()
    part(trained, 1).symlink_to(trained / "nowhere")
    found = update(trained, delete=True)["update"]
    assert (found["deleted"], found["unproven"]) == ([], {})
    assert {*stamps(trained)} == NAMES


def test_objects_are_gone_if_the_listing_of_their_directory_lacks_them(trained, s3):
    for number in (0, 1):
        s3.put(f"in/part-{number}.parquet", part(trained, number).read_bytes())
    out = trained / "remote"
    assert counts(run("s3://lab/in/", out)) == {"new": 2}
    s3.put("other/part-5.parquet", part(trained, 2).read_bytes())
    s3.client.delete_object(Bucket="lab", Key="in/part-1.parquet")
    for source, deleted in (
        ("s3://lab/in/part-0.parquet", []),
        ("s3://lab/other/", []),
        ("s3://lab/in/", [str(out / "part-1.parquet")]),
    ):
        assert run(source, out)["update"]["deleted"] == deleted


@pytest.mark.parametrize("file", ["\0", "x" * 5000, "../../out/part-1.parquet", "ftp://x/y"])
def test_an_entry_with_a_path_that_is_none_deletes_nothing(trained, monkeypatch, file):
    monkeypatch.setattr("rlpost.pipeline.update.files.recorded_path", lambda *_: file)
    update(trained, rlpost.Recipe(estimator="rloo"))
    monkeypatch.undo()
    assert Entry.read(trained / "out/part-1.parquet").file == file
    remove(trained, 1)
    found = update(trained, rlpost.Recipe(estimator="rloo"), delete=True)
    assert (counts(found), found["update"]["deleted"]) == ({}, [])
    assert {*stamps(trained)} == NAMES


def run(source, output):
    return rlpost.advantages(source, output, options=replace(UPDATE, delete=True))
