"""The page of `rlpost compare`: the answer, why, then numbers; also JSON and Markdown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rlpost.display.console import console
from rlpost.display.page import Notice, Page, show_page
from rlpost.display.tables import TextTable, show_json
from rlpost.display.text import aligned, counted, mean_beside, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console


Json = dict[str, Any]
MOST_FIELDS = 12  # of recipes that differ
EQUAL_RANKS = 1 - 1e-12

_BY_RESPONSE = (
    "Tokens are not compared: a side has one advantage per response. A side with tokens has their "
    "mean."
)


def show(comparison: Json, how: str, out: Console | None = None) -> None:
    """Print a comparison on stdout, as a `table`, as `json` or as `markdown`."""
    if how == "json":
        show_json(comparison)
    else:
        show_page(page(comparison), how, out or console(sys.stdout))


def page(comparison: Json) -> Page:
    """Return the page of a comparison."""
    names, pairs = [side["name"] for side in comparison["sides"]], comparison["pairs"]
    inputs = comparison["inputs"]
    what = ", ".join(names)
    if len(inputs) == 1:
        what = f"{inputs[0]}: {what}"
    lines = [*map(_answer, pairs)] if len(pairs) == 1 else [*_extremes(pairs)]
    lines += [*_why(comparison), *_matched(comparison["rows"])]
    if _by_response(comparison):
        lines.append(_BY_RESPONSE)
    parts = [
        *_recipes(comparison),
        _sides(comparison),
        *(_pair(comparison) if len(pairs) == 1 else [_matrix(comparison)]),
        *(table for pair in pairs for table in _most_different(pair)),
    ]
    return Page(f"rlpost compare · {what}", lines, parts, [*_warnings(comparison)], _verdict(pairs))


# ---- the answer ----


def _answer(pair: Json) -> str:
    """Return whether two sides agree on the responses, in one sentence."""
    left, right, facts = pair["left"], pair["right"], pair["responses"]
    count = facts["count"]
    if not count:
        return f"{left} and {right} keep no response in common"
    if facts["identical"] == count:
        return f"{left} and {right} have equal advantages in all {counted(count, 'response')}"
    ranks = f"rank correlation {_correlation(facts['spearman'])}"
    if facts["spearman"] is not None and facts["spearman"] >= EQUAL_RANKS:
        ranks = f"rank all {counted(count, 'response')} the same"
    elif facts["spearman"] is None:
        ranks = "have no common ranking (a side is constant)"
    opposite = facts["sign"]["opposite"]
    signs = f"{opposite:,} have opposite signs" if opposite else "none has the opposite sign"
    return (
        f"{left} and {right}: {ranks}; {count - facts['identical']:,} of {count:,} advantages "
        f"differ, by at most {number(facts['difference']['max'])}; {signs}"
    )


def _extremes(pairs: Sequence[Json]) -> Iterator[str]:
    """Yield the answer for the pair that agrees most, and for the one that agrees least."""
    ordered = sorted(pairs, key=lambda pair: pair["responses"]["pearson"] or 0.0)
    yield f"most alike: {_answer(ordered[-1])}"
    yield f"least alike: {_answer(ordered[0])}"


def _verdict(pairs: Sequence[Json]) -> Notice:
    """Return whether all pairs are equal, and how many responses have opposite signs."""
    differing = [
        pair for pair in pairs if pair["responses"]["identical"] < pair["responses"]["count"]
    ]
    if not differing:
        return Notice("ok", "Equal advantages in all responses")
    if len(pairs) > 1:
        return Notice("warning", f"{len(differing):,} of {counted(len(pairs), 'pair')} differ")
    facts = pairs[0]["responses"]
    opposite = facts["sign"]["opposite"]
    signs = f", {opposite:,} with opposite signs" if opposite else ""
    different = facts["count"] - facts["identical"]
    return Notice(
        "warning", f"{different:,} of {counted(facts['count'], 'response')} differ{signs}"
    )


# ---- why ----


def _why(comparison: Json) -> Iterator[str]:
    """Yield the field in which the recipes differ; several are a table."""
    fields = comparison["recipe_differences"]
    names = [side["name"] for side in comparison["sides"]]
    if _verdict(comparison["pairs"]).severity == "ok":
        return
    if fields is None:
        yield "why: unknown, a side has no recipe in its metadata"
    elif not fields:
        yield "why: the recipes differ in no field that changes these numbers"
    elif len(fields) == 1:
        values = [*map(_value, fields[0]["values"])]
        if values == names:
            yield f"why: the {fields[0]['field']}"
        else:
            texts = (f"{value} in {name}" for name, value in zip(names, values, strict=True))
            yield f"why: {fields[0]['field']} is {', '.join(texts)}"
    else:
        more = f" and {len(fields) - MOST_FIELDS:,} more" if len(fields) > MOST_FIELDS else ""
        named = ", ".join(field["field"] for field in fields[:MOST_FIELDS])
        yield f"why: the recipes differ in {named}{more}"


def _recipes(comparison: Json) -> Iterator[TextTable]:
    """Yield the table of the fields in which the recipes differ, if there are several."""
    fields = comparison["recipe_differences"] or []
    if len(fields) < 2:  # noqa: PLR2004
        return
    names = [side["name"] for side in comparison["sides"]]
    rows = [[field["field"], *map(_value, field["values"])] for field in fields[:MOST_FIELDS]]
    more = len(fields) - len(rows)
    notes = [f"{more:,} more: --format json"] if more else []
    if _verdict(comparison["pairs"]).severity == "ok":
        notes.append("without effect on these numbers")
    text = range(len(names) + 1)
    yield TextTable(("recipe", *names), rows, notes=notes, text=text)


def _value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- warnings ----


def _matched(rows: Json) -> Iterator[str]:
    """Yield how the rows were matched, if not by position."""
    if rows["matched_by"] == ["position"]:
        return
    names = {"batch": "step", "group": "prompt"}
    keys = ", ".join(names.get(key, key) for key in rows["matched_by"])
    order = ", then by order" if rows["by_order_within"] else ""
    yield f"{counted(rows['count'], 'response')}, matched by {keys}{order}"


def _warnings(comparison: Json) -> Iterator[Notice]:
    """Yield what is missing in the comparison, and the warnings of its sides."""
    rows = comparison["rows"]
    for name, left_out in rows["left_out"].items():
        if left_out:
            verb = "has" if left_out == 1 else "have"
            text = f"{counted(left_out, 'response')} of {name} {verb} no match and are ignored"
            yield Notice("warning", text)
    if unequal := rows["unequal_lengths"]:
        text = f"{counted(unequal, 'response')} with different lengths: tokens not compared"
        yield Notice("warning", text)
    for text in comparison["warnings"]:
        yield Notice("warning", text)


# ---- numbers ----


def _by_response(comparison: Json) -> bool:
    return any(pair["tokens"] is None for pair in comparison["pairs"])


def _sides(comparison: Json) -> TextTable:
    """Return the statistics of each side's advantages."""
    sides = comparison["sides"]
    facts = [side["advantage"] for side in sides]
    means = [mean_beside(stats["mean"], stats["std"]) for stats in facts]
    rows = [["mean", *aligned(means)]]
    rows += [[part, *aligned([stats[part] for stats in facts])] for part in ("std", "min", "max")]
    rows.append(["A = 0", *(_share(stats, "zeros") for stats in facts)])
    headings = ("advantage", *(side["name"] for side in sides))
    return TextTable(headings, rows, lines=[f"of {comparison['population']}"])


def _share(facts: Json, part: str) -> str:
    return percent(facts[part] / facts["count"]) if facts["count"] else "–"


def _pair(comparison: Json) -> Iterator[TextTable]:
    """Yield the agreement of two sides, over responses and over tokens."""
    (pair,) = comparison["pairs"]
    levels = {"responses": "responses"}
    if pair["tokens"] is not None:
        levels["tokens"] = "policy tokens"
    headings = ("agreement of", "Pearson", "Spearman", "same sign", "opposite", "max |Δ|", "equal")
    rows = [
        [
            label,
            _correlation(pair[level]["pearson"]),
            _correlation(pair[level].get("spearman")),
            percent(pair[level]["sign"]["agreement"]),
            f"{pair[level]['sign']['opposite']:,}",
            number(pair[level]["difference"]["max"]),
            _share(pair[level], "identical"),
        ]
        for level, label in levels.items()
    ]
    yield TextTable(headings, rows)


def _matrix(comparison: Json) -> TextTable:
    """Return the pairs: Pearson's correlation above the diagonal, opposite signs below it."""
    names = [side["name"] for side in comparison["sides"]]
    pairs = {(pair["left"], pair["right"]): pair["responses"] for pair in comparison["pairs"]}
    rows = [
        [
            name,
            *(
                "·" if name == other
                else _correlation(pairs[name, other]["pearson"]) if (name, other) in pairs
                else f"{pairs[other, name]['sign']['opposite']:,}"
                for other in names
            ),
        ]
        for name in names
    ]  # fmt: skip
    note = "responses: Pearson's correlation above the diagonal, opposite signs below it"
    return TextTable(("agreement", *names), rows, notes=[note])


def _correlation(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _most_different(pair: Json) -> Iterator[TextTable]:
    """Yield a table of the responses that differ the most, if there are any."""
    responses = pair["most_different"]
    if not responses:
        return
    keys = {
        heading: key
        for heading, key in (("step", "step"), ("prompt", "prompt_id"))
        if responses[0][key] is not None
    }
    several = any(response["file_row"] != response["row"] for response in responses)
    places = [
        f"{response['file']}:{response['file_row']}" if several else str(response["row"])
        for response in responses
    ]
    sides = [aligned([response[side] for response in responses]) for side in ("left", "right")]
    deltas = aligned([response["left"] - response["right"] for response in responses])
    rows = [
        [
            places[i],
            *(str(response[key]) for key in keys.values()),
            number(response["reward"]),
            *(side[i] for side in sides),
            deltas[i],
        ]
        for i, response in enumerate(responses)
    ]
    left, right = pair["left"], pair["right"]
    headings = ("file:row" if several else "row", *keys, "reward", left, right, "Δ")
    text = [i for i, heading in enumerate(headings) if heading in ("prompt", "file:row")]
    yield TextTable(headings, rows, title=f"Largest differences, {left} - {right}", text=text)
