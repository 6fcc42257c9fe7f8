"""No run imports pandas, for which pyarrow reaches wherever it is installed: that takes 0.5 s."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

SAMPLE = Path(__file__).parents[1] / "sample_data" / "arithmetic.parquet"

WATCHED = """
import sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            print("pandas was asked for", file=sys.stderr)

sys.meta_path.insert(0, Watch())
from rlpost.start import leave
leave()
"""


def told(*arguments: object) -> str:
    """What a run says on stderr; pyarrow swallows exceptions of an import, so the watch speaks."""
    command = [sys.executable, "-c", WATCHED, *map(str, arguments), "--quiet"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


RUNS = {
    "grpo": "--estimator grpo",
    "gae": "--estimator gae --kl-coef 0.1 --whiten-advantages",
    "masks": "--estimator rloo --difficulty-mask --drop-truncated --nonfinite mask",
    "weights": "--estimator reinforce --difficulty-weight --is-weight token --is-cap 2",
    "only": "--estimator grpo --emit-only",
}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_run_does_not_import_pandas(options, tmp_path):
    out = tmp_path / "out.parquet"
    assert told("advantages", SAMPLE, out, *options.split()) == ""
    assert out.exists()


def test_nor_do_columns_of_a_folders_name(tmp_path):
    folder = tmp_path / "in" / "step=3" / "run=ab"
    folder.mkdir(parents=True)
    pq.write_table(pq.read_table(SAMPLE).drop_columns(["step", "prompt_id"]), folder / "a.parquet")
    mapped = ("--map", "group=run")
    assert told("advantages", tmp_path / "in", tmp_path / "out", *mapped) == ""


def test_the_watch_sees_pandas():
    """Without this the tests above could not fail where nothing imports pandas any more."""
    code = WATCHED.replace(
        "from rlpost.start import leave\nleave()", "import pyarrow as pa; pa.array([])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pandas" in ran.stderr
