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
    from collections.abc import Callable, Iterable, Sequence


Node = Any
"""A node of sqlglot's tree, whose classes and their types differ between its versions."""
Kind = Literal["number", "text", "bool", "any"]
"""What a part of a condition is; a column is of any kind until its values are known."""


class _RowFunction(NamedTuple):
    """A function of one row."""

    takes: Kind
    gives: Kind
    most: int
    """Arguments; all of them are needed but for `coalesce`."""
    build: Callable[..., pl.Expr]


FUNCTIONS = {
    "abs": _RowFunction("number", "number", 1, lambda x: x.abs()),
    "ceil": _RowFunction("number", "number", 1, lambda x: x.cast(pl.Float64).ceil()),
    "floor": _RowFunction("number", "number", 1, lambda x: x.cast(pl.Float64).floor()),
    "sqrt": _RowFunction("number", "number", 1, lambda x: x.cast(pl.Float64).sqrt().fill_nan(None)),
    "lower": _RowFunction("text", "text", 1, lambda x: x.str.to_lowercase()),
    "upper": _RowFunction("text", "text", 1, lambda x: x.str.to_uppercase()),
    "length": _RowFunction("text", "number", 1, lambda x: x.str.len_chars().cast(pl.Int64)),
    "contains": _RowFunction("text", "bool", 2, lambda x, y: x.str.contains(y, literal=True)),
    "starts_with": _RowFunction("text", "bool", 2, lambda x, y: x.str.starts_with(y)),
    "ends_with": _RowFunction("text", "bool", 2, lambda x, y: x.str.ends_with(y)),
    "coalesce": _RowFunction("any", "any", 16, pl.coalesce),
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
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    exp.EQ: operator.eq, exp.NEQ: operator.ne, exp.GT: operator.gt, exp.GTE: operator.ge,
    exp.LT: operator.lt, exp.LTE: operator.le,
}  # fmt: skip
_ARITHMETIC: dict[type, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
    exp.Div: lambda a, b: pl.when(b != 0).then(a / b),
    exp.Mod: lambda a, b: pl.when(b != 0).then(a.abs() % b.abs() * a.sign()),
}
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
            self._tree = self._parsed()
            built = self._build(self._tree, 0)
            self._need(built, self._tree, "bool")
        except RecursionError:
            raise self._not_allowed("it is nested too deeply") from None
        self.value = built.value

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

    def _need(self, built: Built, node: Node, kind: Kind) -> None:
        """Note that columns are of a kind; raise UsageError if another part is of another one."""
        if built.kind == "any":
            self._set_kind(node, kind)
        elif kind not in ("any", built.kind):
            raise self._other_kind(node, built.kind, kind)

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
        if depth > _DEEPEST:
            raise self._not_allowed("it is nested too deeply")
        if (constant := _constant(node)) is not None:
            return Built(pl.lit(constant), _kind(constant))
        if isinstance(node, exp.Paren | exp.Column | exp.Anonymous):
            return self._build_primary(node, depth)
        parts = _PARTS | {"negate"} if isinstance(node, exp.Like | exp.ILike) else _PARTS
        if any(value for name, value in node.args.items() if name not in parts):
            raise self._unknown(node)
        if isinstance(node, exp.Neg):
            return Built(-self._built(node.this, "number", depth), "number")
        if build := _ARITHMETIC.get(type(node)):
            sides = (self._built(side, "number", depth) for side in (node.left, node.right))
            return Built(build(*sides), "number")
        return Built(self._build_test(node, depth), "bool")

    def _build_test(self, node: Node, depth: int) -> pl.Expr:
        """Build what is true or false."""
        if isinstance(node, exp.And | exp.Or):
            parts = [self._built(part, "bool", depth) for part in node.flatten()]
            return _balanced(operator.and_ if isinstance(node, exp.And) else operator.or_, parts)
        if isinstance(node, exp.Not):
            return ~self._built(node.this, "bool", depth)
        if compare := _COMPARISONS.get(type(node)):
            left, right = self._alike([node.left, node.right], depth)[0]
            return compare(left, right)  # type: ignore[no-any-return]
        if isinstance(node, exp.Between):
            nodes = [node.this, node.args["low"], node.args["high"]]
            value, low, high = self._alike(nodes, depth)[0]
            return (low <= value) & (value <= high)
        return self._build_in(node, depth) if isinstance(node, exp.In) else self._words(node, depth)

    def _words(self, node: Node, depth: int) -> pl.Expr:
        """Build `is null`, `is true`, `is false` and `like`."""
        if isinstance(node, exp.Is):
            built, right = self._build(node.this, depth + 1), node.expression
            if isinstance(right, exp.Null):
                return built.value.is_null()
            if isinstance(right, exp.Boolean):
                self._need(built, node.this, "bool")
                return built.value.eq_missing(pl.lit(bool(right.this)))
        if isinstance(node, exp.Like | exp.ILike):
            pattern = _constant(node.expression)
            if isinstance(pattern, str):
                case = "(?is)" if isinstance(node, exp.ILike) else "(?s)"
                text = self._built(node.this, "text", depth)
                found = text.str.contains(f"{case}^{_like(pattern)}$")
                return ~found if node.args.get("negate") else found
        raise self._unknown(node)

    def _build_in(self, node: exp.In, depth: int) -> pl.Expr:
        values = [_constant(one) for one in node.expressions]
        value = self._build(node.this, depth + 1)
        if not values or None in values or len({_kind(one) for one in values}) > 1:
            raise self._unknown(node)
        self._same_kind([value.kind, _kind(values[0])])
        if isinstance(values[0], str):
            return value.value.is_in(values)
        if len(values) > _MOST_NUMBERS:
            raise self._not_allowed(f"`in` has more than {_MOST_NUMBERS:,} numbers")
        return _balanced(operator.or_, [value.value == one for one in values])

    def _build_primary(self, node: Node, depth: int) -> Built:
        """Build a column, a call, or what is in parentheses."""
        if isinstance(node, exp.Paren):
            return self._build(node.this, depth + 1)
        if isinstance(node, exp.Anonymous):
            return self._build_call(node, depth)
        name = _column(node)
        if name is None:
            raise self._unknown(node)
        if name not in self.names:
            self.names.append(name)
        return Built(pl.col(self.column(name)), "any")

    def _build_call(self, node: exp.Anonymous, depth: int) -> Built:
        if not isinstance(node.this, str):  # in quotes
            raise self._unknown(node)
        function = FUNCTIONS.get(node.this.lower())
        if function is None:
            text = f"{self.label} {self.text}: {node.this}(...) is not a function of one row"
            names = f"allowed are {ALLOWED}"
            raise UsageError(no_such(text, node.this.lower(), FUNCTIONS, names))
        arguments = node.expressions
        least = 1 if function.most > 2 else function.most  # noqa: PLR2004 - coalesce
        if not least <= len(arguments) <= function.most:
            raise self._not_allowed(f"{node.this}(...) has {len(arguments)} arguments")
        if function.takes == "any":
            values, kind = self._alike(arguments, depth)
            for argument in arguments:
                self._set_kind(argument, kind)
            return Built(function.build(*values), kind)
        values = [self._built(one, function.takes, depth) for one in arguments]
        return Built(function.build(*values), function.gives)

    def _built(self, node: Node, kind: Kind, depth: int) -> pl.Expr:
        """Build a part that is of a kind."""
        built = self._build(node, depth + 1)
        self._need(built, node, kind)
        return built.value

    def _alike(self, nodes: Sequence[Node], depth: int) -> tuple[list[pl.Expr], Kind]:
        """Build parts of one kind, which is that of those that tell."""
        built = [self._build(node, depth + 1) for node in nodes]
        return [one.value for one in built], self._same_kind(one.kind for one in built)

    def _same_kind(self, kinds: Iterable[Kind]) -> Kind:
        known = sorted({*kinds} - {"any"})
        if len(known) > 1:
            raise self._not_allowed(f"a {NAMES[known[0]]} is compared with a {NAMES[known[1]]}")
        return known[0] if known else "any"


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
