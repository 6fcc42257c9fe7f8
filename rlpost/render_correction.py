"""The off-policy correction in the rendered summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType
    from rich.table import Table

Json = dict[str, Any]


def correction_parts(
    summary: Json,
    table: Callable[..., Table],
    number: Callable[[float | None], str],
    percent: Callable[[float], str],
) -> list[RenderableType]:
    """A table of what was truncated, masked and rejected, and how far the policies are apart.

    Args:
        summary: of a run; without a correction there is nothing to show.
        table: makes an empty table of these headings.
        number: writes a number.
        percent: writes a share.
    """
    facts = summary.get("correction")
    if not facts:
        return []
    rates = table("off-policy correction", "tokens", "rate", "responses", "rate")
    for label, row in _rows(facts):
        rates.add_row(
            label,
            f"{row['tokens']:,}",
            percent(row["token_rate"]),
            f"{row['responses']:,}",
            percent(row["response_rate"]),
        )
    apart = Text("\n".join(_apart(facts, number, percent)))
    return [rates, apart] if rates.row_count else [apart]


def _apart(
    facts: Json, number: Callable[[float | None], str], percent: Callable[[float], str]
) -> Iterator[str]:
    kl, chi = facts["kl"], facts["chi_square"]
    yield f"KL(engine ‖ trainer): {number(kl['k1'])} (k1), {number(kl['k3'])} (k3) nats per token"
    yield f"χ²: {number(chi['token'])} per token, {number(chi['sequence'])} per response"
    if facts["ess"] is not None:
        yield f"effective sample size: {percent(facts['ess'])} of the weighed tokens"
    yield f"engine sure (p ≥ 0.5), trainer over 2 nats off: {facts['sure_but_wrong']:,} tokens"


def _rows(facts: Json) -> Iterator[tuple[str, Json]]:
    if facts["truncated"]:
        yield "weights truncated", facts["truncated"]
    if facts["masked"]:
        yield "weights masked", facts["masked"]
    for one in facts["filters"]:
        yield f"rejected by {one['filter']}", one
    if len(facts["filters"]) > 1:
        yield "rejected, all together", facts["rejected"]
