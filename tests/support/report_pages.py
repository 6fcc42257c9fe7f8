"""What a page of `rlpost report` holds, and a text that must not become HTML."""

from __future__ import annotations

import json
import math
import re

import pyarrow as pa

HOSTILE = (
    "</script><img src=x onerror=window.hit=1><b>&amp;\x00\x1b[3m\x85\u202e\u2066\u2028\ufffe'\""
)


def data_in(path):
    text = path.read_text(encoding="utf-8")
    (found,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
    )
    return json.loads(found)


def hostile():
    """Hostile text wherever the data has text: cells, names of columns, metadata."""
    table = pa.table(
        {
            "prompt_id": [HOSTILE, HOSTILE, HOSTILE + "b", HOSTILE + "b"],
            "step": [HOSTILE, HOSTILE, "2", "2"],
            "domain": [HOSTILE, "x", "y", HOSTILE],
            "reward": [1.0, 0.0, 0.5, math.nan],
            "prompt": [HOSTILE] * 4,
            "response": [HOSTILE] * 4,
            "response_tokens": [[HOSTILE, "b"]] * 4,
            "response_mask": [[1, 1], [0, 1], [1, 0], [0, 0]],
            "old_log_probs": [[-1.0, -2.0]] * 4,
            "ref_log_probs": [[-1.5, -2.0]] * 4,
            "advantages": [[1.0, math.inf], [0.5, -1.0], [0.0, 0.0], [1.0, 2.0]],
            HOSTILE.replace("\x00", ""): [HOSTILE] * 4,
        }
    )
    steps = {"label": [HOSTILE, 1], "mean": [0.5, None], "count": [HOSTILE]}
    facts = {"advantage_clipped": {"of": HOSTILE, "all": {"mean": 0.5, "total": 1e300}}}
    facts |= {f"dropped:{HOSTILE}": {"all": {"total": 1}, "step": steps}, "kept": {"all": 3}}
    summary = {"facts": facts | {HOSTILE: HOSTILE}, "findings": [{"text": HOSTILE}, HOSTILE]}
    setting = {
        "options": {"loss": HOSTILE},
        "clip": {"any": {"fraction": 1}},
        "swept": {HOSTILE: 1},
    }
    loss = {"settings": [setting, None, 3, {"clip": HOSTILE}]}
    metadata = {"rlpost.summary": json.dumps(summary), "rlpost.loss_summary": json.dumps(loss)}
    return table.replace_schema_metadata(metadata)
