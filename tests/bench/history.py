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
    """Return the ratios of each machine's first and newest run as Markdown, with bars.

    A bar of full width is the time of the case that the ratio divides by.
    """
    runs: dict[tuple[str, int], list[Json]] = {}
    for line in HISTORY.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        runs.setdefault((run["machine"]["cpu"], run["machine"]["cores"]), []).append(run)
    return "\n\n".join(_machine(*key, all_runs) for key, all_runs in runs.items())


def _machine(cpu: str, cores: int, runs: list[Json]) -> str:
    first, last = runs[0], runs[-1]
    headings = ["command", "time / copy", f"at {first['commit']}", "target", ""]
    lines = [f"{cpu}, {cores} cores, commit {last['commit']}:", "", *_row(headings)]
    lines += _row(["---"] * len(headings))
    for name, case in last["cases"].items():
        if case.get("of") == "copy" and "asked" in case:
            before = first["cases"].get(name, {}).get("ratio")
            texts = (f"{value:.2f}" if value else "" for value in (before, case["asked"]))
            drawn = bar(case["ratio"], 1.0, WIDTH)
            lines += _row([name, f"{case['ratio']:.2f}", *texts, drawn])
    return "\n".join(lines)


def _row(cells: list[str]) -> list[str]:
    return ["| " + " | ".join(cells) + " |"]
