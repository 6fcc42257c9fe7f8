"""No run imports pandas, for which pyarrow reaches wherever it is installed: that takes 0.5 s."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

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


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_run_does_not_import_pandas(told, options, tmp_path):
    out = tmp_path / "out.parquet"
    assert told("advantages", "--quiet", SAMPLE, out, *options.split()) == ""
    assert out.exists()


def test_nor_do_columns_of_a_folders_name(told, tmp_path):
    folder = tmp_path / "in" / "step=3" / "run=ab"
    folder.mkdir(parents=True)
    pq.write_table(pq.read_table(SAMPLE).drop_columns(["step", "prompt_id"]), folder / "a.parquet")
    mapped = ("--map", "group=run")
    assert told("advantages", "-q", tmp_path / "in", tmp_path / "out", *mapped) == ""


@pytest.mark.parametrize("command", ["inspect", "loss"])
def test_nor_do_other_commands(told, command, tmp_path):
    options = ("--summary-json", tmp_path / "loss.json", "-q") if command == "loss" else ()
    assert told(command, SAMPLE, *options) == ""


def test_what_pyarrow_does_by_itself_is_told(told):
    """Without this the tests above could not fail where nothing imports pandas any more."""
    assert "pandas" in told(code="import pyarrow as pa; pa.array([])")
