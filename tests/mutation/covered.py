"""pytest in a marked copy of the tree: `python -m mutation.covered REPORT ARGUMENT...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mutation.hits import Outcomes

if __name__ == "__main__":
    outcomes = Outcomes()
    options = ["-q", "-p", "no:cacheprovider", *sys.argv[2:]]
    pytest.main(options, plugins=[outcomes])
    Path(sys.argv[1]).write_text(json.dumps(outcomes.passed()), encoding="utf-8")
