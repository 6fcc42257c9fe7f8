"""How output is captured: as that of a pipe, whose lines are not wrapped."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def unwrapped_lines(monkeypatch):
    """Unset the width that workers of pytest-xdist inherit."""
    monkeypatch.delenv("COLUMNS", raising=False)
