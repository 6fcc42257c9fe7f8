"""`.ci/card`: what it runs needs what is on a machine with a card, and the wheels it brings."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / ".ci" / "card").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
THERE = {"numpy", "pyarrow", "pytest", "torch"}
WHEELS = {name.replace("[_-]", "-") for name in re.search(r"names='(.*)'", SCRIPT)[1].split()}
PLACES = [
    ROOT,
    ROOT / "tests",
    *(ROOT / place for place in PROJECT["tool"]["pytest"]["ini_options"]["pythonpath"]),
]
RUN = [
    *(path for path in ROOT.glob("tests/**/test_*.py") if "mark.cuda" in path.read_text("utf-8")),
    *(ROOT / "tests" / "bench" / f"{name}.py" for name in ("cuda", "device_run")),
    ROOT / "tests" / "conftest.py",
]
RUN.remove(Path(__file__))


def imported(path):
    """The modules that a file of tests imports when it is imported, and perhaps their names."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module, [f"{node.module}.{alias.name}" for alias in node.names]


def file_of(module):
    """The file of a module of the tests, None for any other."""
    files = (place / f"{module.replace('.', '/')}.py" for place in PLACES)
    return next((file for file in files if file.exists()), None)


def test_the_tests_and_the_benchmark_import_what_is_there():
    waiting, seen, libraries = [*RUN], set(), {}
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for module, names in imported(path):
            own = [file for name in (module, *names) if (file := file_of(name))]
            waiting += [file for file in own if file.is_relative_to(ROOT / "tests")]
            if not own:
                libraries[module.partition(".")[0]] = path
    assert len(RUN) >= 5
    assert len(seen) > len(RUN)
    outside = {*libraries} - {*sys.stdlib_module_names, "rlpost", *THERE, *WHEELS}
    assert not outside, {name: libraries[name] for name in outside}


def test_what_rlpost_requires_is_there_or_comes_as_a_wheel():
    required = {re.match(r"[\w-]+", text)[0] for text in PROJECT["project"]["dependencies"]}
    assert required - {"polars"} <= THERE | WHEELS  # `rlpost advantages` needs no polars


@pytest.mark.skipif(sys.platform == "win32", reason="a script of bash")
def test_a_part_that_fails_is_reported(tmp_path):
    environment = {"PATH": os.environ["PATH"], "PYTHON": "false"}
    argv = ["bash", str(ROOT / ".ci" / "card"), str(tmp_path)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "failed: machine" in done.stdout
    found = json.loads((tmp_path / "card.json").read_text())
    assert [(part["name"], part["exit_code"]) for part in found["parts"]] == [("machine", 1)]
