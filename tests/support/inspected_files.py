"""Files that are inspected, and plain computations of their statistics."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

SAMPLES = Path(__file__).parents[2] / "sample_data"
RUN = CliRunner()


def spread(facts, measure):
    numbers = facts.whole(measure)
    return {name: numbers[name] for name in ("mean", "std", "min", "max")}
