"""What `rlpost export` writes: one module per target, registered here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.errors import UsageError
from rlpost.formats.targets import jsonl, prime_rl, slime, tinker, verl
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from rlpost.formats.targets.base import ExportTarget

TARGETS: dict[str, ExportTarget] = {
    target.name: target
    for target in (
        jsonl.TARGET,
        tinker.TARGET,
        slime.TARGET,
        verl.TARGET,
        prime_rl.TARGET,
    )
}
"""Every target by its name."""


def target_named(name: str) -> ExportTarget:
    """Return the target of that name; raise UsageError with the closest names if unknown."""
    if name not in TARGETS:
        hint = closest(name, TARGETS)
        raise UsageError(f"--to {name}: no such target{hint} (targets: {', '.join(TARGETS)})")
    return TARGETS[name]
