"""Signals at evenly spread moments of a run: `python -m tests.signal_sweep [--runs 300]`.

Each run of `rlpost advantages` on a small file gets one signal. Right before it is sent, /proc says
whether the process catches it: not yet (Python starts), now, or no longer (Python ends). Prints the
exit codes by that state, and what runs left behind. Exits with 1 if a process that caught the
signal ended with another code than 0 or the signal's, or left files or processes.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from rlpost.io.shutdown import EXIT_CODES

PROGRAM = Path(sys.executable).with_name("rlpost")
SAMPLE = Path(__file__).parents[1] / "sample_data" / "arithmetic.parquet"
MARK = "RLPOST_SWEEP"
NOT_YET, CAUGHT, NO_LONGER = "not yet caught", "caught", "no longer caught"
POLL = 0.002
PROCESSES_END = 10.0
"""Seconds that the processes of a Ray cluster may outlive their driver."""


class Sent(NamedTuple):
    """One signal, and what became of the run."""

    moment: float
    """Seconds after the start of the process."""
    state: str
    code: int
    seconds: float
    """From the signal to the end."""
    left: list[str]
    """Files and processes that the run left."""
    err: str


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of a signal now."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def marked(mark: str) -> list[str]:
    """Return the running processes that inherited the mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


def one(moment: float, number: int, top: Path, words: list[str]) -> Sent:
    """Start a run, send it the signal at a moment, and wait until it ends."""
    mark, out = secrets.token_hex(8), Path(tempfile.mkdtemp(dir=top))
    command = [PROGRAM, "advantages", SAMPLE, out / "out.parquet", "--quiet", *words]
    begun, state = time.monotonic(), NOT_YET
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, MARK: mark}
    ) as process:
        while True:
            now = catches(process.pid, number)
            state = CAUGHT if now else NOT_YET if state == NOT_YET else NO_LONGER
            if time.monotonic() - begun >= moment:
                break
            time.sleep(min(POLL, moment))
        sent = time.monotonic()
        process.send_signal(number)
        err = process.communicate()[1].decode(errors="replace")
        ended = time.monotonic()
    while (running := marked(mark)) and time.monotonic() - ended < PROCESSES_END:
        time.sleep(0.1)
    complete = {"out.parquet"} if process.returncode == 0 else set()
    left = [path.name for path in out.iterdir() if path.name not in complete]
    return Sent(moment, state, process.returncode, ended - sent, left + running, err)


def whole(top: Path, words: list[str]) -> float:
    """Return how long a run takes, the longest of three."""
    seconds = []
    for index in range(3):
        begun = time.monotonic()
        command = [PROGRAM, "advantages", SAMPLE, top / f"{index}.parquet", "--quiet", *words]
        subprocess.run(command, check=True)
        seconds.append(time.monotonic() - begun)
    return max(seconds)


def wrong(sent: Sent, number: int) -> bool:
    """Whether a run ended as no run may that had a handler when the signal came."""
    codes = (0, EXIT_CODES[signal.Signals(number)])
    return bool(sent.left) or (sent.state != NOT_YET and sent.code not in codes)


def main() -> None:
    """Send the signals and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--signal", default="TERM")
    parser.add_argument("--engine", default="local", choices=("local", "ray"))
    parser.add_argument("--until", type=float, help="seconds; by default as long as a run takes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    number = signal.Signals[f"SIG{options.signal}"]
    words = ["--engine", "ray"] if options.engine == "ray" else []
    counts: Counter[tuple[str, int]] = Counter()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        until = options.until or whole(top, words)
        moments = [until * (index + 0.5) / options.runs for index in range(options.runs)]
        Random(options.seed).shuffle(moments)  # noqa: S311 - no secret hangs on it
        slowest = 0.0
        for moment in moments:
            sent = one(moment, number, top, words)
            counts[sent.state, sent.code] += 1
            slowest = max(slowest, sent.seconds)
            if wrong(sent, number):
                failures += 1
                print(f"{moment:.3f} s: {sent}", flush=True)
            elif sent.state == NOT_YET:
                print(f"{moment:.3f} s: {sent.state}, exit code {sent.code}", flush=True)
    print(f"{options.runs} signals from 0 to {until:.2f} s; the slowest end took {slowest:.2f} s")
    for (state, code), count in sorted(counts.items()):
        print(f"{count:6} {state}, exit code {code}")
    sys.exit(int(failures > 0))


if __name__ == "__main__":
    main()
