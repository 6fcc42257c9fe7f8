"""Which tests run a mutant's line, in every process that a test starts: a marked tree says so."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

from mutation.mutants import functions

if TYPE_CHECKING:
    from pathlib import Path

    from mutation.mutants import Mutant

_HIT = '''"""Append the current test once to the file of hits."""
import os
_seen = set()
def hit(number):
    key = (os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0], number)
    if key not in _seen:
        _seen.add(key)
        with open({target!r}, "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{{key[1]}} {{key[0]}}\\n")
'''


def mark(tree: Path, mutants: list[Mutant], target: Path) -> None:
    """Insert a call before the statement of each mutant."""
    (tree / "rlpost_hits.py").write_text(_HIT.format(target=str(target)), encoding="utf-8")
    places: dict[Path, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for number, mutant in enumerate(mutants):
        path = tree / "rlpost" / mutant.file
        for line in _statements(path, mutant, tree):
            places[path][line].add(number)
    for path, marks in places.items():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        for line in sorted(marks, reverse=True):
            indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
            calls = "; ".join(f"__import__('rlpost_hits').hit({n})" for n in sorted(marks[line]))
            lines.insert(line - 1, f"{indent}{calls}\n")
        path.write_text("".join(lines), encoding="utf-8")
        compile(path.read_text(encoding="utf-8"), str(path), "exec")


def _statements(path: Path, mutant: Mutant, tree: Path) -> list[int]:
    """Return the first line of the mutant's statement, or of all functions for one outside them."""
    number = mutant.find(tree)
    module = ast.parse(path.read_text(encoding="utf-8"))
    blocks = [node for node, _ in functions(module) if isinstance(node, ast.FunctionDef)]
    inside = [node for node in blocks if node.body[0].lineno <= number <= node.end_lineno]
    if not inside:
        return sorted({_first(node) for node in blocks}) or [_first(module)]
    function = max(inside, key=lambda node: node.lineno)
    best = _first(function)
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            for statement in (
                getattr(node, field, []) if not isinstance(node, ast.IfExp | ast.Lambda) else []
            ):
                is_elif = (
                    field == "orelse" and isinstance(node, ast.If) and isinstance(statement, ast.If)
                )
                if is_elif and statement.col_offset == node.col_offset:
                    continue
                if best < statement.lineno <= number and not isinstance(statement, ast.ClassDef):
                    start = min(
                        [
                            statement.lineno,
                            *(d.lineno for d in getattr(statement, "decorator_list", [])),
                        ]
                    )
                    if statement.end_lineno >= number:
                        best = max(best, start)
    return [best]


def _first(node: ast.FunctionDef | ast.Module) -> int:
    """Return the line of the first statement after docstring and imports from the future."""
    for statement in node.body:
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not text and not future:
            start = [
                statement.lineno,
                *(d.lineno for d in getattr(statement, "decorator_list", [])),
            ]
            return min(start)
    return node.body[-1].lineno


class Outcomes:
    """A pytest plugin that stores which tests passed, with their seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)

    def passed(self) -> dict[str, float]:
        return {name: spent for name, spent in self.seconds.items() if name not in self.failed}


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which Python imports rlpost from a copy of the tree."""
    return {
        **os.environ, "PYTHONPATH": str(tree), "HYPOTHESIS_PROFILE": "mutation",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def run_covered(tree: Path, report: Path, arguments: list[str]) -> None:
    """Run the tests of a marked tree; store seconds of those that pass."""
    command = [sys.executable, "-m", "mutation.covered", str(report), *arguments]
    env = environment(tree) | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}"}
    subprocess.run(command, cwd=tree, env=env, check=False, stdin=subprocess.DEVNULL)


def read_hits(target: Path, report: Path, count: int) -> tuple[list[set[str]], dict[str, float]]:
    """Return the passing tests that ran each mutant's line, and the tests' seconds."""
    seconds = json.loads(report.read_text(encoding="utf-8"))
    tests: list[set[str]] = [set() for _ in range(count)]
    for line in target.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        number, _, name = line.partition(" ")
        if name in seconds:
            tests[int(number)].add(name)
    return tests, seconds
