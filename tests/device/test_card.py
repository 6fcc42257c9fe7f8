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
    ROOT / "tests" / "bench" / "inputs.py",
    ROOT / "tests" / "conftest.py",
    ROOT / "tests" / "device" / "on_card.py",
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
    assert len(RUN) >= 4
    assert len(seen) > len(RUN)
    outside = {*libraries} - {*sys.stdlib_module_names, "rlpost", *THERE, *WHEELS}
    assert not outside, {name: libraries[name] for name in outside}


def test_what_rlpost_requires_is_there_or_comes_as_a_wheel():
    required = {re.match(r"[\w-]+", text)[0] for text in PROJECT["project"]["dependencies"]}
    unused = {"polars", "textual"}  # by `rlpost advantages`
    assert required - unused <= THERE | WHEELS


def test_a_part_that_fails_is_reported(tmp_path):
    environment = {"PATH": os.environ["PATH"], "PYTHON": "false"}
    argv = ["bash", str(ROOT / ".ci" / "card"), str(tmp_path)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "failed: machine" in done.stdout
    found = json.loads((tmp_path / "card.json").read_text())
    assert [(part["name"], part["exit_code"]) for part in found["parts"]] == [("machine", 1)]
    assert found["complete"]


@pytest.mark.parametrize(
    ("option", "code", "text"),
    [("--help", 0, "--wheels"), ("--wheel", 2, "unknown option --wheel")],
)
def test_options_are_no_folders(tmp_path, option, code, text):
    argv = ["bash", str(ROOT / ".ci" / "card"), option]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert text in done.stdout + done.stderr
    assert not (ROOT / option).exists()


def test_card_json_is_written_after_each_part(tmp_path):
    """A Python that keeps the file when the next part begins."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = - ] || cp "$FOLDER/card.json" "$FOLDER/seen.json"\n')
    python.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "PYTHON": str(python), "FOLDER": str(tmp_path)}
    argv = ["bash", str(ROOT / ".ci" / "card"), str(tmp_path)]
    subprocess.run(argv, env=environment, capture_output=True, check=True)
    seen, found = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("seen", "card"))
    assert seen["parts"] == found["parts"][:-1]
    assert [part["name"] for part in found["parts"]][:3] == ["machine", "doctor", "tests"]
    assert (seen["complete"], found["complete"]) == (False, True)


@pytest.mark.parametrize(
    ("device", "body", "code"),
    [("cuda", "pytest.skip()", 1), ("torch:cpu", "pytest.skip()", 0), ("cuda", "pass", 0)],
)
def test_on_a_card_a_cuda_test_must_run(tmp_path, device, body, code):
    file = tmp_path / "test_it.py"
    file.write_text(f"import pytest\n@pytest.mark.cuda\ndef test_it():\n    {body}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = cuda: needs one\n")
    argv = [sys.executable, "-m", "tests.device.on_card", device, str(file)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout
    assert ("not one CUDA test ran" in done.stderr) == bool(code)
