"""How the package is built: who may import whom, and how long things are."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import rlpost

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(rlpost.__file__).parent
LINES_TO_LOOK_AT = 600
MOST_BODY_LINES = 40

# From the top down. A module imports from layers below its own, and within its own.
LAYERS = [
    ("start",),
    ("cli", "commands", "completion"),
    (
        "render",
        "render_correction",
        "render_lists",
        "render_pipe",
        "render_inspect",
        "render_inspect_charts",
        "render_inspect_sections",
        "render_inspect_storage",
        "render_loss",
        "render_loss_words",
        "render_strip",
        "render_views",
        "render_compare",
        "render_config",
        "render_convert",
        "render_verify",
        "compare",
        "inspect",
        "browse",
        "report_html",
    ),
    ("api", "convert", "loss_api", "verify", "streams"),
    ("ray", "shards"),
    ("tasks",),
    ("run",),
    (
        "columns",
        "loss_plan",
        "loss_resolved",
        "loss_report",
        "loss_warnings",
        "engine",
        "plan",
        "report",
        "row_facts",
        "ledger",
        "output",
        "decode",
        "table",
        "state",
        "device",
        "targets",
        "resume",
        "checks",
        "differences",
        "provenance",
        "claims",
    ),
    (
        "stages",
        "shape",
        "reward_stages",
        "response_stages",
        "token_stages",
        "position_stages",
        "correction_stages",
        "correction_summary",
        "loss_oddities",
        "loss_stages",
        "loss_summary",
        "loss_tally",
        "summary",
        "tally",
        "groups",
        "batch",
    ),
    ("functional",),  # the public functions of tensors
    ("estimators", "losses"),
    ("kernels",),
    ("formats",),  # reads other tools' dumps; knows nothing of what is computed
]
# These stand apart: anyone may import them, and they import only each other.
OPTIONS = (
    "option_model",
    "recipe",
    "numerics",
    "estimator_options",
    "reward_options",
    "correction_options",
    "loss_options",
    "loss_catalogue",
    "presets",
)
APART = (
    *OPTIONS,
    "leftovers",
    "manual",
    "signals",
    "schema",
    "errors",
    "_version",
    "controls",
    "extras",
    "progress",
    "parallel",
    "run_options",
)
# Reads and writes files; knows nothing of what is computed.
FILES = "parquet"

# Who alone may import a library; a prefix covers the modules below it.
HOMES = {
    "rich": (
        "cli",
        "commands",
        "render",
        "render_correction",
        "render_lists",
        "render_pipe",
        "render_inspect",
        "render_loss",
        "render_strip",
        "render_views",
        "render_compare",
        "render_config",
        "render_convert",
        "render_verify",
        "browse",
    ),
    "fsspec": ("parquet",),
    "ray": ("ray",),
    "orjson": ("formats",),
    "textual": ("browse",),
    "typer": ("cli", "commands", "completion"),
    "pyarrow": (
        "parquet",
        "formats",
        "api",
        "run",
        "streams",
        "decode",
        "output",
        "table",
        "tasks",
        "ray",
        "checks",
        "differences",
        "verify",
        "inspect",
        "compare",
        "browse",
    ),
    "polars": ("inspect",),
    "altair": ("report_html",),
    "vl_convert": ("report_html",),
    "pydantic": (*OPTIONS, "commands"),
}
TENSORS_ONLY = ("kernels", "estimators", "losses")
LIBRARIES = {
    "kernels": {"torch", "numpy"},
    "estimators": {"torch"},
    "losses": {"torch"},
    **{options: {"pydantic"} for options in OPTIONS},
}
ALLOWED = {
    "kernels": {"kernels"},
    "estimators": {"estimators", "kernels", "errors", "schema"},
    "losses": {"losses", "loss_options", "kernels", "errors", "schema"},
}


class Import(NamedTuple):
    module: str
    name: str | None
    typing: bool
    """Only for annotations."""


class Module(NamedTuple):
    name: str
    tree: ast.Module
    lines: int

    @property
    def part(self) -> str:
        return self.name.split(".")[0]

    @property
    def imports(self) -> list[Import]:
        return list(imports_of(self.tree, typing=False))

    @property
    def own_imports(self) -> list[Import]:
        """Of this package, by names below it."""
        found = []
        for module, name, typing in self.imports:
            if module == "rlpost" and name in PARTS:
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
    return Module(name, ast.parse(text), len(text.splitlines()))


MODULES = [read(path) for path in sorted(PACKAGE.rglob("*.py"))]
PARTS = {module.part for module in MODULES} - {"__init__"}


def layer_of(part: str) -> int:
    (found,) = [place for place, parts in enumerate(LAYERS) if part in parts]
    return found


def test_every_module_has_a_place_on_the_map():
    places = [*(part for parts in LAYERS for part in parts), *APART, FILES]
    assert len(places) == len(set(places))
    assert sorted(PARTS - set(places)) == [], "put new modules on the map above"


def test_imports_point_down():
    wrong = [
        f"{module.name} imports {other}"
        for module in MODULES
        if module.part not in {"__init__", *APART, FILES}
        for other, _, _ in module.own_imports
        if other.split(".")[0] not in {*APART, FILES}
        and layer_of(other.split(".")[0]) < layer_of(module.part)
    ]
    assert wrong == []


def test_what_stands_apart_imports_only_its_like():
    wrong = [
        f"{module.name} imports {other}"
        for module in MODULES
        if module.part in {*APART, FILES}
        for other, _, _ in module.own_imports
        if other.split(".")[0] not in {*APART, module.part}
    ]
    assert wrong == []


@pytest.mark.parametrize("library", HOMES)
def test_a_library_is_imported_only_where_it_belongs(library):
    wrong = {
        module.name
        for module in MODULES
        for name, _, typing in module.imports
        if name.split(".")[0] == library and not typing and module.part not in HOMES[library]
    }
    assert wrong == set()


def test_kernels_estimators_and_losses_see_tensors_and_plain_numbers():
    wrong = [
        f"{module.name} imports {name} of {other}"
        for module in MODULES
        if module.part in TENSORS_ONLY
        for other, name, _ in module.own_imports
        if other.split(".")[0] not in ALLOWED[module.part]
        and (other, name) != ("reward_options", "Scope")
    ]
    assert wrong == []


@pytest.mark.parametrize("part", [*TENSORS_ONLY, *APART])
def test_the_lowest_layers_import_few_libraries(part):
    libraries = {
        name.split(".")[0]
        for module in MODULES
        if module.part == part
        for name, _, _ in module.imports
    }
    assert libraries - {"rlpost"} - sys.stdlib_module_names <= LIBRARIES.get(part, set())


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
        for module in MODULES
        for node in public(module.tree)
        if not ast.get_docstring(node)
    ]
    assert missing == []
    assert [module.name for module in MODULES if not ast.get_docstring(module.tree)] == []


def test_a_file_holds_one_idea():
    """No cap: a warning, since a file of more than this many lines often holds two ideas."""
    long = {m.name: m.lines for m in MODULES if m.lines > LINES_TO_LOOK_AT}
    if long:
        print(f"more than {LINES_TO_LOOK_AT} lines: {long}")  # noqa: T201 - shown with -rP


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from behind its docstring to its end."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return int(node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_are_short():
    long = {
        f"{module.name}.{node.name}": body_lines(node)
        for module in MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and body_lines(node) > MOST_BODY_LINES
    }
    assert long == {}
