"""Programs in processes of their own."""

import subprocess
import sys

from runs import Ran


def python(code, *arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=120,
    )


def finished(process):
    out, err = process.communicate(timeout=60)
    return Ran(process.returncode, out, err)
