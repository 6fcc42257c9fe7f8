"""Findings of a replay: what recorded numbers that differ look like, and what reproduces them.

Each check is one function with the decorator `check`: its docstring has what the finding is, why it
matters and what to do, from which the manual's table is made. A new check is one function in the
fitting module: `relations` and `orders` of numbers, `sets` of responses, `scans` of tokens, other
`inputs`, or `recorded` numbers.
"""

from __future__ import annotations

# Importing a module adds its checks to FINDINGS.
from rlpost.analysis.replay.findings import inputs, orders, recorded, relations, scans, sets  # noqa: F401
from rlpost.analysis.replay.findings.base import FINDINGS
from rlpost.analysis.replay.findings.findings import findings

__all__ = ["FINDINGS", "findings"]
