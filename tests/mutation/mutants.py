"""Mutants: modules with one small change that a test should detect."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
    """One change of one module."""

    path: Path
    line: int
    function: str
    """Qualified name of the function that contains the change; empty at module level."""
    before: str
    after: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """Name of the module, such as kernels/scans."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def name(self) -> str:
        """Module, function and change; it stays the same while the changed line does."""
        location = f"{self.module}.py {self.function or 'module'}"
        return f"{location}: {self.before} -> {self.after}"


def unchanged(path: Path) -> Mutant:
    """Return an unchanged copy of a module as the control: all tests must pass with it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return Mutant(path, 1, "", "unchanged", "unchanged", tree)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a module, in line order."""
    source = path.read_text(encoding="utf-8")
    for number, (node, owner) in enumerate(list(_nodes(ast.parse(source)))):
        mutated = ast.parse(source)  # faster than a deep copy
        changed = list(_nodes(mutated))[number][0]
        statement = _statement(mutated, changed.lineno)
        before, part = ast.unparse(statement).splitlines()[0], ast.unparse(changed)
        _mutate(changed)
        after = ast.unparse(statement).splitlines()[0]
        if before == after:  # the change is below the first line of the statement
            before, after = f"{before} ... {part}", ast.unparse(changed)
        ast.fix_missing_locations(mutated)
        yield Mutant(path, node.lineno, owner, before, after, mutated)


def _nodes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.If, str]]:
    """Yield the nodes that can be mutated, each with the name of its function."""
    yield from _nodes_inside(tree, "")


def _nodes_inside(node: ast.AST, owner: str) -> Iterator[tuple[ast.expr | ast.If, str]]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_message(child) or _is_typing(child):
                continue
            name = owner
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{owner}.{child.name}".lstrip(".")
            if isinstance(child, ast.expr | ast.If) and _is_mutable(child):
                yield child, owner
            yield from _nodes_inside(child, name)


def _is_message(node: ast.AST) -> bool:
    """Whether a node is a docstring, a raise statement or an f-string."""
    return isinstance(node, ast.Raise | ast.JoinedStr) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_mutable(node: ast.AST) -> bool:
    """Whether a node can be mutated."""
    mutable = False
    match node:
        case ast.Compare(ops=[first, *_]):
            mutable = type(first) in _SWAPS
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator):
            mutable = type(operator) in _SWAPS
        case ast.UnaryOp(op=ast.USub() | ast.Invert() | ast.Not()):
            mutable = True
        case ast.Constant(value=value):
            mutable = isinstance(value, int | float)
        case ast.Call(func=ast.Attribute(attr=name)):
            mutable = name in _CALLS
        case ast.If() | ast.IfExp():
            mutable = True
    return mutable


def _mutate(node: ast.AST) -> None:
    """Mutate a node in place."""
    match node:
        case ast.Compare():
            node.ops[0] = _SWAPS[type(node.ops[0])]()
        case ast.BoolOp() | ast.BinOp():
            node.op = _SWAPS[type(node.op)]()
        case ast.UnaryOp(op=ast.USub()):
            node.op = ast.UAdd()
        case ast.UnaryOp():
            node.operand = ast.UnaryOp(node.op, node.operand)
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant():
            node.value += 1
        case ast.If() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Call():
            node.func.attr = _CALLS[node.func.attr]


def _statement(tree: ast.Module, line: int) -> ast.stmt:
    """Return the innermost statement that contains a line."""
    statements = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]  # fmt: skip
    return max(statements, key=lambda node: (node.lineno, -(node.end_lineno or 0)))
