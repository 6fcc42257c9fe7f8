"""Files that are inspected, and plain computations of their statistics."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

SAMPLES = Path(__file__).parents[2] / "sample_data"
RUN = CliRunner()


def spread(facts, measure):
    numbers = facts.whole(measure)
    return {name: numbers[name] for name in ("mean", "std", "min", "max")}


def spreads(facts, key, measure):
    """The numbers of a measure of each step or domain."""
    names = ("mean", "std", "min", "max")
    columns = (facts.by(key, measure, name) for name in names)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def groups_of(facts, names):
    """What a summary has of prompt groups, by its names."""
    groups = {name: getattr(facts.prompt_groups, name, None) for name in names}
    return groups | (
        {"pass_rate": facts.whole("pass_rate")["mean"]} if "pass_rate" in names else {}
    )
