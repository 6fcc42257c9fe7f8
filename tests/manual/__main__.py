"""Refresh generated parts of the manual and README, and stubs: `python -m tests.manual`.

Between `<!-- generated: NAME -->` and `<!-- end -->` stands a table of `tests/manual/tables.py`;
after `<!-- output: COMMAND -->` stands what the command prints.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from manual.pages import PAGES, ROOT, refreshed
from manual.stubs import stubs

for page in PAGES:
    text = page.read_text(encoding="utf-8")
    now = refreshed(text)
    if now != text:
        page.write_text(now, encoding="utf-8")
        sys.stdout.write(f"refreshed {page.relative_to(ROOT)}\n")

for path, text in stubs().items():
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"refreshed {path.relative_to(ROOT)}\n")
