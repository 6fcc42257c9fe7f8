"""Mutants: one small change of one line each, which a test should detect."""

from __future__ import annotations

import ast
import random
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("mutants.toml")
ROOMS = {
    "kernels": (40, ["kernels"]),
    "stages": (40, ["pipeline/stages"]),
    "pipeline": (20, ["pipeline", "recipe"]),
    "estimators": (30, ["estimators"]),
    "losses": (30, ["losses"]),
    "writer": (25, ["io", "io/parquet", "pipeline/output"]),
    "verdicts": (25, ["analysis/inspect/findings", "analysis/inspect"]),
}
"""A room of mutants: how many are drawn, and from which folders of rlpost/ (not below them)."""
THRESHOLDS = "analysis/inspect/findings"
"""All thresholds of findings are moved: constants of these modules."""

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Add,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_CALLS = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all",
    "all": "any", "sum": "mean", "mean": "sum", "exp": "expm1", "expm1": "exp",
    "ones_like": "zeros_like", "zeros_like": "ones_like", "amin": "amax", "amax": "amin",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of a part of one line of a function."""

    file: str
    """Path below rlpost/."""
    function: str
    """Qualified name; empty at module level."""
    line: str
    """The line, without its indentation: the mutant is gone if the function has no such line."""
    old: str
    new: str
    number: int = 0
    """Which occurrence of `old` in the line is replaced."""

    @property
    def key(self) -> str:
        """Name of the mutant, which lines that move do not change."""
        number = f" #{self.number}" if self.number else ""
        return f"{self.file} {self.function}: {self.line} | {self.old} -> {self.new}{number}"

    def find(self, root: Path = ROOT) -> int | None:
        """Return the line's number in the file, from 1; None if the function lacks it."""
        path = root / "rlpost" / self.file
        if not path.exists():
            return None
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node, name in functions(ast.parse(text)):
            if name == self.function:
                last = getattr(node, "end_lineno", len(lines))
                for line in range(getattr(node, "lineno", 1), last + 1):
                    if lines[line - 1].strip() == self.line:
                        return line
        return None

    def changed(self, root: Path = ROOT) -> str:
        """Return the file's text with the change."""
        lines = (root / "rlpost" / self.file).read_text(encoding="utf-8").splitlines(keepends=True)
        number = self.find(root)
        assert number is not None
        parts = lines[number - 1].split(self.old)
        head, tail = parts[: self.number + 1], parts[self.number + 1 :]
        lines[number - 1] = self.old.join(head) + self.new + self.old.join(tail)
        return "".join(lines)


def functions(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield the module and its functions and classes with their qualified names."""
    yield tree, ""
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, owner = waiting.pop()
        for child in ast.iter_child_nodes(node):
            name = owner
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{owner}.{child.name}".lstrip(".")
                yield child, name
            waiting.append((child, name))


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file of rlpost/."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    file = str(path.relative_to(ROOT / "rlpost"))
    for node, owner in _nodes(ast.parse(text), ""):
        if node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1]
        start = len(line.encode()[: node.col_offset].decode())
        old = ast.get_source_segment(text, node)
        new = _changed(node, old)
        if new is not None:
            yield Mutant(file, owner, line.strip(), old, new, line[:start].count(old))


def _nodes(node: ast.AST, owner: str) -> Iterator[tuple[ast.expr, str]]:
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "type_params", "bases"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_text(child):
                continue
            name = owner
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{owner}.{child.name}".lstrip(".")
            if isinstance(child, ast.expr):
                yield child, owner
            yield from _nodes(child, name)


def _is_text(node: ast.AST) -> bool:
    """Whether a node is a docstring, an error, a format or an import for types alone."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Raise | ast.JoinedStr) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _changed(node: ast.expr, text: str) -> str | None:  # noqa: PLR0911 - a kind each
    """Return the text of a changed node; None if there is no change for its kind."""
    match node:
        case ast.Compare(ops=[first]) if type(first) in _SWAPS:
            node.ops[0] = _SWAPS[type(first)]()
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in _SWAPS:
            node.op = _SWAPS[type(operator)]()
        case ast.UnaryOp(op=ast.USub() | ast.Invert()):
            return ast.unparse(node.operand)
        case ast.Constant(value=bool()):
            return str(not node.value)
        case ast.Constant(value=int()):
            return repr(node.value + 1)
        case ast.Constant(value=float()):
            return repr(node.value * 1.25 if node.value else 1.0)
        case ast.IfExp() | ast.UnaryOp(op=ast.Not()):
            return f"(not ({text}))" if isinstance(node, ast.UnaryOp) else ast.unparse(node.orelse)
        case ast.Call(func=ast.Attribute(attr=name)) if name in _CALLS:
            node.func.attr = _CALLS[name]
        case ast.Call(func=ast.Attribute(attr="fsync" | "replace" | "flush" | "close")):
            return "None"
        case _:
            return None
    return f"({ast.unparse(node)})" if not isinstance(node, ast.Call) else ast.unparse(node)


def thresholds() -> Iterator[Mutant]:
    """Yield a mutant of each constant number of the findings' modules."""
    for path in sorted((ROOT / "rlpost" / THRESHOLDS).glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            name = getattr(node.targets[0], "id", "") if isinstance(node, ast.Assign) else ""
            value = ast.get_source_segment(text, node.value) if name.isupper() else ""
            if value and isinstance(number := _number(value), int | float):
                new = repr(number + 1 if isinstance(number, int) else number * 1.25)
                line = text.splitlines()[node.lineno - 1].strip()
                yield Mutant(str(path.relative_to(ROOT / "rlpost")), "", line, value, new)


def _number(text: str) -> object:
    """Return the number of a constant expression; None if it is another one."""
    tree = ast.parse(text, mode="eval")
    if any(isinstance(node, ast.Name | ast.Call | ast.JoinedStr) for node in ast.walk(tree)):
        return None
    value = eval(compile(tree, "", "eval"), {})  # noqa: S307 - numbers of our own code
    return value if isinstance(value, int | float) else None


def draw(seed: int, known: dict[str, dict], without: list[str]) -> list[Mutant]:
    """Return mutants drawn by a seed: as many as each room lacks beside those that are known.

    Files whose path contains one of `without` are left out.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    drawn = [mutant for mutant in thresholds() if mutant.key not in known]
    taken = {mutant.key for mutant in drawn} | set(known)
    for count, folders in ROOMS.values():
        paths = [p for name in folders for p in sorted((ROOT / "rlpost" / name).glob("*.py"))]
        paths = [path for path in paths if not any(part in str(path) for part in without)]
        here = {str(path.relative_to(ROOT / "rlpost")) for path in paths}
        lacking = count - sum(
            row["file"] in here and bool(row["function"]) for row in known.values()
        )
        every = [mutant for path in paths for mutant in mutants_of(path) if mutant.key not in taken]
        chance.shuffle(every)
        lines: set[tuple[str, str]] = set()
        for mutant in every:
            if lacking > 0 and (mutant.file, mutant.line) not in lines and mutant.find():
                lines.add((mutant.file, mutant.line))
                drawn.append(mutant)
                lacking -= 1
    return drawn


def load() -> dict[str, dict]:
    """Return the rows of the committed table by the mutants' keys."""
    if not TABLE.exists():
        return {}
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["mutant"]
    return {of_row(row).key: row for row in rows}


def of_row(row: dict) -> Mutant:
    """Return the mutant of a row of the table."""
    fields = ("file", "function", "line", "old", "new")
    return Mutant(*(row[field] for field in fields), row.get("number", 0))


def save(rows: dict[str, dict]) -> None:
    """Write the table, by file and line."""
    import json

    head = (
        "# Mutants and the number of tests of README's command that kill each ("
        "`python -m tests.mutation`). More are not\n# looked for than `most`. A survivor"
        " has a `reason` if it changes no result.\n"
    )
    blocks = []
    for row in sorted(rows.values(), key=lambda row: (row["file"], row["function"], row["line"])):
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in row.items()]
        blocks.append("\n".join(["[[mutant]]", *lines]))
    TABLE.write_text(head + "\n" + "\n\n".join(blocks) + "\n", encoding="utf-8")
