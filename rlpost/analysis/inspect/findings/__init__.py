"""Findings: problems that affect training. Each check is one function with the decorator `check`.

A check returns a `Finding`, or None if there is no problem. Its docstring is its description in
`rlpost inspect --checks` and in the manual. A new check is one function in `columns`, `responses`
or `tokens`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Importing a module adds its checks to FINDINGS.
from rlpost.analysis.inspect.findings import columns, responses, tokens  # noqa: F401
from rlpost.analysis.inspect.findings.base import FINDINGS, CheckInput

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Finding


__all__ = ["FINDINGS", "CheckInput", "run_checks"]


def run_checks(data: CheckInput) -> list[Finding]:
    """Run every check, and return the findings, the most harmful first."""
    results = [check.run(data) for check in FINDINGS.values()]
    return sorted((one for one in results if one is not None), key=lambda one: -one.harm)
