"""Start-up: no run imports pandas, which takes pyarrow 0.5 s, and the summary has its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.cli.main import FIRST_LINE, LONGEST_START, process_start

SAMPLE = Path(__file__).parents[2] / "sample_data" / "arithmetic.parquet"

PANDAS = """
import sys
print("pandas was imported", file=sys.stderr)
raise ImportError
"""


@pytest.fixture
def told(tmp_path_factory):
    """What a program says on stderr where the pandas that it finds tells of it.

    Nothing else would: pyarrow swallows the exceptions of this import.
    """
    folder = tmp_path_factory.mktemp("pandas")
    (folder / "pandas.py").write_text(PANDAS)

    def run(*arguments: object, code: str = "from rlpost.cli.main import leave; leave()") -> str:
        ran = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stderr

    return run


RUNS = {
    "grpo": "--estimator grpo",
    "gae": "--estimator gae --kl-coef 0.1 --whiten-advantages",
    "masks": "--estimator rloo --difficulty-mask --drop-truncated --nonfinite mask",
    "weights": "--estimator reinforce --difficulty-weight --is-weight token --is-cap 2",
    "only": "--estimator grpo --emit-only",
}


SEVERAL = """
import sys
from contextlib import suppress
from rlpost.cli.app import main
_, source, folder, *runs = sys.argv
for place, options in enumerate(runs):
    sys.argv = ["rlpost", "advantages", "-q", source, f"{folder}/{place}.parquet", *options.split()]
    with suppress(SystemExit):
        main()
"""


def test_a_run_does_not_import_pandas(told, tmp_path):
    assert told(SAMPLE, tmp_path, *RUNS.values(), code=SEVERAL) == ""
    assert len([*tmp_path.iterdir()]) == len(RUNS)


def test_hive_columns_do_not_import_pandas(told, tmp_path):
    folder = tmp_path / "in" / "step=3" / "run=ab"
    folder.mkdir(parents=True)
    pq.write_table(pq.read_table(SAMPLE).drop_columns(["step", "prompt_id"]), folder / "a.parquet")
    mapped = ("--map", "group=run")
    assert told("advantages", "-q", tmp_path / "in", tmp_path / "out", *mapped) == ""


@pytest.mark.parametrize("command", ["inspect", "loss"])
def test_other_commands_do_not_import_pandas(told, command, tmp_path):
    options = ("--summary-json", tmp_path / "loss.json", "-q") if command == "loss" else ()
    assert told(command, SAMPLE, *options) == ""


def test_what_pyarrow_does_by_itself_is_told(told):
    """Without this the tests above could not fail where nothing imports pandas any more."""
    assert "pandas" in told(code="import pyarrow as pa; pa.array([])")


def run_after_half_a_second(tmp_path, *words):
    """The summary of a run in a process that began half a second before the command line."""
    code = "import time; time.sleep(0.5); from rlpost.cli.main import leave; leave()"
    out = tmp_path / "out.parquet"
    argv = [sys.executable, "-c", code, *words, str(SAMPLE), str(out), "-q", "--summary-json", "-"]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


@pytest.mark.parametrize("command", ["advantages", "loss"])
def test_the_time_of_a_run_counts_from_the_start_of_its_process(tmp_path, command):
    seconds = run_after_half_a_second(tmp_path, command)["seconds"]
    assert seconds["start_up"] > 0.5
    parts = seconds["start_up"] + sum(seconds["passes"].values()) + seconds["publishing"]
    assert seconds["total"] >= parts


def test_the_start_of_this_process_was_before_its_first_line():
    assert FIRST_LINE - LONGEST_START <= process_start() <= FIRST_LINE


def test_python_m_rlpost_is_the_program():
    argv = [sys.executable, "-m", "rlpost", "--version"]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert ran.stdout == f"rlpost {rlpost.__version__}\n"


@pytest.mark.parametrize("size", ["²", "", "wide", "-5", "0"])
def test_a_size_of_the_terminal_that_is_no_number_is_ignored(size):
    ran = subprocess.run(
        [sys.executable, "-m", "rlpost", "losses"],
        env={**os.environ, "COLUMNS": size, "LINES": size},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "ppo" in ran.stdout
