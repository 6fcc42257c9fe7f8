"""Run the CUDA tests of files: `python -m tests.device.on_card DEVICE FILE ...`.

Without a card pytest skips them and succeeds. This fails then, unless the device is `cpu`.
"""

from __future__ import annotations

import sys

import pytest


class Ran:
    """Counts the tests that ran."""

    number = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.number += report.when == "call" and not report.skipped


def main(device: str, *files: str) -> int | str:
    """Run the tests; return the exit code, or the error if not one ran."""
    ran = Ran()
    words = ["-m", "cuda", "-q", "--durations=5", "-W", "default", *files]
    code = pytest.main(words, plugins=[ran])
    if code == 0 and device != "torch:cpu" and not ran.number:
        return f"{device}: not one CUDA test ran; a card that torch finds is needed"
    return int(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
