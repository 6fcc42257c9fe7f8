"""What a page of `rlpost report` holds, and a text that must not become HTML."""

from __future__ import annotations

import json
import re

HOSTILE = (
    "</script><img src=x onerror=window.hit=1><b>&amp;\x00\x1b[3m\x85\u202e\u2066\u2028\ufffe'\""
)


def data_in(path):
    text = path.read_text(encoding="utf-8")
    (found,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
    )
    return json.loads(found)
