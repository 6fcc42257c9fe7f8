"""Conditions in SQL: parsed by sqlglot, checked against what is allowed, and built for polars.

A condition is untrusted text. Of the parsed tree only the nodes that are named here are built, and
no other program parses the text, so a query, a file or a sum in it is an error.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import polars as pl
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.parser import Parser
from sqlglot.tokens import Tokenizer, TokenType  # type: ignore[attr-defined]

from rlpost.errors import UsageError, no_such

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


Node = Any
"""A node of sqlglot's tree, whose classes and their types differ between its versions."""
Kind = Literal["number", "text", "bool", "any"]
"""What a part of a condition is; a column is of any kind until its values are known."""


class _Form(NamedTuple):
    """An operator or a function of one row."""

    takes: Kind
    """The kind of its parts; `any` if all are of one kind."""
    gives: Kind
    """The kind of its value; `any` is that of its parts."""
    most: int
    """Parts; all of them are needed but for `coalesce`."""
    build: Callable[..., Any]


FUNCTIONS = {
    "abs": _Form("number", "number", 1, lambda x: x.abs()),
    "ceil": _Form("number", "number", 1, lambda x: x.cast(pl.Float64).ceil()),
    "floor": _Form("number", "number", 1, lambda x: x.cast(pl.Float64).floor()),
    "sqrt": _Form("number", "number", 1, lambda x: x.cast(pl.Float64).sqrt().fill_nan(None)),
    "lower": _Form("text", "text", 1, lambda x: x.str.to_lowercase()),
    "upper": _Form("text", "text", 1, lambda x: x.str.to_uppercase()),
    "length": _Form("text", "number", 1, lambda x: x.str.len_chars().cast(pl.Int64)),
    "contains": _Form("text", "bool", 2, lambda x, y: x.str.contains(y, literal=True)),
    "starts_with": _Form("text", "bool", 2, lambda x, y: x.str.starts_with(y)),
    "ends_with": _Form("text", "bool", 2, lambda x, y: x.str.ends_with(y)),
    "coalesce": _Form("any", "any", 16, pl.coalesce),
}
_OPERATORS: dict[type, _Form] = {
    exp.EQ: _Form("any", "bool", 2, operator.eq),
    exp.NEQ: _Form("any", "bool", 2, operator.ne),
    exp.GT: _Form("any", "bool", 2, operator.gt),
    exp.GTE: _Form("any", "bool", 2, operator.ge),
    exp.LT: _Form("any", "bool", 2, operator.lt),
    exp.LTE: _Form("any", "bool", 2, operator.le),
    exp.Between: _Form("any", "bool", 3, lambda x, low, high: (low <= x) & (x <= high)),
    exp.And: _Form("bool", "bool", 0, lambda *parts: _balanced(operator.and_, parts)),
    exp.Or: _Form("bool", "bool", 0, lambda *parts: _balanced(operator.or_, parts)),
    exp.Not: _Form("bool", "bool", 1, operator.invert),
    exp.Neg: _Form("number", "number", 1, operator.neg),
    exp.Add: _Form("number", "number", 2, operator.add),
    exp.Sub: _Form("number", "number", 2, operator.sub),
    exp.Mul: _Form("number", "number", 2, operator.mul),
    exp.Div: _Form("number", "number", 2, lambda a, b: pl.when(b != 0).then(a / b)),
    exp.Mod: _Form(
        "number", "number", 2, lambda a, b: pl.when(b != 0).then(a.abs() % b.abs() * a.sign())
    ),
}
ALLOWED = (
    "comparisons, and, or, not, in (...), between, is null, like, + - * / %, names of columns, "
    f"numbers, texts, {', '.join(FUNCTIONS)}"
)
_WORDS = {
    TokenType.AND, TokenType.OR, TokenType.NOT, TokenType.IN, TokenType.BETWEEN, TokenType.IS,
    TokenType.NULL, TokenType.TRUE, TokenType.FALSE, TokenType.LIKE, TokenType.ILIKE,
    TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER,
}  # fmt: skip
"""The words of conditions. Others, such as `group` or `values`, are names of columns."""
_PARTS = {"this", "expression", "expressions", "low", "high"}
"""The parts of nodes that are built. A node with another part is not allowed."""
NAMES: dict[Kind, str] = {"number": "number", "text": "text", "bool": "truth value"}
_DEEPEST, _MOST_NUMBERS, _LARGEST = 50, 1000, 1 << 63
_SHOWN = 60  # characters of a part in an error


class _ConditionTokenizer(Tokenizer):
    """A tokenizer without words that take the rest of the text."""

    COMMANDS: ClassVar = set()


class _ConditionParser(Parser):
    """A parser whose calls are all alike, whatever sqlglot knows of the function."""

    FUNCTIONS: ClassVar = {}
    FUNCTION_PARSERS: ClassVar = {}
    NO_PAREN_FUNCTIONS: ClassVar = {}
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {}


class Built(NamedTuple):
    """A part of a condition for polars."""

    value: pl.Expr
    kind: Kind


@dataclass
class Condition:
    """A condition, whose columns are named by their numbers in `names`.

    Args:
        text: the SQL.
        label: the option with the text, for errors.

    Raises:
        UsageError: it is no condition, or has what is not allowed.
    """

    text: str
    label: str
    names: list[str] = field(default_factory=list, init=False)
    """The columns, in the order of their first use."""
    kinds: dict[str, Kind] = field(default_factory=dict, init=False)
    """The kind that a column needs, if its use tells."""
    value: pl.Expr = field(init=False)

    def __post_init__(self) -> None:
        try:
            (self.value,), _ = self._parts([self._parsed()], "bool", -1)
        except RecursionError:
            raise self._not_allowed("it is nested too deeply") from None

    def column(self, name: str) -> str:
        """Return the name of a column for polars, which takes some names for patterns."""
        return str(self.names.index(name))

    def _parsed(self) -> Node:
        try:
            tokens = _ConditionTokenizer().tokenize(self.text)
            for token in tokens:
                if token.token_type not in _WORDS and re.fullmatch(r"[^\W\d]\w*", token.text):
                    token.token_type = TokenType.VAR
            trees = _ConditionParser().parse_into(exp.Condition, tokens, self.text)
        except SqlglotError as error:
            place = getattr(error, "errors", None)
            where = place[0].get("highlight") if place else None
            at = f" at `{where}`" if where else ""
            raise self._not_allowed(f"is no condition in SQL{at}") from None
        if len(trees) != 1 or trees[0] is None:
            raise self._not_allowed("is no condition in SQL")
        return trees[0]

    def _not_allowed(self, problem: str) -> UsageError:
        example = f"{self.label} \"reward > 0 and domain = 'math'\""
        return UsageError(
            f"{self.label} {self.text}: {problem}; allowed are {ALLOWED}",
            tip=f"{example}; a name with a dot is in double quotes",
        )

    def _unknown(self, node: Node) -> UsageError:
        try:
            part = node.sql()
        except (SqlglotError, ValueError, TypeError):
            part = type(node).__name__
        part = part if len(part) <= _SHOWN else f"{part[:_SHOWN]}..."
        return self._not_allowed(f"`{part}` is not allowed")

    def _set_kind(self, node: Node, kind: Kind) -> None:
        """Note the kind of a column, or of those of `coalesce`."""
        node = _bare(node)
        if isinstance(node, exp.Anonymous) and str(node.this).lower() == "coalesce":
            for part in node.expressions:
                self._set_kind(part, kind)
        name = _column(node)
        if name is not None and kind != "any" and self.kinds.setdefault(name, kind) != kind:
            raise self._other_kind(node, self.kinds[name], kind)

    def _other_kind(self, node: Node, given: Kind, needed: Kind) -> UsageError:
        problem = f"`{node.sql()}` is a {NAMES[given]}, and a {NAMES[needed]} is needed"
        return self._not_allowed(problem)

    def _build(self, node: Node, depth: int) -> Built:
        """Build a part of the tree."""
        node = _bare(node)
        if depth > _DEEPEST:
            raise self._not_allowed("it is nested too deeply")
        if (constant := _constant(node)) is not None:
            return Built(pl.lit(constant), _kind(constant))
        if (name := _column(node)) is not None:
            self.names += [name] if name not in self.names else []
            return Built(pl.col(self.column(name)), "any")
        if isinstance(node, exp.Anonymous):
            return self._call(node, depth)
        parts = _PARTS | {"negate"} if isinstance(node, exp.Like | exp.ILike) else _PARTS
        if any(value for name, value in node.args.items() if name not in parts):
            raise self._unknown(node)
        if form := _OPERATORS.get(type(node)):
            return self._formed(form, _operands(node), depth)
        return Built(self._words(node, depth), "bool")

    def _call(self, node: exp.Anonymous, depth: int) -> Built:
        """Build a call of a function."""
        if not isinstance(node.this, str):  # in quotes
            raise self._unknown(node)
        name, arguments = node.this.lower(), node.expressions
        if (function := FUNCTIONS.get(name)) is None:
            text = f"{self.label} {self.text}: {node.this}(...) is not a function of one row"
            raise UsageError(no_such(text, name, FUNCTIONS, f"allowed are {ALLOWED}"))
        least = 1 if name == "coalesce" else function.most
        if not least <= len(arguments) <= function.most:
            raise self._not_allowed(f"{node.this}(...) has {len(arguments)} arguments")
        built = self._formed(function, arguments, depth)
        if function.takes == "any":
            for argument in arguments:
                self._set_kind(argument, built.kind)
        return built

    def _formed(self, form: _Form, nodes: Sequence[Node], depth: int) -> Built:
        values, kind = self._parts(nodes, form.takes, depth)
        return Built(form.build(*values), kind if form.gives == "any" else form.gives)

    def _parts(self, nodes: Sequence[Node], kind: Kind, depth: int) -> tuple[list[pl.Expr], Kind]:
        """Build parts of a kind, or all of the same one; return them and that kind.

        Columns need a kind that is named; what is compared tells nothing of an unsigned column.
        """
        built = [self._build(node, depth + 1) for node in nodes]
        known = sorted({part.kind for part in built} - {"any"})
        if kind == "any" and len(known) > 1:
            raise self._not_allowed(f"a {NAMES[known[0]]} is compared with a {NAMES[known[1]]}")
        for node, part in zip(nodes, built, strict=True) if kind != "any" else ():
            if part.kind == "any":
                self._set_kind(node, kind)
            elif part.kind != kind:
                raise self._other_kind(node, part.kind, kind)
        return [part.value for part in built], known[0] if kind == "any" and known else kind

    def _words(self, node: Node, depth: int) -> pl.Expr:
        """Build `is null`, `is true`, `is false`, `in` and `like`."""
        if isinstance(node, exp.In):
            return self._in(node, depth)
        other = getattr(node, "expression", None)
        if isinstance(node, exp.Is) and isinstance(other, exp.Null):
            return self._build(node.this, depth + 1).value.is_null()
        if isinstance(node, exp.Is) and isinstance(other, exp.Boolean):
            (value,), _ = self._parts([node.this], "bool", depth)
            return value.eq_missing(pl.lit(bool(other.this)))
        if isinstance(node, exp.Like | exp.ILike) and isinstance(_constant(other), str):
            (text,), _ = self._parts([node.this], "text", depth)
            case = "(?is)" if isinstance(node, exp.ILike) else "(?s)"
            matches = text.str.contains(f"{case}^{_like(str(_constant(other)))}$")
            return ~matches if node.args.get("negate") else matches
        raise self._unknown(node)

    def _in(self, node: exp.In, depth: int) -> pl.Expr:
        values = [_constant(part) for part in node.expressions]
        if not values or None in values or len({*map(_kind, values)}) > 1:
            raise self._unknown(node)
        (value, *_), kind = self._parts([node.this, *node.expressions[:1]], "any", depth)
        if kind == "text":
            return value.is_in(values)
        if len(values) > _MOST_NUMBERS:
            raise self._not_allowed(f"`in` has more than {_MOST_NUMBERS:,} numbers")
        return _balanced(operator.or_, [value == number for number in values])


def _operands(node: Node) -> list[Node]:
    """Return the parts of an operator."""
    if isinstance(node, exp.And | exp.Or):
        return [*node.flatten()]
    names = ("this", "low", "high") if isinstance(node, exp.Between) else ("this", "expression")
    return [node.args[name] for name in names if node.args.get(name) is not None]


def _bare(node: Node) -> Node:
    """Return what is within parentheses."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _column(node: Node) -> str | None:
    """Return the name of a column; None of other parts, and of a name with a table's."""
    node = _bare(node)
    if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
        return None
    return node.name if not any(node.args.get(one) for one in ("table", "db", "catalog")) else None


def _constant(node: Node) -> str | float | bool | None:
    """Return the value of a text, a number or a truth value; None of other parts."""
    node = _bare(node)
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Neg):
        value = _constant(node.this)
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(node, exp.Literal):
        return str(node.this) if node.is_string else _number(str(node.this))
    return None


def _number(text: str) -> int | float | None:
    try:
        number = int(text) if text.isdecimal() else float(text)
    except ValueError:
        return None
    return number if abs(number) < _LARGEST else float(number)


def _kind(value: object) -> Kind:
    return "text" if isinstance(value, str) else "bool" if isinstance(value, bool) else "number"


def _like(pattern: str) -> str:
    """Return a pattern of `like` as a regular expression."""
    return "".join({"%": ".*", "_": "."}.get(one, re.escape(one)) for one in pattern)


def _balanced(join: Callable[[Any, Any], Any], parts: Sequence[pl.Expr]) -> pl.Expr:
    """Join parts as a tree without long branches, which polars walks by recursion."""
    level = list(parts)
    while len(level) > 1:
        level = [reduce(join, level[i : i + 2]) for i in range(0, len(level), 2)]
    return level[0]
