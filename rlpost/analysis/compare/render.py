"""The page of `rlpost compare`: the answer, why, then numbers; also JSON and Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.analysis.difference import largest_table
from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, counted, mean_beside, number, percent
from rlpost.recipe.base import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.display.page import Severity


Json = dict[str, Any]
EQUAL_RANKS = 1 - 1e-12
LEAST_SCALE = 1e-4
"""Sizes of sides that differ less are equal."""
_BY_RESPONSE = (
    "Tokens are not compared: a side has one advantage per response. A side with tokens has their "
    "mean."
)


def page(comparison: Json) -> Page:
    """Return the page of a comparison."""
    names, pairs = comparison["sides"], comparison["pairs"]
    answers = [_answer(comparison, pair) for pair in pairs]
    if len(pairs) > 1:
        order = sorted(range(len(pairs)), key=lambda i: pairs[i]["pearson"]["responses"] or 0.0)
        answers = [f"most alike: {answers[order[-1]]}", f"least alike: {answers[order[0]]}"]
    one_input = f"{comparison['inputs'][0]}: " if len(comparison["inputs"]) == 1 else ""
    parts = [
        *_recipes(comparison),
        _sides(comparison),
        _agreement(comparison),
        *(table for pair in pairs for table in _most_different(pair)),
    ]
    return Page(
        f"rlpost compare · {one_input}{', '.join(names)}",
        [*answers, *_why(comparison), *_how(comparison)],
        parts,
        [Notice(finding["level"], finding["text"]) for finding in comparison["findings"]],
        Notice(_severity(comparison), comparison["verdict"]["text"]),
    )


def _severity(comparison: Json) -> Severity:
    """Return that of the verdict: recipes that differ are expected to have other numbers."""
    expected = comparison["recipe_differences"] and not comparison["findings"]
    level: Severity = "ok" if expected else comparison["verdict"]["level"]
    return level


def _measure(comparison: Json, name: str, pair: Json) -> Json:
    """Return the statistics of all numbers of a pair; none if there are no tokens."""
    whole: Json = comparison["facts"][f"{name}:{pair['left']}:{pair['right']}"]["all"]
    return whole


def _answer(comparison: Json, pair: Json) -> str:
    """Return whether two sides agree on the responses, in one sentence."""
    sides, spearman = f"{pair['left']} and {pair['right']}", pair["spearman"]
    equal = _measure(comparison, "response_equal", pair)
    count, differing = equal["count"], equal["count"] - equal["total"]
    if not count:
        return f"{sides} keep no response in common"
    if not differing:
        return f"{sides} have equal advantages in all {counted(count, 'response')}"
    if spearman is None:
        ranks = "have no common ranking (a side is constant)"
    elif spearman >= EQUAL_RANKS:
        ranks = f"rank all {counted(count, 'response')} the same"
    else:
        ranks = f"rank correlation {_correlation(spearman)}"
    largest = number(_measure(comparison, "response_difference", pair)["max"])
    opposite = _measure(comparison, "response_opposite_sign", pair)["total"]
    signs = f"{opposite:,} have opposite signs" if opposite else "none has the opposite sign"
    return (
        f"{sides}: {ranks}{_scale(pair)}; {differing:,} of {count:,} advantages differ, by at most "
        f"{largest}; {signs}"
    )


def _scale(pair: Json) -> str:
    """Return how large the left side is beside the right one, by root mean squares."""
    if abs(pair["scale"] - 1) < LEAST_SCALE:
        return ""
    return f"; {pair['left']} is {number(pair['scale'])} × {pair['right']} in size"


def _why(comparison: Json) -> Iterator[str]:
    """Yield the fields in which the recipes differ, whose values are a table."""
    fields = comparison["recipe_differences"]
    if comparison["verdict"]["level"] == "ok":
        return
    if fields is None:
        yield "why: unknown, a side has no recipe in its metadata"
    elif not fields:
        yield "why: the recipes differ in no field that changes these numbers"
    else:
        yield f"why: the recipes differ in {', '.join(field['field'] for field in fields)}"


def _how(comparison: Json) -> Iterator[str]:
    """Yield how rows were matched, if not by position, and why no tokens are compared."""
    by = comparison["matched_by"]
    if by != ["position"]:
        names = {"batch": "step", "group": "prompt"}
        order = ", then by order" if comparison["by_order_within"] else ""
        keys = ", ".join(names.get(key, key) for key in by)
        yield f"{counted(comparison['responses'], 'response')}, matched by {keys}{order}"
    if not _has_tokens(comparison):
        yield _BY_RESPONSE


def _has_tokens(comparison: Json) -> bool:
    return any(name.startswith("difference:") for name in comparison["facts"])


def _recipes(comparison: Json) -> Iterator[TextTable]:
    """Yield the table of the fields in which the recipes differ, if there are any."""
    fields, names = comparison["recipe_differences"] or [], comparison["sides"]
    rows = [[field["field"], *map(_value, field["values"])] for field in fields]
    ok = comparison["verdict"]["level"] == "ok"
    notes = ["without effect on these numbers"] if ok else []
    if rows:
        yield TextTable(("recipe", *names), rows, notes=notes, text=range(len(names) + 1))


def _value(value: Any) -> str:
    return "–" if value is None else text_of(value)


def _sides(comparison: Json) -> TextTable:
    """Return the statistics of each side's advantages."""
    facts, names = comparison["facts"], comparison["sides"]
    sides = [facts[f"advantage:{name}"]["all"] for name in names]
    rows = [["mean", *aligned([mean_beside(side["mean"], side["std"]) for side in sides])]]
    rows += [[part, *aligned([side[part] for side in sides])] for part in ("std", "min", "max")]
    zeros = (facts[f"advantage_zero:{name}"]["all"]["mean"] for name in names)
    rows.append(["A = 0", *map(percent, zeros)])
    population = facts[f"advantage:{names[0]}"]["of"]
    return TextTable(("advantage", *names), rows, lines=[f"of {population}"])


def _agreement(comparison: Json) -> TextTable:
    """Return the agreement of each pair over responses, and of two sides over tokens, too."""
    pairs, several = comparison["pairs"], len(comparison["pairs"]) > 1
    rows = []
    for pair in pairs:
        levels = {"response_": ("responses", pair["pearson"]["responses"], pair["spearman"])}
        if _has_tokens(comparison) and not several:
            levels[""] = "policy tokens", pair["pearson"]["tokens"], None
        rows += [
            [
                f"{pair['left']}, {pair['right']}" if several else label,
                _correlation(pearson),
                _correlation(spearman),
                percent(_measure(comparison, f"{level}same_sign", pair)["mean"]),
                f"{_measure(comparison, f'{level}opposite_sign', pair)['total']:,}",
                number(_measure(comparison, f"{level}difference", pair)["max"]),
                percent(_measure(comparison, f"{level}equal", pair)["mean"]),
            ]
            for level, (label, pearson, spearman) in levels.items()
        ]
    headings = ("Pearson", "Spearman", "same sign", "opposite", "max |Δ|", "equal")
    of = "agreement over responses" if several else "agreement of"
    return TextTable((of, *headings), rows)


def _correlation(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _most_different(pair: Json) -> Iterator[TextTable]:
    """Yield a table of the responses that differ the most beyond the scale, if there are any."""
    left, right = pair["left"], pair["right"]
    scaled = f"{number(pair['scale'])} × " * bool(_scale(pair))
    title = f"Largest differences, {left} - {scaled}{right}"
    rows, sides = pair["most_different"], {"left": left, "right": right}
    yield from largest_table(rows, sides, title, "beyond_scale")
