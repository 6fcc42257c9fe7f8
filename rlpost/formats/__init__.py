"""The dump formats that rlpost reads: one module per framework, registered here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.errors import UsageError, no_such
from rlpost.formats import (
    generic,
    harbor,
    inspect_ai,
    ms_swift,
    nemo_gym,
    nemo_rl,
    open_instruct,
    prime_rl,
    roll,
    slime,
    tau2,
    terminal_bench,
    trl,
    verifiers,
    verl,
)
from rlpost.formats.base import Format
from rlpost.formats.containers import JSON

if TYPE_CHECKING:
    from pathlib import Path


_MODULES = (
    nemo_rl, slime, harbor, nemo_gym, prime_rl, open_instruct, roll, verifiers, inspect_ai, tau2,
    terminal_bench, verl, trl, ms_swift, generic,
)  # fmt: skip
FORMATS = {
    layout.name: layout
    for module in _MODULES
    for layout in vars(module).values()
    if isinstance(layout, Format)
}
"""Every format by its name: dumps with tokens, dumps of texts, then any JSONL and Parquet."""


def format_named(name: str) -> Format:
    """Return the format of that name; raise UsageError with the closest names if unknown."""
    if name not in FORMATS:
        named = [layout.name for layout in FORMATS.values() if name.lower() in layout.title.lower()]
        if named:  # verifiers, or ATIF
            raise UsageError(f"--from {name}: no such format", candidates=named)
        known = f"the formats are {', '.join(FORMATS)}"
        raise UsageError(no_such(f"--from {name}: no such format", name, FORMATS, known))
    return FORMATS[name]


def detect(path: Path) -> Format | None:
    """Return the format whose sniff accepts this file; None if none does.

    Raises:
        UsageError: several do; the error names them.
    """
    candidates = [candidate for candidate in FORMATS.values() if candidate.fits(path)]
    weak = len(candidates) > 1 and generic.JSONL in candidates
    if weak and not generic.has_mask(JSON.first(path)):
        candidates.remove(generic.JSONL)  # two names are no proof against a framework's own
    if len(candidates) > 1:
        names = " or ".join(candidate.name for candidate in candidates)
        raise UsageError(f"{path}: may be {names}; select one with --from NAME")
    return candidates[0] if candidates else None
