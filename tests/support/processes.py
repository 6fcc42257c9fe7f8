"""Programs in processes of their own."""

import subprocess
import sys


def python(code, *arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=120,
    )
