"""What people see: the summary, the plan and tables, readable at 80 columns and in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rlpost.display.console import console
from rlpost.display.tables import metric_table
from rlpost.io.text import printable_line

if TYPE_CHECKING:
    from rlpost.pipeline.plan import Plan


def show_plan(job: Plan) -> None:
    """The passes over the input, on stdout."""
    out = console(sys.stdout)
    table = metric_table("pass", "reads", "columns")
    table.columns[2].justify = "left"
    table.columns[2].overflow = "fold"
    for place, step in enumerate(job.passes(), 1):
        size = job.source.bytes_of(step.columns) / 1e6
        columns = printable_line(", ".join(step.columns))
        table.add_row(f"{place} {step.purpose}", f"{size:,.2f} MB", columns)
    out.print(f"{printable_line(job.source.name)}: {job.source.rows:,} responses")
    out.print(table)
    out.print(f"Stages: {', '.join(stage.name for stage in job.stages)}")
    why = f"all together: {job.together}" if job.together else "step by step"
    out.print(f"On Ray and for shards, responses settle {why}")
