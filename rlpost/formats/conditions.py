"""Conditions in SQL: read by the precedence of operators, and built for polars.

A condition is untrusted text. What is not in the tables of this module is an error, and no other
program parses the text.
"""

from __future__ import annotations

import operator
import re
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from rlpost.errors import ErrorPart, UsageError, closest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def _text(value: pl.Expr) -> pl.Expr:
    """Return texts, also of a column that is null throughout, which has no type."""
    return value.cast(pl.String)


def _float(value: pl.Expr) -> pl.Expr:
    return value.cast(pl.Float64)


def _divided(value: pl.Expr, by: pl.Expr) -> pl.Expr:
    return pl.when(by != 0).then(value / by)


def _absolute(value: pl.Expr) -> pl.Expr:
    """Return |x|, also of a column that is null throughout."""
    return (value + pl.lit(0)).abs()


def _remainder(value: pl.Expr, by: pl.Expr) -> pl.Expr:
    """Return the remainder of a division, with the sign of the value; it repeats both."""
    sign = pl.when(value < 0).then(-1).otherwise(1)
    return pl.when(by != 0).then(_absolute(value) % _absolute(by) * sign)


def _joined(join: Callable[[Any, Any], Any], parts: Sequence[pl.Expr]) -> pl.Expr:
    """Join parts as a tree without long branches, which polars walks by recursion."""
    level = list(parts)
    while len(level) > 1:
        level = [reduce(join, level[i : i + 2]) for i in range(0, len(level), 2)]
    return level[0]


_Operation = tuple[int, str, str, "Callable[..., pl.Expr]"]
"""The number of operands, at most of `coalesce`; their kind, if not any; the kind of the result, if
not theirs; how it is built."""
FUNCTIONS: dict[str, _Operation] = {
    "abs": (1, "number", "number", _absolute),
    "ceil": (1, "number", "number", lambda x: _float(x).ceil()),
    "floor": (1, "number", "number", lambda x: _float(x).floor()),
    "sqrt": (1, "number", "number", lambda x: _float(x).sqrt().fill_nan(None)),
    "lower": (1, "text", "text", lambda x: _text(x).str.to_lowercase()),
    "upper": (1, "text", "text", lambda x: _text(x).str.to_uppercase()),
    "length": (1, "text", "number", lambda x: _text(x).str.len_chars().cast(pl.Int128)),
    "contains": (2, "text", "bool", lambda x, y: _text(x).str.contains(_text(y), literal=True)),
    "starts_with": (2, "text", "bool", lambda x, y: _text(x).str.starts_with(_text(y))),
    "ends_with": (2, "text", "bool", lambda x, y: _text(x).str.ends_with(_text(y))),
    "coalesce": (16, "", "", pl.coalesce),
}
_SIGNS: dict[str, tuple[int, _Operation]] = {
    "=": (5, (2, "", "bool", operator.eq)),
    "==": (5, (2, "", "bool", operator.eq)),
    "<>": (5, (2, "", "bool", operator.ne)),
    "!=": (5, (2, "", "bool", operator.ne)),
    "<": (5, (2, "", "bool", operator.lt)),
    "<=": (5, (2, "", "bool", operator.le)),
    ">": (5, (2, "", "bool", operator.gt)),
    ">=": (5, (2, "", "bool", operator.ge)),
    "+": (7, (2, "number", "number", operator.add)),
    "-": (7, (2, "number", "number", operator.sub)),
    "*": (8, (2, "number", "number", operator.mul)),
    "/": (8, (2, "number", "number", _divided)),
    "%": (8, (2, "number", "number", _remainder)),
}
"""Sign -> how tightly it binds, and what it does."""
_WORDS = {"or": 1, "and": 2, "is": 4, "in": 6, "between": 6, "like": 6, "ilike": 6, "not": 6}
"""Word behind an operand -> how tightly it binds."""
_POWERS = {**_WORDS, **{sign: power for sign, (power, _) in _SIGNS.items()}}
_PREFIXES: dict[str, tuple[int, _Operation]] = {
    "not": (3, (1, "bool", "bool", lambda x: ~x.cast(pl.Boolean))),
    "-": (9, (1, "number", "number", lambda x: 0 - x)),
}
_CONSTANTS = {"true": True, "false": False, "null": None}
ALLOWED = (
    "comparisons, and, or, not, in (...), between, is null, like, + - * / %, names of columns "
    f'("a.b" in double quotes), numbers, texts, {", ".join(FUNCTIONS)}'
)
_DEEPEST, _INTEGER = 50, 1 << 127
_LONGEST = 200  # operations, each on the result of the one before
_MOST_COPIES = 64  # of a part, which is repeated in a remainder
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
    | (?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")+") | (?P<word>[^\W\d]\w*)
    | (?P<sign><=|>=|<>|!=|==|[-+*/%(),<>=]) | (?P<end>\Z) | (?P<other>\S))""",
    re.VERBOSE,
)


class _Operand(NamedTuple):
    """What was read of a condition."""

    value: pl.Expr
    kind: str
    """`number`, `text`, `bool` or a type of polars; empty if it is unknown, or null."""
    start: int
    end: int
    depth: int = 1
    """Operations within each other."""
    copies: int = 1


class Condition:
    """A condition, whose columns are named by their numbers in `names`.

    Polars takes some names for patterns.

    Args:
        text: the SQL.
        label: the option, for errors.

    Raises:
        UsageError: it is no condition, or has what is not allowed.
    """

    def __init__(self, text: str, label: str) -> None:
        self.text, self.label = text, label
        self.names: list[str] = []
        """The columns, in the order of their first use."""
        self._tokens = [*_TOKEN.finditer(text)]
        self.expression({})

    def expression(self, kinds: Mapping[str, str]) -> pl.Expr:
        """Return the condition for columns of these kinds.

        Raises:
            UsageError: a part is of another kind than what it is in needs.
        """
        self._kinds, self._at, self._depth = kinds, 0, 0
        part = self._read(0)
        if self._kind != "end":
            raise self._unexpected()
        return self._of_kind([part], "bool")[0]

    @property
    def _kind(self) -> str:
        """The kind of the current token."""
        return str(self._tokens[self._at].lastgroup)

    @property
    def _text(self) -> str:
        return self._tokens[self._at][self._kind]

    @property
    def _start(self) -> int:
        return self._tokens[self._at].start(self._kind)

    @property
    def _word(self) -> str:
        """The current word or sign; empty for other tokens."""
        return self._text.lower() if self._kind in ("word", "sign") else ""

    def _took(self, *words: str) -> str:
        """Return the current word and go on, if it is one of these."""
        word = self._word if self._word in words else ""
        self._at += bool(word)
        return word

    def _take(self, *words: str) -> str:
        """Return the current word, which must be one of these, and go on."""
        if not (word := self._took(*words)):
            raise self._unexpected()
        return word

    def _part(
        self, value: pl.Expr, kind: str, start: int, parts: Sequence[_Operand] = (), uses: int = 1
    ) -> _Operand:
        """Return what was read: an operation on parts, each of which its value has so often."""
        depth = 1 + max((part.depth for part in parts), default=0)
        copies = uses * max((part.copies for part in parts), default=1)
        if depth > _LONGEST or copies > _MOST_COPIES:
            raise self._error("it has too many operations, each on the result of another", start)
        return _Operand(value, kind, start, self._tokens[self._at - 1].end(), depth, copies)

    def _read(self, power: int) -> _Operand:
        """Read an operand, and the operators behind it that bind more tightly than this."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("it is nested too deeply", self._start)
        part = self._operand()
        while _POWERS.get(self._word, 0) > power:
            part = self._operation(part)
        self._depth -= 1
        return part

    def _operand(self) -> _Operand:
        kind, text, start = self._kind, self._text, self._start
        if word := self._took(*_PREFIXES):
            power, operation = _PREFIXES[word]
            return self._applied(operation, [self._read(power)], start)
        if self._took("("):
            inner = self._read(0)
            self._take(")")
            return self._part(inner.value, inner.kind, start, [inner])
        if self._word in _POWERS or self._word == "null" or kind in ("sign", "end", "other"):
            raise self._unexpected()
        self._at += 1
        if kind in ("number", "text"):
            value = _number(text) if kind == "number" else pl.lit(_unquoted(text))
            return self._part(value, kind, start)
        if kind == "word" and text.lower() in _CONSTANTS:
            return self._part(pl.lit(_CONSTANTS[text.lower()]), "bool", start)
        if kind == "word" and self._word == "(":
            return self._call(text, start)
        name = text if kind == "word" else _unquoted(text)
        self.names += [name] if name not in self.names else []
        return self._part(pl.col(str(self.names.index(name))), self._kinds.get(name, ""), start)

    def _call(self, name: str, start: int) -> _Operand:
        if (operation := FUNCTIONS.get(name.lower())) is None:
            problem = f"{name}(...) is not a function of one row"
            raise self._error(problem, start, closest(name.lower(), FUNCTIONS))
        arguments, most = self._list(), operation[0]
        if not (1 if operation[3] is pl.coalesce else most) <= len(arguments) <= most:
            raise self._error(f"{name}(...) has {len(arguments)} arguments", start)
        return self._applied(operation, arguments, start)

    def _list(self) -> list[_Operand]:
        self._take("(")
        parts = [self._read(0)]
        while self._took(","):
            parts.append(self._read(0))
        self._take(")")
        return parts

    def _operation(self, left: _Operand) -> _Operand:
        """Read an operator, and what is behind it."""
        if word := self._took("and", "or"):
            parts = [left, self._read(_WORDS[word])]
            while self._took(word):
                parts.append(self._read(_WORDS[word]))
            values = [x.cast(pl.Boolean) for x in self._of_kind(parts, "bool")]
            join = operator.and_ if word == "and" else operator.or_
            return self._part(_joined(join, values), "bool", left.start, parts)
        if word := self._took(*_SIGNS):
            power, operation = _SIGNS[word]
            return self._applied(operation, [left, self._read(power)], left.start)
        is_constant = self._took("is")
        negated = self._took("not")
        value = self._constant(left) if is_constant else self._tested(left)
        return self._part(~value if negated else value, "bool", left.start, [left])

    def _constant(self, left: _Operand) -> pl.Expr:
        """Read what is behind `is`."""
        value = _CONSTANTS[self._take(*_CONSTANTS)]
        if value is None:
            return left.value.is_null()
        (flag,) = self._of_kind([left], "bool")
        return flag.cast(pl.Boolean).eq_missing(pl.lit(value))

    def _tested(self, left: _Operand) -> pl.Expr:
        """Read `in`, `between` or `like`, and what is behind it."""
        word = self._take("in", "between", "like", "ilike")
        if word == "in":
            value, *items = self._of_kind([left, *self._list()], "")
            return _joined(operator.or_, [value == item for item in items])
        if word == "between":
            low = self._read(_WORDS[word])
            self._take("and")
            value, first, last = self._of_kind([left, low, self._read(_WORDS[word])], "")
            return (first <= value) & (value <= last)
        if self._kind != "text":
            raise self._unexpected()
        pattern = re.escape(_unquoted(self._text)).replace("%", ".*").replace("_", ".")
        self._at += 1
        flags = "is" if word == "ilike" else "s"
        return _text(*self._of_kind([left], "text")).str.contains(f"(?{flags})^{pattern}$")

    def _applied(self, operation: _Operation, parts: Sequence[_Operand], start: int) -> _Operand:
        """Return the result of a function or an operator."""
        _, kind, result, build = operation
        kind_of_parts = next((part.kind for part in parts if part.kind), "")
        values, uses = self._of_kind(parts, kind), 2 if build is _remainder else 1
        return self._part(build(*values), result or kind_of_parts, start, parts, uses)

    def _of_kind(self, parts: Sequence[_Operand], kind: str) -> list[pl.Expr]:
        """Return the values of parts that must be of a kind; empty: all of that of a constant."""
        kind = kind or next((x.kind for x in parts[::-1] if x.kind), "")
        for part in parts:
            if part.kind not in ("", kind) and kind:
                text = self.text[part.start : part.end]
                problem = f"`{text}` is a {part.kind}, and a {kind} is needed"
                raise self._error(problem, part.start)
        return [part.value for part in parts]

    def _unexpected(self) -> UsageError:
        what = f"`{self._text}`" if self._text else "its end"
        return self._error(f"is no condition in SQL: {what} is not expected here", self._start)

    def _error(self, problem: str, at: int, names: Sequence[str] = ()) -> UsageError:
        text, caret = f"{self.label} {self.text}: {problem}", len(self.label) + 1 + at
        tip = "" if names else f"allowed are {ALLOWED}"
        return UsageError(ErrorPart(text, tuple(names), tip, caret))


def _number(text: str) -> pl.Expr:
    """Return a number, which stays exact if it is whole."""
    if text.isdecimal() and len(text) < len(str(_INTEGER)) + 1 and int(text) < _INTEGER:
        return pl.lit(int(text), pl.Int128)
    return pl.lit(float(text))


def _unquoted(text: str) -> str:
    """Return a text or a name without its quotes."""
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)
