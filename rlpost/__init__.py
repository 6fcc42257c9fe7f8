"""Post-process RL rollouts and estimate advantages: Parquet in, enriched Parquet out.

Layers, each importing only those to its right:
cli, commands, render -> api -> run -> engine, plan, report, output, decode, table -> stages ->
summary, groups, batch -> estimators -> kernels -> torch. pyarrow lives in rlpost.parquet and where
columns become tensors; recipe, schema and errors stand apart and import neither torch nor pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost._version import __version__

if TYPE_CHECKING:
    from rlpost import functional, ray
    from rlpost.api import Options, advantages, enrich
    from rlpost.inspect.facts import inspect as facts
    from rlpost.numerics import Numerics
    from rlpost.presets import preset
    from rlpost.recipe import Recipe

_HOMES = {
    "Options": "rlpost.api",
    "advantages": "rlpost.api",
    "enrich": "rlpost.api",
    "facts": "rlpost.inspect.facts",
    "Numerics": "rlpost.numerics",
    "Recipe": "rlpost.recipe",
    "preset": "rlpost.presets",
}
# `rlpost.inspect` is the package that `rlpost.facts` lives in; a function of the same name would be
# replaced by it as soon as anyone imports from there.
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
    "preset",
    "ray",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: torch takes a second to load."""
    if name not in {*_HOMES, *_MODULES}:
        raise AttributeError(f"module 'rlpost' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    if name in _MODULES:
        return import_module(f"rlpost.{name}")
    return getattr(import_module(_HOMES[name]), _NAMES.get(name, name))


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return __all__
