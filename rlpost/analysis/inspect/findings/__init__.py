"""Findings: problems that affect training. Each check is one function with the decorator `check`.

A check returns a `Problem`, None if there is none, or `NotRun` if the input has too little for it.
Its docstring is its description in `rlpost inspect --about CHECK` and in the manual. A new check is
one function in `columns`, `groups`, `lists` or `responses`.
"""

from __future__ import annotations

# Importing a module adds its checks to FINDINGS.
from rlpost.analysis.inspect.findings import (  # noqa: F401
    columns,
    groups,
    lists,
    responses,
)
from rlpost.analysis.inspect.findings.base import FINDINGS, run_checks

__all__ = ["FINDINGS", "run_checks"]
