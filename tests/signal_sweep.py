"""Signals at moments of every command that writes: `python -m tests.signal_sweep`.

Each run gets one signal. Right before it is sent, /proc says whether the process catches SIGTERM:
not yet (Python starts), now, or no longer (Python ends). An output has to be complete or absent
then, and the inputs have to be as they were. What a killed run left has to go with the next one.
Prints the exit codes by command, signal and state, and exits with 1 if a run ended otherwise.
"""

from __future__ import annotations

import argparse
import json
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

import numpy as np
import polars as pl

from rlpost.io.shutdown import EXIT_CODES
from tests.s3_server import Server

PROGRAM = Path(sys.executable).with_name("rlpost")
SAMPLE = Path(__file__).parents[1] / "sample_data" / "arithmetic.parquet"
MARK = "RLPOST_SWEEP"
NOT_YET, CAUGHT, NO_LONGER = "not yet caught", "caught", "no longer caught"
POLL = 0.002
LATE = 0.3
"""Exponent that moves moments to the end, since most of a small run is its start."""
PROCESSES_END = 10.0
"""Seconds that the processes of a Ray cluster may outlive their driver."""
COMMANDS = {
    "advantages": "advantages IN/in.parquet OUT/o.parquet --summary-json OUT/s.json --quiet",
    "folder": "advantages IN/steps OUT/new --quiet",
    "loss": "loss IN/in.parquet OUT/o.parquet --map log_probs=ref_log_probs --quiet",
    "convert": "convert IN/d.jsonl OUT/o.parquet --from jsonl --quiet",
    "export": "export IN/0.parquet OUT/o.jsonl --to jsonl --quiet",
    "report": "report IN/0.parquet OUT/o.html --quiet",
    "upload": "advantages IN/large.parquet s3://lab/o.parquet --quiet",
    "ray": "advantages IN/steps OUT/new --engine ray --quiet",
}


class Sent(NamedTuple):
    """One signal, and what became of the run."""

    state: str
    code: int
    result: str
    """Which outputs there are."""
    left: bool
    """Whether it left other files."""
    seconds: float
    """From the signal to the end."""
    wrong: list[str]
    """What no run may do."""


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


def make_inputs(top: Path) -> None:
    """Write the inputs of all commands."""
    rows = pl.read_parquet(SAMPLE)
    (top / "steps").mkdir(parents=True)
    rows.write_parquet(top / "in.parquet")
    subprocess.run([PROGRAM, "advantages", SAMPLE, top / "0.parquet", "--quiet"], check=True)
    for number, part in enumerate(rows.partition_by("step")):
        part.write_parquet(top / "steps" / f"{number}.parquet")
    noise = np.random.default_rng(0).bytes(20_000 * len(rows)).hex()
    texts = [noise[40_000 * row : 40_000 * (row + 1)] for row in range(len(rows))]
    rows.with_columns(pl.Series("noise", texts)).write_parquet(top / "large.parquet")
    words = ["export", top / "0.parquet", top / "d.jsonl", "--to", "jsonl", "--quiet"]
    subprocess.run([PROGRAM, *words], check=True)


def contents(top: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a folder; of a summary, which has times, its keys."""
    files = {str(path.relative_to(top)): path for path in top.rglob("*") if path.is_file()}
    return {
        name: " ".join(json.loads(path.read_bytes())).encode()
        if path.suffix == ".json"
        else path.read_bytes()
        for name, path in files.items()
    }


class Sweep:
    """Runs of one command, each with its outputs and temporary files in a new folder."""

    def __init__(self, name: str, top: Path, server: Server) -> None:
        self._words, self._top, self._server = COMMANDS[name].split(), top, server
        self._inputs = contents(top / "in")
        seconds = []
        for _ in range(3):
            self._folder = Path(tempfile.mkdtemp(dir=top))
            begun = time.monotonic()
            self._run()
            seconds.append(time.monotonic() - begun)
        self.seconds = sorted(seconds)[1]
        self._complete = self._files()

    def _start(self, mark: str = "") -> subprocess.Popen[bytes]:
        for name in ("out", "tmp"):
            (self._folder / name).mkdir(exist_ok=True)
        places = {"IN/": f"{self._top}/in/", "OUT/": f"{self._folder}/out/"}
        places["lab/"] = f"lab/{self._folder.name}/"
        words = [*self._words]
        for short, place in places.items():
            words = [word.replace(short, place) for word in words]
        variables = {
            MARK: mark,
            "TMPDIR": str(self._folder / "tmp"),
            "AWS_ENDPOINT_URL": self._server.url,
        }
        variables |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        return subprocess.Popen(
            [PROGRAM, *words, "--overwrite"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "AWS_DEFAULT_REGION": "us-east-1", **variables},
        )

    def _run(self) -> None:
        """Run the command to its end."""
        with self._start() as process:
            err = process.communicate()[1].decode()
        assert process.returncode == 0, err

    def _files(self) -> dict[str, bytes]:
        """Return all files of the runs in the folder, those of the store and its uploads, too."""
        own = f"{self._folder.name}/"
        keys = [key for key in self._server.keys() if key.startswith(own)]  # noqa: SIM118
        uploads = [upload["Key"] for upload in self._server.uploads()]
        return {
            **contents(self._folder),
            **{key.removeprefix(own): self._server.get(key) for key in keys},
            **{f"upload of {key}": b"" for key in uploads if key.startswith(own)},
        }

    def signalled(self, moment: float, number: int) -> Sent:
        """Start a run, send it the signal at a moment, and wait until it ends."""
        self._folder, mark = Path(tempfile.mkdtemp(dir=self._top)), secrets.token_hex(8)
        begun, state = time.monotonic(), NOT_YET
        with self._start(mark) as process:
            while True:
                now = catches(process.pid, signal.SIGTERM)
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
        files, wrong = self._files(), [*running]
        outputs = files.keys() & self._complete.keys()
        wrong += [f"{name} is torn" for name in outputs if files[name] != self._complete[name]]
        left = sorted(files.keys() - self._complete.keys())
        if left and number == signal.SIGKILL:
            self._run()
            wrong += sorted(self._files().keys() - self._complete.keys())
        elif left or (process.returncode == 0 and len(outputs) < len(self._complete)):
            wrong += left or ["outputs are missing"]
        if contents(self._top / "in") != self._inputs:
            wrong.append("the inputs are changed")
        codes = (0, -number) if number == signal.SIGKILL else (0, EXIT_CODES[number])
        if process.returncode not in codes and state != NOT_YET:
            wrong.append(f"exit code {process.returncode}: {err}")
        result = "complete" if len(outputs) == len(self._complete) else f"{len(outputs)} outputs"
        return Sent(state, process.returncode, result, bool(left), ended - sent, wrong)


def main() -> None:
    """Send the signals and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="of all commands together")
    parser.add_argument("--signals", default="TERM,KILL")
    parser.add_argument("--commands", default=",".join([*COMMANDS][:-1]))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    numbers = [signal.Signals[f"SIG{name}"] for name in options.signals.split(",")]
    names, failures = options.commands.split(","), 0
    server = Server()
    server.reset()
    with tempfile.TemporaryDirectory() as folder:
        make_inputs(Path(folder) / "in")
        for name in names:
            sweep, count = Sweep(name, Path(folder), server), options.runs // len(names)
            runs = [
                (sweep.seconds * ((n + 0.5) / count) ** LATE, numbers[n % len(numbers)])
                for n in range(count)
            ]
            Random(options.seed).shuffle(runs)  # noqa: S311 - no secret hangs on it
            table: Counter[tuple[str, ...]] = Counter()
            slowest = 0.0
            for moment, number in runs:
                sent = sweep.signalled(moment, number)
                cells = (number.name, sent.state, str(sent.code), sent.result)
                table[(*cells, "leftovers, gone with the next run" if sent.left else "")] += 1
                slowest = max(slowest, sent.seconds)
                if sent.wrong:
                    failures += 1
                    print(f"{name}, {number.name} at {moment:.3f} s: {sent}", flush=True)
            print(
                f"{name}: {count} signals until {sweep.seconds:.2f} s; slowest end {slowest:.2f} s"
            )
            for cells, times in sorted(table.items()):
                print(f"{times:6} {'  '.join(cells)}", flush=True)
    server.close()
    sys.exit(int(failures > 0))


if __name__ == "__main__":
    main()
