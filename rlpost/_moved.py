"""Import paths of rlpost 0.1.0 that the documentation named, kept for one release."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `rlpost` imports this before the program handles signals
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

MOVED = {
    "rlpost.presets": ("rlpost.recipe.presets", "rlpost.preset and rlpost.loss_preset"),
    "rlpost.report_html": ("rlpost.analysis.report", "rlpost.report"),
    "rlpost.report_html.run": ("rlpost.analysis.report.run", "rlpost.report"),
}


class MovedModules:
    """A finder and loader of modules that have another path now."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> ModuleSpec | None:
        """Return a spec for a module that moved, None for others."""
        if name not in MOVED:
            return None
        from importlib.machinery import ModuleSpec  # noqa: PLC0415

        loader: Any = MovedModules
        return ModuleSpec(name, loader, is_package=True)

    @staticmethod
    def create_module(_: ModuleSpec) -> None:
        """Let the import system make an empty module."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Look names up in the module at the present path."""
        import warnings  # noqa: PLC0415
        from functools import partial  # noqa: PLC0415
        from importlib import import_module  # noqa: PLC0415

        path, instead = MOVED[module.__name__]
        warnings.warn(
            f"{module.__name__} will be removed in the next release; use {instead}",
            FutureWarning,
            stacklevel=2,
        )
        module.__dict__["__getattr__"] = partial(getattr, import_module(path))


def install() -> None:
    """Let the old paths be imported."""
    if MovedModules not in sys.meta_path:
        sys.meta_path.append(MovedModules)
