"""Modules of a framework without those around them, which need GPUs, servers or loggers."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection


class Package(ModuleType):
    """A package whose `__init__` does not run: its names are the modules in its folder.

    Other names, such as base classes of workers, are empty classes.
    """

    def __init__(self, name: str, folder: Path | None = None):
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__path__ = self.__spec__.submodule_search_locations
        self.__path__ += [str(folder)] if folder else []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        inside = f"{self.__name__}.{name}"
        found = self.__path__ and find_spec(inside)
        return import_module(inside) if found else type(name, (), {})


class Absent(MetaPathFinder, Loader):
    """Packages whose modules are empty."""

    def __init__(self, names: Collection[str]):
        self.names = names

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{one}.") for one in self.names):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> Package:
        return Package(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def part(name: str, *, bare: Collection[str], absent: Collection[str]) -> ModuleType:
    """Import a module of an installed framework, without the warnings of its import.

    Args:
        name: the module.
        bare: packages of the framework whose `__init__` does not run.
        absent: packages that are not imported, nor modules in them: names that other modules
            import from them are empty classes.
    """
    if name not in sys.modules:
        framework = find_spec(name.partition(".")[0])
        folder = Path(framework.submodule_search_locations[0]).parent
        bare = [one for one in bare if one not in sys.modules]
        sys.modules.update({one: Package(one, folder.joinpath(*one.split("."))) for one in bare})
        sys.meta_path.insert(0, Absent(absent))
    with warnings.catch_warnings(action="ignore"):
        return import_module(name)
