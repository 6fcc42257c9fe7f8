"""The history of the benchmarks: a line of JSON for each recorded run, and its chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlpost.display.charts import bar

HISTORY = Path(__file__).with_name("history.jsonl")
WIDTH = 24
Json = dict[str, Any]


def record(results: Json) -> None:
    """Append the results of a run."""
    with HISTORY.open("a", encoding="utf-8") as file:
        file.write(json.dumps(results) + "\n")


def chart() -> str:
    """Return the ratios of each machine's newest run as Markdown, with bars.

    A bar of full width is the time of the case that the ratio divides by.
    """
    runs: dict[tuple[str, int], Json] = {}
    for line in HISTORY.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        runs[run["machine"]["cpu"], run["machine"]["cores"]] = run
    return "\n\n".join(_machine(*key, run) for key, run in runs.items())


def _machine(cpu: str, cores: int, run: Json) -> str:
    headings = ["command", "time / copy", "target", ""]
    lines = [f"{cpu}, {cores} cores, commit {run['commit']}:", "", *_row(headings)]
    lines += _row(["---"] * len(headings))
    for name, case in run["cases"].items():
        if case.get("of") == "copy" and "target" in case:
            ratios = (f"{case[key]:.2f}" for key in ("ratio", "target"))
            lines += _row([name, *ratios, bar(case["ratio"], 1.0, WIDTH)])
    return "\n".join(lines)


def _row(cells: list[str]) -> list[str]:
    return ["| " + " | ".join(cells) + " |"]
