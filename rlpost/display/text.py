"""Numbers and counts as text, for a terminal, a pipe and Markdown alike."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_DIGITS = 4  # of the largest number of a column
_PLAIN = (1e-4, 1e6)  # numbers from the first to below the second need no exponent
_MEAN_ROUNDING = 1e-6  # of the standard deviation


def number(value: float | None, *, digits: int = _DIGITS) -> str:
    """Return significant digits, without an exponent if that reads better; `–` for None.

    >>> number(0.12345), number(1234567), number(0), number(None), number(2 / 3, digits=2)
    ('0.1235', '1.235e+06', '0', '–', '0.67')
    >>> number(999999.9), number(1000000.1), number(20000.0)
    ('1.000e+06', '1.000e+06', '2e+04')
    """
    if value is None:
        return "–"
    if value == 0:
        return "0"
    plain = _PLAIN[0] <= abs(value) < _PLAIN[1] * (1 - 0.5 * 10.0**-digits)  # else it rounds to it
    return f"{value:.{digits}g}" if plain else f"{value:.{digits - 1}e}"


def aligned(values: Sequence[float | None]) -> list[str]:
    """Return the numbers of a column with one number of decimals: four digits of the largest.

    Exponents only if the whole column is below 1e-4 or reaches 1e6. `–` for None.

    >>> aligned([0.5, 0.12345, -0.00004, 0]), aligned([12.5, None, 1e-9]), aligned([2e-6, 1e-5])
    (['0.5000', '0.1235', '0.0000', '0'], ['12.50', '–', '0.00'], ['2.000e-06', '1.000e-05'])
    """
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value)]
    return [*map(column_format(max(sizes, default=0.0)), values)]


def column_format(largest: float) -> Callable[[float | None], str]:
    """Return what writes the numbers of a column, by the largest size of them; see `aligned`."""
    if largest and not _PLAIN[0] <= largest < _PLAIN[1]:
        return number
    decimals = _DIGITS - 1 - math.floor(math.log10(largest)) if largest else 0
    return lambda value: _fixed(value, max(decimals, 0))


def _fixed(value: float | None, decimals: int) -> str:
    if value is None:
        return "–"
    text = f"{value:,.{decimals}f}" if value else "0"
    return text.removeprefix("-") if not text.strip("-0.") else text


def mean_beside(mean: float | None, std: float | None) -> float | None:
    """Return a mean, or 0 if it is a rounding error beside its standard deviation.

    >>> mean_beside(4.9e-10, 1.0), mean_beside(0.1, 1.0), mean_beside(None, None)
    (0.0, 0.1, None)
    """
    if mean is not None and std and abs(mean) < _MEAN_ROUNDING * std:
        return 0.0
    return mean


def percent(share: float | None) -> str:
    """Return a share as a percentage with one decimal; `–` for None.

    Only a share of exactly 0, or one just below, reads 0 %; only one of exactly 1 reads 100 %.

    >>> percent(1), percent(0.9999), percent(0.5), percent(1e-9), percent(0), percent(1 / 3)
    ('100 %', '>99.9 %', '50.0 %', '<0.1 %', '0 %', '33.3 %')
    """
    if share is None:
        return "–"
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    text = f"{100 * share:.1f}"
    if text in ("0.0", "-0.0"):
        return "<0.1 %" if share > 0 else "0 %"
    return ">99.9 %" if text == "100.0" and share < 1 else f"{text} %"


def percents(shares: Sequence[float]) -> list[str]:
    """Return the shares of a whole as whole percents that sum to 100.

    >>> percents([0.277, 0.2065, 0.5165]), percents([0.001, 0.999]), percents([])
    (['28 %', '20 %', '52 %'], ['<1 %', '>99 %'], [])
    """
    parts = [int(100 * share) for share in shares]
    rest = sorted(range(len(parts)), key=lambda i: parts[i] - 100 * shares[i])
    for i in rest[: 100 - sum(parts)]:
        parts[i] += 1
    return [
        "<1 %" if not part and share > 0 else ">99 %" if part == 100 and share < 1 else f"{part} %"  # noqa: PLR2004
        for share, part in zip(shares, parts, strict=True)
    ]


def share(part: int, whole: int) -> str:
    """Return part / whole as a percentage, as `percent` does; 0 of 0 is 0 %.

    >>> share(3, 4), share(1, 1000), share(9999, 10000), share(3, 3), share(0, 0)
    ('75.0 %', '0.1 %', '>99.9 %', '100 %', '0 %')
    """
    return percent(part / whole if whole else 0.0)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, singular or plural.

    >>> counted(1, "response"), counted(2000, "response"), counted(2, "batch")
    ('1 response', '2,000 responses', '2 batches')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def value_list(counts: Mapping[str, int]) -> str:
    """Return the three most frequent values, with how often each occurs.

    >>> value_list({"'abort'": 2000, "null": 2})
    "'abort' 2,000, null 2"
    >>> value_list({"a": 1, "b": 3, "c": 2, "d": 4})
    'd 4, b 3, c 2 and 1 more'
    """
    named = most_frequent(counts, 3).items()
    more = f" and {len(counts) - len(named)} more" if len(counts) > len(named) else ""
    return ", ".join(f"{value} {count:,}" for value, count in named) + more


def most_frequent(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the most frequent values, and how often each occurs; equal counts by value.

    >>> most_frequent({"c": 1, "b": 2, "a": 1}, 2)
    {'b': 2, 'a': 1}
    """
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most])


def first_of(texts: Sequence[str], most: int = 2) -> str:
    """Return the first of several texts, two unless more are asked for, and how many others.

    >>> first_of(["a", "b", "c", "d"]), first_of(["a"])
    ('a, b and 2 more', 'a')
    """
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def shortened_middle(text: str, most: int) -> str:
    """Return a text on one line; of a longer one its ends, with `…` in place of its middle.

    >>> shortened_middle("00000000-0000-0000-0000-000000000001", 11)
    '00000…00001'
    """
    line = " ".join(text.split())
    side = (most - 1) // 2
    return line if len(line) <= most else f"{line[: most - 1 - side]}…{line[-side:]}"


def typed_word(text: str) -> str:
    r"""Return a text as one types it in a shell, in double quotes where these are all it needs.

    >>> typed_word("a.parquet"), typed_word("domain = 'mul'"), typed_word("$a b")
    ('a.parquet', '"domain = \'mul\'"', "'$a b'")
    """
    word = shlex.quote(text)
    return f'"{text}"' if "'" in text and not {*'"$`\\!'} & {*text} else word


def plural(noun: str) -> str:
    """Return the plural of a noun.

    >>> plural("step"), plural("batch"), plural("entry")
    ('steps', 'batches', 'entries')
    """
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return noun + ("es" if noun.endswith(("s", "h", "x")) else "s")


def size(count: int) -> str:
    """Return a number of bytes with three significant digits and a unit.

    >>> size(999), size(1234), size(5_000_000)
    ('999 B', '1.23 kB', '5 MB')
    """
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:  # noqa: PLR2004
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.3g} {unit}" if unit != "B" else f"{count} B"
