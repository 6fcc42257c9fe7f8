"""Start-up: what commands import, how the program is started, and the time that it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from format_writers_text import rollouts, verl
from runs import save

SAMPLE = Path(__file__).parents[2] / "sample_data" / "arithmetic.parquet"
PANDAS = """
import sys
print("pandas was imported", file=sys.stderr)
raise ImportError
"""
SEVERAL = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from rlpost.cli.app import main
names, *commands = map(json.loads, sys.argv[1:])
for words in commands:
    sys.argv = ["rlpost", *words]
    before = {*sys.modules}
    told = io.StringIO()
    try:
        with redirect_stdout(told), redirect_stderr(told):
            main()
    except SystemExit as end:
        assert (end.code or 0) in (0, 1) or words[-1] in ("nothing", "2"), told.getvalue()
    print(json.dumps([name for name in names if name in {*sys.modules} - before]))
"""
NAMES = (
    "numpy", "pyarrow", "torch", "polars", "ray", "textual",
    "rlpost.analysis", "rlpost.formats", "rlpost.losses",
)  # fmt: skip
COMMANDS = [
    ("--help", []),
    ("nothing", []),
    ("advantages --help", []),
    ("advantages IN NEW --gamma 2", []),
    ("advantages IN OUT --estimator reinforce --kl-coef 0.1", ["numpy", "pyarrow"]),
    ("advantages IN NEW --estimator gae --whiten-advantages --is-weight token --is-cap 2", []),
    ("advantages IN NEW --overwrite --emit-only --drop-difficulty 0:0.9 --nonfinite mask", []),
    ("advantages FOLDER NEW_FOLDER --map group=run", []),
    ("advantages IN NEW --plan", []),
    ("advantages DUMP CONVERTED", ["rlpost.formats"]),
    ("verify OUT", ["rlpost.analysis"]),
    ("compare OUT OUT", []),
    ("replay OUT", []),
    ("loss OUT", ["rlpost.losses"]),
    ("inspect IN", ["polars"]),
]
"""Commands in one process, with what each is the first to import."""


def processed(*arguments: object, code: str, **environment: str) -> subprocess.CompletedProcess:
    """Run Python code in a process; it must succeed."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip


def test_commands_import_only_the_libraries_and_rooms_that_they_need(tmp_path):
    """None imports torch or pandas: pyarrow would import pandas by itself, for half a second."""
    table = pq.read_table(SAMPLE).slice(0, 64)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "pandas.py").write_text(PANDAS)
    hive = table.drop_columns(["step", "prompt_id"])
    save(hive, tmp_path / "FOLDER" / "step=3" / "run=ab" / "a.parquet")
    files = {"IN": save(table, tmp_path / "in.parquet"), "FOLDER": tmp_path / "FOLDER"}
    files["DUMP"] = verl(tmp_path / "1.jsonl", rollouts())
    files |= {name: tmp_path / name for name in ("OUT", "NEW", "NEW_FOLDER", "CONVERTED")}
    words = [[str(files.get(word, word)) for word in line.split()] for line, _ in COMMANDS]
    ran = processed(
        *map(json.dumps, [NAMES, *words]), code=SEVERAL, PYTHONPATH=str(tmp_path / "site")
    )
    imported = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [*zip([line for line, _ in COMMANDS], imported, strict=True)] == COMMANDS
    assert "pandas" not in ran.stderr


@pytest.mark.parametrize(
    "size",
    ["²", *(pytest.param(size, marks=pytest.mark.nightly) for size in ("", "wide", "-5", "0"))],
)
def test_the_program_ignores_a_size_of_the_terminal_that_is_no_number(size):
    environment = {**os.environ, "COLUMNS": size, "LINES": size}
    argv = [sys.executable, "-m", "rlpost", "list", "losses"]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment)
    assert ran.stderr == ""
    assert "ppo" in ran.stdout
