"""The marker of an update that publishes: a killed one is repeated, two at a time are an error."""

import json
import os
import shutil

import pyarrow.parquet as pq
import pytest
from strategies import to_table
from test_invariance import big
from updates import counts, part, save, update

import rlpost
from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.locks import BusyError, FileLock
from rlpost.pipeline.update.marker import MARKER


def test_a_second_update_at_the_same_time_is_an_error(trained):
    with (
        FileLock([trained / "out" / MARKER]),
        pytest.raises(BusyError, match="another rlpost process"),
    ):
        update(trained)
    assert counts(update(trained)) == {}


def test_a_run_that_was_killed_is_repeated_if_a_file_is_missing(trained):
    """The marker names a file that is neither published nor complete beside its target."""
    recipe = rlpost.Recipe(estimator="raw", norm_mean="running", norm_std="running")
    top, state = trained / "second", trained / "second/state.json"
    rows = big(60)
    save(to_table(rows), [row.batch for row in rows], top / "in")
    update(top, recipe, state=state)
    after, files = state.read_text(), {path.name: path for path in (top / "out").iterdir()}
    facts = {
        name: [f".{name}.rlpost-1-00000000.tmp", path.stat().st_size, path.stat().st_mtime_ns]
        for name, path in files.items()
    }
    files["part-1.parquet"].unlink()
    saved = {"path": str(state), "before": None, "after": after}
    (top / "out" / MARKER).write_text(json.dumps({"files": facts, "state": saved}))
    with pytest.raises(UsageError, match=r"--state .*: .*had --state .*second/state.json"):
        update(top, recipe, state=trained / "other.json")
    assert counts(update(top, recipe, state=state)) == {"stopped": 3}
    assert state.read_text() == after
    assert counts(update(top, recipe, state=state)) == {}


def temporary(name):
    return f".{name}.rlpost-1-00000000.tmp"


@pytest.mark.parametrize(
    ("name", "staged"),
    [
        ("../victim.txt", temporary("victim.txt")),
        ("{top}/victim.txt", temporary("victim.txt")),
        ("link/victim.txt", temporary("victim.txt")),
        ("sub/../../victim.txt", temporary("victim.txt")),
        ("..", temporary("..")),
        ("victim.txt\0", temporary("victim.txt\0")),
        ("part-1.parquet", "part-2.parquet"),
        ("part-1.parquet", f"../{temporary('part-1.parquet')}"),
    ],
)
def test_a_marker_publishes_only_temporary_files_below_out(trained, name, staged):
    out, other = trained / "out", trained / "other"
    other.mkdir()
    (out / "link").symlink_to(other)
    name = name.format(top=trained)
    victims = [trained / "victim.txt", other / "victim.txt", out / "part-1.parquet"]
    for path in victims[:2]:
        path.write_text("victim")
    for folder in (trained, other, out):
        for path in (folder / temporary("victim.txt"), folder / temporary("part-1.parquet")):
            path.write_text("evil")
            os.utime(path, ns=(5, 5))
    before = [path.read_bytes() for path in victims]
    facts = [staged, len("evil"), 5]
    (out / MARKER).write_text(json.dumps({"files": {name: facts}, "state": None}))
    with pytest.raises(DataError, match="is damaged"):
        update(trained)
    assert [path.read_bytes() for path in victims] == before


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{}", b'{"files": [], "state": null}', b'{"files": {"a": 3}, "state": null}',
        b'{"files": {"a": ["b", "c", 1]}, "state": null}', b'{"files": {}, "state": {"path": 3}}',
        b"[" * 100_000, b"\xff",
    ],
)  # fmt: skip
def test_a_damaged_marker_is_an_error(trained, text):
    (trained / "out" / MARKER).write_bytes(text)
    with pytest.raises(DataError, match="is damaged"):
        update(trained)


def test_a_pipe_in_the_place_of_a_marker_is_an_error(trained):
    os.mkfifo(trained / "out" / MARKER)
    with pytest.raises(ReadWriteError, match="not a regular file"):
        update(trained)


def test_an_update_does_not_write_through_a_link_that_leads_out_of_out(trained):
    table = pq.read_table(part(trained, 1))
    (trained / "in/sub").mkdir()
    pq.write_table(table, trained / "in/sub/part-7.parquet")
    (trained / "other").mkdir()
    (trained / "out/sub").symlink_to(trained / "other")
    with pytest.raises(UsageError, match="symbolic link"):
        update(trained, overwrite=True)
    assert [*(trained / "other").iterdir()] == []
    (trained / "out/sub").unlink()
    shutil.copytree(trained / "other", trained / "out/real")
    (trained / "out/sub").symlink_to("real")
    assert counts(update(trained, overwrite=True)) == {"new": 1, "coupled": 1}
