"""How the package is built: which room may import which, and what is documented."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import rlpost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE = Path(rlpost.__file__).parent

# The rooms, from the top floor down. A room imports from the rooms below its own, and within its
# own. A part is a file or a folder at the top of the package.
ROOMS = (
    "__init__",  # the public names, imported when they are used
    "__main__",  # python -m rlpost
    "cli",  # the program: commands, options, completion, what is printed
    "interface",  # the commands as Python functions of paths and tables
    "analysis",  # looks at rollouts: inspect, compare, loss, report, browse, verify, doctor
    "ray",  # the public name of distributed.ray
    "api",  # files to files, tables to tables
    "render",  # results of runs, for terminals, pipes and notebooks
    "training",  # enriched files as batches for a training loop
    "distributed",  # the same run in tasks, on Ray
    "pipeline",  # passes over the input, stages, totals, summary, output, update
    "functional",  # the formulas as public functions of tensors
    "formats",  # other tools' dumps
    "estimators",
    "losses",
    "kernels",  # arithmetic on arrays
    "recipe",  # options, presets, roles
    "manual",  # the pages of `rlpost help`
    "io",  # files, Parquet, locks, signals, threads
    "display",  # consoles, tables, charts
    "cleanups",  # what is undone if the process ends early
    "optional",  # extras that may not be installed
    "errors",
    "findings",  # how a check is declared, and what it found
    "redaction",  # URLs without their secrets
    "_version",
)

# Who alone may import a library; a name covers the modules below it.
HOMES = {
    "rich": ("cli", "display", "analysis", "render"),
    "fsspec": ("io",),
    "obstore": ("io",),
    "botocore": ("io",),
    "ray": ("distributed.ray", "ray"),
    "msgspec": ("formats",),
    "textual": ("analysis.browse",),
    "typer": ("cli",),
    "pyarrow": (
        "io",
        "formats",
        "api",
        "interface",
        "pipeline",
        "distributed",
        "analysis",
        "ray",
        "training",
    ),
    "polars": (
        "analysis.inspect",
        "analysis.responses",
        "analysis.compare",
        "analysis.browse",
        "formats.conditions",  # of SQL, and what reads rows under them
        "formats.where",
        "formats.selected",
    ),
    "pydantic": ("recipe", "cli"),
    "pydantic_core": ("recipe",),
    "torch": (
        "formats.pickles",
        "formats.targets.verl",
        "kernels.arrays.torch_arrays",
        "estimators.calls",
        "losses.own",
        "pipeline.torch_device",
        "analysis.doctor",
        "training",
    ),
}
# All that these rooms may import beside the standard library: libraries, and other rooms.
TENSORS = {"torch", "numpy"}
ALLOWED = {
    "kernels": TENSORS,
    "estimators": {*TENSORS, "kernels", "errors", "recipe"},
    "losses": {*TENSORS, "kernels", "errors", "recipe"},
    "recipe": {"pydantic", "pydantic_core", "errors"},
    "display": {"rich", "cleanups"},
    "cleanups": set(),
    "errors": {"redaction"},
    "redaction": set(),
    "optional": {"errors"},
    "_version": set(),
}
# What must start fast: completion and `--help` answer without these libraries.
SLOW = ("torch", "pyarrow", "polars")
LIGHT = (
    "cli.app",
    "cli.arguments",
    "cli.commands.about",
    "cli.completion",
    "cli.environment",
    "cli.help_screen",
    "cli.main",
    "cli.options",
    "cli.shells",
    "display.controls",
    "errors",
    "io.parquet.column_names",
    "io.shutdown",
    "manual",
    "pipeline.options",
    "recipe.loss",
    "recipe.numerics",
    "recipe.presets",
    "recipe.recipe",
    "recipe.roles",
)


def room_of(module: str) -> str:
    return module.split(".", maxsplit=1)[0] or "__init__"


class Import(NamedTuple):
    module: str
    name: str | None
    typing: bool
    """Only for annotations."""


class Module(NamedTuple):
    name: str
    tree: ast.Module
    imports: list[Import]

    @property
    def part(self) -> str:
        return room_of(self.name)

    @property
    def own_imports(self) -> list[Import]:
        """Of this package, by names below it."""
        found = []
        for module, name, typing in self.imports:
            if module == "rlpost" and name in parts():
                found.append(Import(str(name), None, typing))
            elif module.startswith("rlpost."):
                found.append(Import(module.removeprefix("rlpost."), name, typing))
        return found


def imports_of(node: ast.AST, *, typing: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, None, typing) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from (Import(node.module or "", alias.name, typing) for alias in node.names)
    elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        for child in node.body:
            yield from imports_of(child, typing=True)
    else:
        for child in ast.iter_child_nodes(node):
            yield from imports_of(child, typing=typing)


def read(path: Path) -> Module:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    return Module(name, tree, [*imports_of(tree, typing=False)])


@cache
def modules() -> list[Module]:
    """Read only by the workers that run these tests, not where they are collected."""
    return [read(path) for path in sorted(PACKAGE.rglob("*.py"))]


@cache
def parts() -> set[str]:
    return {module.part for module in modules()} - {"__init__"}


def inside(module: str, places: Iterable[str]) -> bool:
    """Whether a module is one of these, or below one."""
    return any(module == place or module.startswith(f"{place}.") for place in places)


def test_every_module_has_a_room():
    assert parts() | {"__init__"} == {*ROOMS}, "put new rooms on the list above"


def test_the_top_level_has_only_the_project():
    top, git = PACKAGE.parent, shutil.which("git")
    if git is None or not (top / ".git").exists():
        pytest.skip("not a git repository, or no git")
    found = subprocess.run(
        [git, "-c", "safe.directory=*", "ls-files"],
        cwd=top,
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.partition("/")[0] for line in found.stdout.splitlines()}
    files = {"LICENSE", "README.md", "pyproject.toml", "requirements.lock"}
    folders = {"rlpost", "sample_data", "tests"}
    assert {name for name in names if not name.startswith(".")} == files | folders


def test_imports_point_down():
    floor = {room: place for place, room in enumerate(ROOMS)}
    wrong = [
        f"{module.name} imports {other}"
        for module in modules()
        for other, _, _ in module.own_imports
        if floor[room_of(other)] < floor[module.part]
    ]
    assert wrong == []


def test_no_files_import_each_other_in_a_circle():
    names = {module.name for module in modules()}
    below = {
        module.name: {
            full if (full := f"{other}.{name}") in names else other
            for other, name, _ in module.own_imports
        }
        for module in modules()
    }
    while leaves := [name for name, others in below.items() if not others & {*below}]:
        for name in leaves:
            del below[name]
    assert sorted(below) == []  # these are in circles, or above one


@pytest.mark.parametrize("library", HOMES)
def test_a_library_is_imported_only_where_it_belongs(library):
    wrong = {
        module.name
        for module in modules()
        for name, _, typing in module.imports
        if name.split(".")[0] == library and not typing and not inside(module.name, HOMES[library])
    }
    assert wrong == set()


def test_the_types_of_what_is_imported_are_checked():
    """mypy skips modules that libraries import; one that rlpost imports would have no types."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    skipped = [
        name.removesuffix(".*")
        for one in project["tool"]["mypy"]["overrides"]
        for name in one["module"]
        if one.get("follow_imports") == "skip" and not one.get("ignore_missing_imports")
    ]
    assert "torch.nn" in skipped
    imported = {
        full
        for module in modules()
        for name, part, _ in module.imports
        for full in (name, f"{name}.{part}")
    }
    assert [name for name in sorted(imported) if inside(name, skipped)] == []


PRIVATE = re.compile(r"(typer|click)\.(.*\.)?_(?!_)|_(TYPER|CLICK)_")


def private_names(tree: ast.Module) -> set[str]:
    """Private names of typer and click: imported, attributes, and environment variables.

    Ruff (SLF001) rejects private attributes of objects.
    """
    full, found = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = {alias.asname or alias.name: module + alias.name for alias in node.names}
            full |= names
            found |= {*names.values()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            found.add(f"{full.get(first, first)}.{rest}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return {name for name in found if PRIVATE.match(name)}


def test_no_private_name_of_typer_or_click_is_used():
    private = {module.name: names for module in modules() if (names := private_names(module.tree))}
    assert private == {}


@pytest.mark.parametrize(
    "planted",
    [
        "import typer._click",
        "from typer._click.shell_completion import add_completion_class",
        "from typer.core import _main as main",
        "import typer\ntyper.main._click.echo('')",
        "from typer import core\ncore._main(None)",
        "import os\nos.environ['_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION'] = '1'",
    ],
)
def test_a_planted_private_name_is_found(planted):
    assert private_names(ast.parse(planted))
    assert not private_names(ast.parse("import typer\ntyper.main.get_command(typer.Typer())"))


@pytest.mark.parametrize("room", ALLOWED)
def test_the_lowest_rooms_import_little(room):
    wrong = {
        f"{module.name} imports {name}"
        for module in modules()
        if module.part == room
        for name in (
            *(name.split(".")[0] for name, _, typing in module.imports if not typing),
            *(room_of(other) for other, _, _ in module.own_imports),
        )
        if name not in {room, "rlpost", *ALLOWED[room]} | sys.stdlib_module_names
    }
    assert wrong == set()


def test_what_must_start_fast_imports_no_slow_library():
    imports = "".join(f"import rlpost.{name}\n" for name in LIGHT)
    code = f"import sys\n{imports}print(*{{name.split('.')[0] for name in sys.modules}})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*ran.stdout.split()} & {*SLOW}


def test_the_python_interface_imports_torch_only_when_it_computes():
    """Until then, the kept columns are copied and the first columns are read."""
    code = "import sys, rlpost.api; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_importing_the_package_imports_nothing_else():
    code = "import sys, rlpost; print(*{name.split('.')[0] for name in sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert "rlpost" in loaded
    assert not loaded & {"torch", "pyarrow", "polars", "numpy", "pydantic", "rich", "typer"}


def test_the_public_names_are_there():
    for name in rlpost.__all__:
        assert getattr(rlpost, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'advantage'"):
        _ = rlpost.advantage


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(node: ast.AST) -> Iterator[Definition]:
    """Public functions, classes and methods of a module; what is inside functions is not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition) and not child.name.startswith("_"):
            if "overload" in map(ast.unparse, child.decorator_list):
                continue  # the one that is run is documented
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public(child)


def test_everything_public_is_documented():
    missing = [
        f"{module.name}.{node.name}"
        for module in modules()
        for node in public(module.tree)
        if not ast.get_docstring(node)
    ]
    assert missing == []
    assert [module.name for module in modules() if not ast.get_docstring(module.tree)] == []


def test_a_class_name_is_used_once():
    """So that a search finds one thing."""
    modules_of: dict[str, list[str]] = {}
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                modules_of.setdefault(node.name.lstrip("_"), []).append(module.name)
    assert {name: own for name, own in modules_of.items() if len(own) > 1} == {}
