"""The table of a sweep of `rlpost loss`: a row for each setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Json = dict[str, Any]
_GAP = 2  # blanks between the columns of a table


def setting_name(setting: Json) -> str:
    """Return the swept options of a setting."""
    return ", ".join(f"{name} {_value(value)}" for name, value in setting["swept"].items())


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
    swept = [tuple(map(_value, setting["swept"].values())) for setting in configs]
    rows = [(*values, *row) for values, row in zip(swept, cells, strict=True)]
    text = tuple(range(len(names)))
    table = TextTable((*names, *headings), rows, notes=notes, text=text)
    if _width(table) > width:  # names may be below their rows
        labels = ((f"{index}", setting_name(setting)) for index, setting in enumerate(configs, 1))
        rows = [(*label, *row) for label, row in zip(labels, cells, strict=True)]
        table = TextTable(("", "setting", *headings), rows, notes=notes, text=(0, 1))
    return table


def _columns(configs: Sequence[Json]) -> dict[str, list[str]]:
    """Return the columns of numbers by heading."""
    more = [
        x for x in ("dual", "selected") if any(setting["clip"][x]["tokens"] for setting in configs)
    ]
    columns = {}
    if len({setting["tokens"] for setting in configs}) > 1:
        columns["tokens"] = [f"{setting['tokens']:,}" for setting in configs]
    columns["zero grad"] = [percent(setting["no_gradient"]["fraction"]) for setting in configs]
    for side in ("low", "high", *more):
        columns[side] = [percent(setting["clip"][side]["fraction"]) for setting in configs]
    columns["ESS"] = [_percent(setting["gradient"]["ess"]) for setting in configs]
    columns["cosine"] = aligned([setting["gradient"]["cosine"] for setting in configs])
    return columns | {"mean loss": aligned([setting["loss"]["total"] for setting in configs])}


def _percent(share: float | None) -> str:
    return "–" if share is None else percent(share)


def _notes(configs: Sequence[Json]) -> Iterator[str]:
    """Yield what the columns are."""
    if len({setting["tokens"] for setting in configs}) > 1:
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
