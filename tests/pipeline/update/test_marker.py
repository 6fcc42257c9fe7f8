"""The marker of an update that publishes: a killed one is repeated, two at a time are an error."""

import json

import pytest
from strategies import to_table
from test_invariance import big
from updates import counts, save, update

import rlpost
from rlpost.errors import UsageError
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
        name: ["gone", path.stat().st_size, path.stat().st_mtime_ns] for name, path in files.items()
    }
    files["part-1.parquet"].unlink()
    saved = {"path": str(state), "before": None, "after": after}
    (top / "out" / MARKER).write_text(json.dumps({"files": facts, "state": saved}))
    with pytest.raises(UsageError, match=r"--state .*: .*had --state .*second/state.json"):
        update(top, recipe, state=trained / "other.json")
    assert counts(update(top, recipe, state=state)) == {"stopped": 3}
    assert state.read_text() == after
    assert counts(update(top, recipe, state=state)) == {}
