"""Post-process RL rollouts and estimate advantages: Parquet in, enriched Parquet out.

    summary = rlpost.advantages("in.parquet", "out.parquet", rlpost.Recipe(estimator="grpo"))
    frame, summary = rlpost.enrich(frame)  # polars, pandas, duckdb, Arrow, datasets

`inspect`, `loss`, `compare`, `replay`, `report`, `convert`, `export` and `verify`
are the other commands as functions; they read paths and tables. `functional` has the formulas as
functions of arrays, of numpy or torch.
`rlpost help python` prints the manual.
"""

from __future__ import annotations

from rlpost._version import __version__

TYPE_CHECKING = False  # `typing` takes 10 ms to import, before the program handles signals
if TYPE_CHECKING:
    from typing import Any

    from rlpost import functional, ray
    from rlpost.interface.functions import (
        advantages,
        compare,
        convert,
        enrich,
        export,
        inspect,
        loss,
        replay,
        report,
        verify,
    )
    from rlpost.pipeline.options import Options
    from rlpost.recipe.loss import LossOptions
    from rlpost.recipe.numerics import Numerics
    from rlpost.recipe.presets import loss_preset, preset
    from rlpost.recipe.recipe import Recipe
    from rlpost.training.loader import TrainingData, load


_FUNCTIONS = (
    *("advantages", "compare", "convert", "enrich", "export", "inspect", "loss"),
    *("replay", "report", "verify"),
)
_HOMES = {
    **dict.fromkeys(_FUNCTIONS, "rlpost.interface.functions"),
    "LossOptions": "rlpost.recipe.loss",
    "TrainingData": "rlpost.training.loader",
    "load": "rlpost.training.loader",
    "Numerics": "rlpost.recipe.numerics",
    "Options": "rlpost.pipeline.options",
    "Recipe": "rlpost.recipe.recipe",
    "loss_preset": "rlpost.recipe.presets",
    "preset": "rlpost.recipe.presets",
}
_MODULES = ("functional", "ray")
__all__ = [
    "LossOptions",
    "Numerics",
    "Options",
    "Recipe",
    "TrainingData",
    "__version__",
    "advantages",
    "compare",
    "convert",
    "enrich",
    "export",
    "functional",
    "inspect",
    "load",
    "loss",
    "loss_preset",
    "preset",
    "ray",
    "replay",
    "report",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, since computing needs pyarrow and numpy."""
    if name not in {*_HOMES, *_MODULES}:
        raise AttributeError(f"module 'rlpost' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    if name in _MODULES:
        return import_module(f"rlpost.{name}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return __all__
