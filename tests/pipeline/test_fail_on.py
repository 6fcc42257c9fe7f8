"""Findings that keep a run from publishing: `--fail-on`, on every engine."""

from dataclasses import replace

import pyarrow as pa
import pytest
from distributed_runs import LOCAL, RAY, in_tasks, steps_table, write_files
from runs import rollout, run, save, strict_json
from summaries import errors_of, warnings_of

import rlpost
from rlpost.errors import FindingsError

RECIPE = rlpost.Recipe()
ENGINES = {
    "local": lambda top, options: rlpost.advantages(top / "in", top / "out", RECIPE, options),
    "tasks": lambda top, options: in_tasks(top / "in", top / "out", RECIPE, options),
    "ray": lambda top, options: rlpost.advantages(
        top / "in", top / "out", RECIPE,
        replace(RAY, fail_on=options.fail_on, state=options.state),
    ),
}  # fmt: skip
AT_NIGHT = [pytest.param(n, marks=pytest.mark.nightly if n != "local" else ()) for n in ENGINES]


@pytest.fixture
def folder(tmp_path):
    write_files(steps_table(), tmp_path / "in", 3)
    return tmp_path


def published(folder):
    return [path.name for path in (folder / "out").glob("*.parquet")]


@pytest.mark.parametrize("engine", AT_NIGHT)
def test_warnings_fail_a_run_on_request_and_its_state_stays(engine, folder):
    options = replace(LOCAL, fail_on="warning", state=folder / "state.json")
    with pytest.raises(FindingsError) as error:
        ENGINES[engine](folder, options)
    summary = error.value.summary
    assert (errors_of(summary), summary["outputs"]) == ([], [])
    assert all(text in str(error.value) for text in warnings_of(summary))
    assert published(folder) == []
    assert not (folder / "state.json").exists()
    assert warnings_of(ENGINES[engine](folder, replace(LOCAL, fail_on="error")))
    assert len(published(folder)) == 4


def test_errors_fail_a_run_on_request(tmp_path):
    table = rollout()
    path = save(table.set_column(1, "reward", pa.array([1.0] * 12)), tmp_path / "a.parquet")
    out, summary = tmp_path / "b.parquet", tmp_path / "summary.json"
    words = ["advantages", path, out, "--summary-json", summary, "-q"]
    for severity in ("error", "warning"):
        ran = run(*words, "--fail-on", severity)
        assert (ran.code, out.exists()) == (1, False)
        assert "all advantages are zero" in ran.err
        assert len(errors_of(strict_json(summary.read_text()))) == 1
    assert run(*words).code == 0
    assert strict_json(summary.read_text())["outputs"] == [str(out)]


def test_tables_in_memory_fail_likewise():
    table = rollout()
    table = table.set_column(1, "reward", pa.array([1.0] * 12))
    with pytest.raises(FindingsError, match="all advantages are zero"):
        rlpost.enrich(table, RECIPE, rlpost.Options(fail_on="error"))
    assert rlpost.enrich(rollout(), RECIPE, rlpost.Options(fail_on="error"))[1]
