"""Examples of a replay: recorded and computed numbers of single responses, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.display.tables import TextTable
from rlpost.display.text import counted, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Json = dict[str, Any]
_LABEL = 10
"""Columns of the label of a row and of the gap after it."""
_GAP, _WIDTH = 2, 80
_DIGITS = range(4, 10)
_DIFFERS, _OBSERVED = "bold red", "dim"


def examples(result: Json, *, verbose: bool = False) -> Iterator[TextTable]:
    """Yield tables of the responses that differ the most.

    Args:
        result: of `replay`.
        verbose: all tokens of all examples, not only those around the largest difference of the
            first that fit 80 columns.
    """
    found = result["examples"]
    if not found:
        return
    title = next(one["title"] for one in result["stages"] if one["stage"] == result["first"])
    title = f"Largest differences of {title}"
    if found[0]["first_token"] is None or all(map(_is_constant, found)):
        yield _of_responses(found, title)
        return
    for i, one in enumerate(found if verbose else found[:1]):
        strips = [*_strip(one, "" if i else f"{title}: ")]
        yield from strips if verbose else strips[:1]


def _is_constant(one: Json) -> bool:
    """Return whether the tokens of an example have the same numbers."""
    return all(one["policy"]) and len({*zip(one["recorded"], one["computed"], strict=True)}) == 1


def _of_responses(found: Sequence[Json], title: str) -> TextTable:
    """Return one table of responses with a number each, or one for their tokens."""
    keys = {name: key for name, key in (("step", "step"), ("prompt", "group"))
            if found[0][key] is not None}  # fmt: skip
    digits = digits_of([(one["recorded"][0], one["computed"][0]) for one in found])
    rows = [
        (
            str(one["row"]),
            *(str(one[key]) for key in keys.values()),
            number(one["reward"]),
            *([] if one["first_token"] is None else [_tokens(one)]),
            shown(one["recorded"][0], digits),
            shown(one["computed"][0], digits),
        )
        for one in found
    ]
    tokens = [] if found[0]["first_token"] is None else ["tokens"]
    headings = ("row", *keys, "reward", *tokens, "recorded", "computed")
    text = [i for i, heading in enumerate(headings) if heading == "prompt"]
    return TextTable(headings, rows, title=title, text=text)


def _tokens(one: Json) -> str:
    """Return the numbers of the tokens of an example, and of how many they are."""
    first, count = one["first_token"], len(one["recorded"])
    return f"{first}–{first + count - 1} of {one['tokens']:,}"


def _strip(one: Json, before: str) -> Iterator[TextTable]:
    """Yield the tokens of a response, as many in a table as 80 columns have room for.

    The first table begins with the first token that differs, or a little before it.
    """
    pairs = list(zip(one["recorded"], one["computed"], strict=True))
    digits = digits_of([pair for pair, wrong in zip(pairs, one["differs"], strict=True) if wrong])
    names = [_index(one, i) for i in range(len(pairs))]
    cells = [(shown(left, digits), shown(right, digits)) for left, right in pairs]
    widest = max(len(text) for column in (*cells, names) for text in column)
    count = max(1, (_WIDTH - _LABEL) // (widest + _GAP))
    first = max(0, min(one["differs"].index(True) - 1, len(pairs) - count))
    for start in (*range(first, len(pairs), count), *range(0, first, count)):
        end = first if start < first else len(pairs)
        part = range(start, min(start + count, end))
        rows: list[tuple[str | Text, ...]] = [
            (label, *(_cell(one, i, cells[i][side]) for i in part))
            for side, label in enumerate(("recorded", "computed"))
        ]
        if not all(one["differs"]) and any(one["differs"][i] for i in part):
            rows.append(("", *("≠" if one["differs"][i] else "" for i in part)))
        title = f"{before}{_heading(one)}" if start == first else ""
        yield TextTable(("token", *(names[i] for i in part)), rows, title=title)


def _index(one: Json, i: int) -> str:
    """Return the number of a token, in parentheses if it is an observation."""
    index = str(one["first_token"] + i)
    return index if one["policy"][i] else f"({index})"


def _cell(one: Json, i: int, text: str) -> Text:
    if not one["policy"][i]:
        return Text(text, _OBSERVED)
    return Text(text, _DIFFERS if one["differs"][i] else "")


def _heading(one: Json) -> str:
    parts = [f"row {one['row']}"]
    parts += [f"step {one['step']}"] if one["step"] is not None else []
    parts += [str(one["group"])] if one["group"] is not None else []
    parts += [f"reward {number(one['reward'])}", counted(one["tokens"], "token")]
    observed = "" if all(one["policy"]) else "; observation tokens in parentheses"
    return " · ".join(parts) + observed


def digits_of(pairs: Sequence[tuple[float | None, float | None]]) -> int:
    """Return the fewest significant digits with which the numbers of each pair look different.

    >>> digits_of([(0.5, 0.7), (-2.47480, -2.47481)])
    6
    """
    for digits in _DIGITS:
        if all(shown(left, digits) != shown(right, digits) for left, right in pairs):
            return digits
    return _DIGITS[-1]


def shown(value: float | None, digits: int) -> str:
    """Return a number with so many significant digits; `–` for what is no number.

    >>> shown(-2.474803, 4), shown(-0.0, 4), shown(None, 4)
    ('-2.475', '0', '–')
    """
    return "–" if value is None else f"{value or 0.0:.{digits}g}"  # 0.0 has no sign, -0.0 has
