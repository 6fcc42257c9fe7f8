"""The table of a sweep of `rlpost loss`: a row for each setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Json = dict[str, Any]
_GAP = 2  # blanks between the columns of a table


def setting_name(one: Json) -> str:
    """Return the swept options of a setting."""
    return ", ".join(f"{name} {_value(value)}" for name, value in one["swept"].items())


def sweep_table(summary: Json, width: int) -> TextTable:
    """Return the table of settings.

    Args:
        summary: of a sweep.
        width: of the table; if it is wider, settings have numbers, and a column of names.
    """
    configs = summary["settings"]
    columns, notes = _columns(configs), [*_notes(configs)]
    headings, cells = [*columns], [*zip(*columns.values(), strict=True)]
    names = list(configs[0]["swept"])
    swept = [tuple(map(_value, one["swept"].values())) for one in configs]
    rows = [(*values, *row) for values, row in zip(swept, cells, strict=True)]
    text = tuple(range(len(names)))
    table = TextTable((*names, *headings), rows, notes=notes, text=text)
    if _width(table) > width:  # names may be below their rows
        labels = ((f"{index}", setting_name(one)) for index, one in enumerate(configs, 1))
        rows = [(*label, *row) for label, row in zip(labels, cells, strict=True)]
        table = TextTable(("", "setting", *headings), rows, notes=notes, text=(0, 1))
    return table


def _columns(configs: Sequence[Json]) -> dict[str, list[str]]:
    """Return the columns of numbers by heading."""
    more = [x for x in ("dual", "selected") if any(one["clip"][x]["tokens"] for one in configs)]
    columns = {}
    if len({one["tokens"] for one in configs}) > 1:
        columns["tokens"] = [f"{one['tokens']:,}" for one in configs]
    columns["zero grad"] = [percent(one["no_gradient"]["fraction"]) for one in configs]
    for side in ("low", "high", *more):
        columns[side] = [percent(one["clip"][side]["fraction"]) for one in configs]
    columns["ESS"] = [_percent(one["gradient"]["ess"]) for one in configs]
    columns["cosine"] = aligned([one["gradient"]["cosine"] for one in configs])
    return columns | {"mean loss": aligned([one["loss"]["total"] for one in configs])}


def _percent(share: float | None) -> str:
    return "–" if share is None else percent(share)


def _notes(configs: Sequence[Json]) -> Iterator[str]:
    """Yield what the columns are."""
    if len({one["tokens"] for one in configs}) > 1:
        yield "tokens: policy tokens that the correction accepts, of which the shares are."
    yield "low, high: tokens clipped or masked below or above a bound."
    yield "zero grad: tokens with zero gradient. g: gradient ∂L/∂log π of a policy token."
    yield "ESS: effective sample size of |g|, (Σ|g|)²/(nΣg²) of the n policy tokens."
    yield f"cosine: between g and that of {setting_name(configs[0])}."


def _width(table: TextTable) -> int:
    columns = zip(table.headings, *table.rows, strict=True)
    return sum(max(map(len, column)) + _GAP for column in columns) - _GAP


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
