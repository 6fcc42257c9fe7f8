"""The topic `masks`: observation tokens, and responses that are left out of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.analysis.inspect.about.base import page_of, topic, without_column
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, percent
from rlpost.pipeline.data import ATTEMPTS

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts, MaskFacts
    from rlpost.display.page import Page


@topic
def masks(facts: Facts) -> Page:
    """Masks: observation tokens, and where in the responses they are."""
    if facts.masks is None:
        return page_of(facts, "masks", [], without_column("mask"))
    lines = [*_lines(facts.masks, facts.row_noun), *left_out_lines(facts)]
    return page_of(facts, "masks", [TextTable(title="Masks", lines=lines)], "")


def _lines(masks: MaskFacts, noun: str) -> list[str]:
    share = percent(masks.observation_share)
    if not masks.with_observations:
        return [f"{share} of tokens are observations"]
    places = {"at the end": masks.trailing, "at the start": masks.leading, "inside": masks.gaps}
    counts = ", ".join(f"{count:,} {place}" for place, count in places.items())
    several = sum(places.values()) > masks.with_observations
    lines = [
        f"{share} of tokens are observations, in {counted(masks.with_observations, noun)}",
        f"{noun}s with observations: {counts}{'; some in several places' if several else ''}",
    ]
    if masks.empty:
        lines.append(f"{counted(masks.empty, noun)} without a policy token")
    return lines


def left_out_lines(facts: Facts) -> list[str]:
    """Return what masks and later attempts of the run leave out; none if that is nothing."""
    lines = []
    if facts.left_out:
        column, rows = facts.roles["sample_mask"].column, counted(facts.left_out, facts.row_noun)
        where = "left out here, as of `rlpost advantages`"
        if "left_out:sample_mask" not in facts.facts:
            where = f"count here, but not in training (--map sample_mask={column}: not here either)"
        empty = facts.masks is not None and facts.masks.empty
        both = "; some may have no policy token either" if empty else ""
        lines.append(f"{rows} with `{column}` 0 {where}{both}")
    if replaced := facts.whole("left_out:superseded")["total"]:
        columns = " and ".join(facts.roles[role].column for role in ATTEMPTS if role in facts.roles)
        lines.append(f"{counted(replaced, 'row')} of older attempts (`{columns}`) left out")
    return lines
