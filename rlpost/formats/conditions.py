"""Conditions in SQL: parsed by sqlglot, checked against what is allowed, and built for polars.

A condition is untrusted text. Of the parsed tree only the nodes that are named here are built, and
no other program parses the text, so a query, a file or a sum in it is an error.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

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


def _text(value: pl.Expr) -> pl.Expr:
    """Return texts, also of a column that is null throughout, which has no type."""
    return value.cast(pl.String)


def _divided(value: pl.Expr, by: pl.Expr) -> pl.Expr:
    return pl.when(by != 0).then(value / by)


def _absolute(value: pl.Expr) -> pl.Expr:
    """Return |x|, also of a column that is null throughout."""
    return pl.max_horizontal(value, 0 - value)


def _remainder(value: pl.Expr, by: pl.Expr) -> pl.Expr:
    """Return the remainder of a division, with the sign of the value."""
    sign = pl.when(value < 0).then(-1).otherwise(1)
    return pl.when(by != 0).then(_absolute(value) % _absolute(by) * sign)


FUNCTIONS: dict[str, tuple[int, str, Callable[..., pl.Expr]]] = {
    "abs": (1, "number", _absolute),
    "ceil": (1, "number", lambda x: x.cast(pl.Float64).ceil()),
    "floor": (1, "number", lambda x: x.cast(pl.Float64).floor()),
    "sqrt": (1, "number", lambda x: x.cast(pl.Float64).sqrt().fill_nan(None)),
    "lower": (1, "text", lambda x: _text(x).str.to_lowercase()),
    "upper": (1, "text", lambda x: _text(x).str.to_uppercase()),
    "length": (1, "text", lambda x: _text(x).str.len_chars().cast(pl.Int64)),
    "contains": (2, "text", lambda x, y: _text(x).str.contains(y, literal=True)),
    "starts_with": (2, "text", lambda x, y: _text(x).str.starts_with(y)),
    "ends_with": (2, "text", lambda x, y: _text(x).str.ends_with(y)),
    "coalesce": (16, "", pl.coalesce),
}
"""Function of one row -> its arguments, at most of `coalesce`, their kind, and how it is built."""
_OPERATORS: dict[type, tuple[str, Callable[..., pl.Expr]]] = {
    exp.EQ: ("", operator.eq),
    exp.NEQ: ("", operator.ne),
    exp.GT: ("", operator.gt),
    exp.GTE: ("", operator.ge),
    exp.LT: ("", operator.lt),
    exp.LTE: ("", operator.le),
    exp.Between: ("", lambda x, low, high: (low <= x) & (x <= high)),
    exp.And: ("bool", lambda *x: _balanced(operator.and_, [y.cast(pl.Boolean) for y in x])),
    exp.Or: ("bool", lambda *x: _balanced(operator.or_, [y.cast(pl.Boolean) for y in x])),
    exp.Not: ("bool", lambda x: ~x.cast(pl.Boolean)),
    exp.Neg: ("number", lambda x: 0 - x),
    exp.Add: ("number", operator.add),
    exp.Sub: ("number", operator.sub),
    exp.Mul: ("number", operator.mul),
    exp.Div: ("number", _divided),
    exp.Mod: ("number", _remainder),
}
"""Operator -> the kind of its operands, if not any, and how it is built."""
ALLOWED = (
    "comparisons, and, or, not, in (...), between, is null, like, + - * / %, names of columns, "
    f"numbers, texts, {', '.join(FUNCTIONS)}"
)
_IS_KIND: dict[str, Callable[[pl.DataType], bool]] = {
    "number": lambda kind: kind.is_numeric(),
    "text": lambda kind: kind == pl.String,
    "bool": lambda kind: kind == pl.Boolean,
}
_WORDS = {
    TokenType.AND, TokenType.OR, TokenType.NOT, TokenType.IN, TokenType.BETWEEN, TokenType.IS,
    TokenType.NULL, TokenType.TRUE, TokenType.FALSE, TokenType.LIKE, TokenType.ILIKE,
    TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER,
}  # fmt: skip
"""The words of conditions. Others, such as `group` or `values`, are names of columns."""
_PARTS = {"this", "expression", "expressions", "low", "high"}
"""The parts of nodes that are built. A node with another part is not allowed."""
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
    value: pl.Expr = field(init=False)
    _parts: list[tuple[Node, pl.Expr, str]] = field(default_factory=list, init=False)
    """Parts that must be of a kind: a number, a text or a bool; inner ones first."""

    def __post_init__(self) -> None:
        try:
            self.value = self._build(self._parsed(), 0)
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

    def _build(self, node: Node, depth: int) -> pl.Expr:
        """Build a part of the tree for polars."""
        node = _bare(node)
        if depth > _DEEPEST:
            raise self._not_allowed("it is nested too deeply")
        if (constant := _constant(node)) is not None:
            return pl.lit(constant)
        if (name := _column(node)) is not None:
            self.names += [name] if name not in self.names else []
            return pl.col(self.column(name))
        if isinstance(node, exp.Anonymous):
            return self._call(node, depth)
        parts = _PARTS | {"negate"} if isinstance(node, exp.Like | exp.ILike) else _PARTS
        if any(value for name, value in node.args.items() if name not in parts):
            raise self._unknown(node)
        if type(node) in _OPERATORS:
            kind, build = _OPERATORS[type(node)]
            return build(*(self._part(part, kind, depth) for part in _operands(node)))
        return self._words(node, depth)

    def _call(self, node: exp.Anonymous, depth: int) -> pl.Expr:
        """Build a call of a function."""
        if not isinstance(node.this, str):  # in quotes
            raise self._unknown(node)
        name, arguments = node.this.lower(), node.expressions
        if name not in FUNCTIONS:
            text = f"{self.label} {self.text}: {node.this}(...) is not a function of one row"
            raise UsageError(no_such(text, name, FUNCTIONS, f"allowed are {ALLOWED}"))
        most, kind, build = FUNCTIONS[name]
        if not (1 if name == "coalesce" else most) <= len(arguments) <= most:
            raise self._not_allowed(f"{node.this}(...) has {len(arguments)} arguments")
        return build(*(self._part(part, kind, depth) for part in arguments))

    def _part(self, node: Node, kind: str, depth: int) -> pl.Expr:
        """Build a part of a kind; of any, if that is empty."""
        value = self._build(node, depth + 1)
        self._parts += [(node, value, kind)] if kind else []
        return value

    def check_kinds(self, frame: pl.DataFrame) -> None:
        """Check the types of columns, which `column` names; a part that is null has any kind.

        Raises:
            UsageError: a part is of another kind than what it is in needs.
        """
        for node, value, kind in self._parts:
            dtype = frame.lazy().select(value).collect_schema().dtypes()[0]
            if dtype != pl.Null and not _IS_KIND[kind](dtype):
                kinds = (f"a {name}" for name, fits in _IS_KIND.items() if fits(dtype))
                given = next(kinds, str(dtype))
                raise self._not_allowed(f"`{node.sql()}` is {given}, and a {kind} is needed")

    def _words(self, node: Node, depth: int) -> pl.Expr:
        """Build `is null`, `is true`, `is false`, `in` and `like`."""
        if isinstance(node, exp.In):
            return self._in(node, depth)
        other = getattr(node, "expression", None)
        if isinstance(node, exp.Is) and isinstance(other, exp.Null):
            return self._build(node.this, depth + 1).is_null()
        if isinstance(node, exp.Is) and isinstance(other, exp.Boolean):
            value = self._part(node.this, "bool", depth).cast(pl.Boolean)
            return value.eq_missing(pl.lit(bool(other.this)))
        if isinstance(node, exp.Like | exp.ILike) and isinstance(_constant(other), str):
            text = _text(self._part(node.this, "text", depth))
            case = "(?is)" if isinstance(node, exp.ILike) else "(?s)"
            matches = text.str.contains(f"{case}^{_like(str(_constant(other)))}$")
            return ~matches if node.args.get("negate") else matches
        raise self._unknown(node)

    def _in(self, node: exp.In, depth: int) -> pl.Expr:
        values = [_constant(part) for part in node.expressions]
        texts = {isinstance(value, str) for value in values}
        if not values or None in values or len(texts) > 1:
            raise self._unknown(node)
        value = self._part(node.this, "text" if texts == {True} else "", depth)
        if texts == {True}:
            return _text(value).is_in(values)
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
    return (
        node.name if not any(node.args.get(part) for part in ("table", "db", "catalog")) else None
    )


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
    return number if abs(number) < _LARGEST else float(text)


def _like(pattern: str) -> str:
    """Return a pattern of `like` as a regular expression."""
    return "".join({"%": ".*", "_": "."}.get(sign, re.escape(sign)) for sign in pattern)


def _balanced(join: Callable[[Any, Any], Any], parts: Sequence[pl.Expr]) -> pl.Expr:
    """Join parts as a tree without long branches, which polars walks by recursion."""
    level = list(parts)
    while len(level) > 1:
        level = [reduce(join, level[i : i + 2]) for i in range(0, len(level), 2)]
    return level[0]
