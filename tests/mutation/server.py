"""pytest in forks of one process that has imported the libraries: a line of stdin is a run.

A line is JSON: `report` (the file of the output), `arguments` and `seconds`. The answer is the exit
code, or -1 of a run that did not end within `seconds`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

PRELOADED = (
    "duckdb", "numpy", "polars", "pyarrow.compute", "pyarrow.dataset",
    "pyarrow.parquet", "pydantic", "pytest", "rich.console", "rich.table", "torch", "typer",
    "typer.testing",
)  # fmt: skip


def run(report: str, arguments: list[str]) -> None:
    """Become a run of pytest."""
    file = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.setsid()
    import pytest

    code = pytest.main(arguments)
    sys.stdout.flush()
    os._exit(code)


def wait(pid: int, seconds: float) -> int:
    """Return the exit code of a run, -1 if it was stopped, with all that it had started."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1


def main() -> None:
    """Serve until stdin ends."""
    from importlib import import_module

    for name in PRELOADED:
        import_module(name)
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            run(job["report"], job["arguments"])
        print(wait(pid, job["seconds"]), flush=True)


if __name__ == "__main__":
    main()
