"""A comparison of advantages as tables on a terminal or in a pipe, as JSON and as Markdown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.display.console import console
from rlpost.display.controls import printable_line
from rlpost.display.tables import TextTable, show_json
from rlpost.display.text import counted, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


Json = dict[str, Any]

_OF_TOKENS = (
    "Advantages are those of policy tokens of kept responses; in a pair, of responses that both "
    "sides keep. The advantage of a response is their mean."
)
_OF_RESPONSES = (
    "Tokens are not compared, because a side has one advantage per response; a side with tokens "
    "has the mean over policy tokens. Responses are those that are kept; in a pair, that both "
    "sides keep."
)
_NOTE = (
    "Same sign: share of pairs that are not both 0. To find the responses that differ the most, "
    "each side is divided by its root mean square over those responses."
)
_RATE_NAMES = {
    "masked_all": "masked responses",
    "reward_clip": "clipped rewards",
    "token_reward_clip": "clipped token rewards",
    "advantage_clip": "clipped advantages",
}


def show(comparison: Json, how: str, out: Console | None = None) -> None:
    """Print a comparison on stdout, as a `table`, as `json` or as `markdown`."""
    by_response = any(pair["tokens"] is None for pair in comparison["pairs"])
    tables = [
        _sides(comparison),
        *_components(comparison),
        _pairs(comparison, "responses"),
        *([] if by_response else [_pairs(comparison, "tokens")]),
        *_most_different(comparison),
    ]
    if how == "json":
        show_json(comparison)
    elif how == "markdown":
        lines = [f"{printable_line(line)}\n\n" for line in _warnings(comparison)]
        sys.stdout.write("".join(lines) + "\n".join(table.markdown(level=3) for table in tables))
    else:
        out = out or console(sys.stdout)
        names = " · ".join(side["name"] for side in comparison["sides"])
        out.print(Text(printable_line(names), style="bold"))
        for line in (*_matched(comparison["rows"]), *_warnings(comparison)):
            out.print(Text(printable_line(line)), soft_wrap=not out.is_terminal)
        for table in tables:
            out.print()
            out.print(table)
        out.print()
        note = f"{_OF_RESPONSES if by_response else _OF_TOKENS} {_NOTE}"
        out.print(Text(note, style="dim"), soft_wrap=not out.is_terminal)


def _warnings(comparison: Json) -> list[str]:
    return [f"! {text}" for text in comparison["warnings"]]


def _matched(rows: Json) -> Iterator[str]:
    """Yield how the rows were matched, and what is missing in the comparison."""
    names = {"batch": "step", "group": "prompt"}
    keys = ", ".join(names.get(key, key) for key in rows["matched_by"])
    order = ", then by order" if rows["by_order_within"] else ""
    yield f"{counted(rows['count'], 'response')}, matched by {keys}{order}"
    for name, left_out in rows["left_out"].items():
        if left_out:
            verb = "has" if left_out == 1 else "have"
            yield f"! {counted(left_out, 'response')} of {name} {verb} no match and are ignored"
    if unequal := rows["unequal_lengths"]:
        yield f"! {counted(unequal, 'response')} with different lengths: tokens not compared"


def _sides(comparison: Json) -> TextTable:
    """Return the statistics of each side's advantages, and its clip and mask rates."""
    sides = comparison["sides"]
    rows = [
        [f"advantage {part}", *(number(side["advantage"][part]) for side in sides)]
        for part in ("mean", "std", "min", "max")
    ]
    rows.append(["zero advantage", *(_share(side["advantage"], "zeros") for side in sides)])
    for name in dict.fromkeys(name for side in sides for name in side["rates"] or {}):
        rates = [(side["rates"] or {}).get(name) for side in sides]
        if name == "masked_nonfinite" and not any(rate and rate["count"] for rate in rates):
            continue
        label = _RATE_NAMES.get(name, name.replace("_", " "))
        rows.append([label, *(_rate(rate) for rate in rates)])
    return TextTable(
        ("metric", *(side["name"] for side in sides)),
        rows,
        title=f"Sides: {comparison['population']}",
    )


def _components(comparison: Json) -> Iterator[TextTable]:
    """Yield the table of the reward components of each side, if any side has some."""
    components = [side["components"] or {} for side in comparison["sides"]]
    names = dict.fromkeys(name for own in components for name in own)
    rows = [
        [f"{name}: {part.replace('_', ' ')}", *(_part(own.get(name), part) for own in components)]
        for name in names
        for part in ("mean", "zero_variance", "reward_correlation", "advantage_share")
    ]
    if rows:
        sides = (side["name"] for side in comparison["sides"])
        note = "zero variance: groups with one value; share: of the advantage, adds up to 100 %"
        headings = ("component", *sides)
        yield TextTable(headings, rows, title="Reward components", notes=[note])


def _part(facts: Json | None, part: str) -> str:
    """Return a number of a reward component."""
    value = (facts or {}).get(part)
    if not isinstance(value, int | float):  # not known, or metadata that is damaged
        return "–"
    if part == "zero_variance":
        return f"{value:,}"
    return percent(value) if part == "advantage_share" else number(value)


def _share(facts: Json, part: str) -> str:
    return percent(facts[part] / facts["count"]) if facts["count"] else "–"


def _rate(facts: Json | None) -> str:
    if facts is None:
        return "–"
    return f"{facts['count']:,}" if facts["rate"] is None else percent(facts["rate"])


def _pairs(comparison: Json, level: str) -> TextTable:
    """Return the agreement of each pair of sides over `responses` or over `tokens`."""
    ranked = level == "responses"
    headings = ("pair", "Pearson", *(["Spearman"] if ranked else []), "same sign", "opposite",
                "max |Δ|", "equal")  # fmt: skip
    rows = [
        [
            f"{pair['left']} · {pair['right']}",
            _correlation(pair[level]["pearson"]),
            *([_correlation(pair[level]["spearman"])] if ranked else []),
            percent(pair[level]["sign"]["agreement"]),
            f"{pair[level]['sign']['opposite']:,}",
            number(pair[level]["difference"]["max"]),
            _share(pair[level], "identical"),
        ]
        for pair in comparison["pairs"]
    ]
    of = "kept responses" if ranked else comparison["population"]
    return TextTable(headings, rows, title=f"Agreement of {of}")


def _correlation(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _most_different(comparison: Json) -> Iterator[TextTable]:
    """Yield a table of the responses that differ the most for each pair that has any."""
    for pair in comparison["pairs"]:
        responses = pair["most_different"]
        if not responses:
            continue
        keys = {
            heading: key
            for heading, key in (("step", "step"), ("prompt", "prompt_id"))
            if responses[0][key] is not None
        }
        headings = ("row", *keys, "reward", pair["left"], pair["right"])
        rows = [
            [
                str(response["row"]),
                *(str(response[key]) for key in keys.values()),
                *(number(response[name]) for name in ("reward", "left", "right")),
            ]
            for response in responses
        ]
        text = [i for i, heading in enumerate(headings) if heading == "prompt"]
        yield TextTable(headings, rows, title="Largest differences", text=text)
