"""Post-process RL rollouts and estimate advantages: Parquet in, enriched Parquet out."""

from __future__ import annotations

from rlpost import _moved
from rlpost._version import __version__

TYPE_CHECKING = False  # `typing` takes 10 ms to import, before the program handles signals
if TYPE_CHECKING:
    from typing import Any

    from rlpost import functional, ray
    from rlpost.analysis.inspect.facts import inspect as facts
    from rlpost.analysis.report.run import report
    from rlpost.api import Options, advantages, enrich
    from rlpost.recipe.numerics import Numerics
    from rlpost.recipe.presets import loss_preset, preset
    from rlpost.recipe.recipe import Recipe


_HOMES = {
    "Options": "rlpost.api",
    "advantages": "rlpost.api",
    "enrich": "rlpost.api",
    "facts": "rlpost.analysis.inspect.facts",
    "Numerics": "rlpost.recipe.numerics",
    "Recipe": "rlpost.recipe.recipe",
    "loss_preset": "rlpost.recipe.presets",
    "preset": "rlpost.recipe.presets",
    "report": "rlpost.analysis.report.run",
}
# `rlpost.inspect` would be both a function and a package, so the function is called `facts`.
_NAMES = {"facts": "inspect"}
_MODULES = ("functional", "ray")
__all__ = [
    "Numerics",
    "Options",
    "Recipe",
    "__version__",
    "advantages",
    "enrich",
    "facts",
    "functional",
    "loss_preset",
    "preset",
    "ray",
    "report",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, since torch takes a second to load."""
    if name not in {*_HOMES, *_MODULES}:
        raise AttributeError(f"module 'rlpost' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    if name in _MODULES:
        return import_module(f"rlpost.{name}")
    return getattr(import_module(_HOMES[name]), _NAMES.get(name, name))


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return __all__


_moved.install()
