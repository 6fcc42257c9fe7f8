"""What `rlpost export` writes: one module per target, registered here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.errors import UsageError, no_such
from rlpost.formats.targets import jsonl, prime_rl, slime, verl

if TYPE_CHECKING:
    from rlpost.formats.targets.base import ExportTarget

TARGETS: dict[str, ExportTarget] = {
    target.name: target
    for target in (
        jsonl.TARGET,
        slime.TARGET,
        verl.TARGET,
        prime_rl.TARGET,
    )
}
"""Every target by its name."""


def target_named(name: str) -> ExportTarget:
    """Return the target of that name; raise UsageError with the closest names if unknown."""
    if name not in TARGETS:
        every = f"the targets are {', '.join(TARGETS)}"
        raise UsageError(no_such(f"--to {name}: no such target", name, TARGETS, every))
    return TARGETS[name]
