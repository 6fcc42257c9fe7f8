"""Any JSON or Parquet: fields become roles by name, by alias or by `--map`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format
from rlpost.formats.containers import FOLDER, JSON, PARQUET, ZIP

if TYPE_CHECKING:
    from collections.abc import Mapping


_NO_FIELD = "no field has a known name for it; name one with --map {}=FIELD"
_LACKS = {
    "group": f"{_NO_FIELD.format('group')}, or set --group-size N for blocks of N records",
    **{role: _NO_FIELD.format(role) for role in ("reward", "log_probs", "old_log_probs")},
}
"""Role -> why a converted file lacks it, for the roles that other commands need."""
_NOTE = (
    "--map ROLE=FIELD sets the field of a role; a.b is field b inside a. A list is summed if the "
    "role is one number. Fields without a role are kept."
)
_SOURCE = "any writer; fields are found by role name, by alias or by --map"


def has_names(fields: Mapping[str, Any]) -> bool:
    """Return whether the first record has rlpost's own column names."""
    return fields.keys() >= {"prompt_id", "reward"} and (
        "response_mask" not in fields or has_mask(fields)
    )


def has_mask(fields: Mapping[str, Any]) -> bool:
    """Return whether the first record has a mask under rlpost's own name."""
    return isinstance(fields.get("response_mask"), list)


JSONL = Format(
    name="jsonl",
    title="any JSONL or JSON array with one object per response, with --map ROLE=FIELD",
    containers=(JSON, ZIP, FOLDER), lacks=_LACKS, sniff=has_names, source=_SOURCE, note=_NOTE,
)  # fmt: skip
PARQUET_ROWS = Format(
    name="parquet",
    title="any Parquet with one row per response, with --map ROLE=COLUMN",
    containers=(PARQUET,), lacks=_LACKS, source=_SOURCE, note=_NOTE,
    sniff=lambda _: False,  # a Parquet file that needs no conversion looks the same
)  # fmt: skip
