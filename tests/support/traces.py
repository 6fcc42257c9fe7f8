"""A trace of what a program imports: a package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_COMMANDS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from rlpost.cli.app import main

answers = []
for words in json.load(sys.stdin):
    sys.argv, code = ["rlpost", *words], 0
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""
_ESTIMATE = '''
def estimate(rewards, offsets):
    """r - mean"""
    return rewards - rewards.mean()
'''


class Package:
    """An installed package with an estimator, in a folder for PYTHONPATH; its import is recorded.

    Args:
        folder: gets a module and its dist-info.
        name: of the package, and of the estimator.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.trace = folder, folder / "imported"
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rlpost.estimators]\n{name} = {name}:estimate\n")
        (folder / f"{name}.py").write_text(
            f"open({str(self.trace)!r}, 'a').write('x')\n{_ESTIMATE}"
        )

    def imported(self) -> bool:
        """Return whether the package was imported since the last call."""
        found = self.trace.exists()
        self.trace.unlink(missing_ok=True)
        return found

    def run(self, *commands: tuple[object, ...], **environment: str) -> list[tuple[int, str, str]]:
        """Run commands in one new process; return the exit code and the texts of each."""
        paths = os.pathsep.join([str(self.folder), *sys.path])
        ran = subprocess.run(
            [sys.executable, "-c", _COMMANDS],
            input=json.dumps([[*map(str, words)] for words in commands]),
            capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": paths, **environment},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return [tuple(one) for one in json.loads(ran.stdout)]
