"""Preview beside the list: counts of a step, extremes of a group, a response, a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.text import Text

from rlpost.analysis.responses.token_colors import NAMES, coloured_tokens, legend
from rlpost.analysis.responses.views import drawn, group_text, heading
from rlpost.display.controls import printable
from rlpost.display.text import number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rlpost.analysis.browse.navigation import Navigation
    from rlpost.analysis.responses.reader import Response


_SHORT = 160  # tokens of a response in a group
_AROUND = 150  # tokens before the cursor
_ENDS = (0, 1, -2, -1)  # the best and the worst of a group


def preview_of(
    navigation: Navigation, level: str, item: int | None, mark: str = ""
) -> RenderableType:
    """Return the preview of an item; reads the responses that it needs.

    Args:
        navigation: the current position.
        level: the level of the listing.
        item: the item under the cursor.
        mark: a search text to highlight.

    Raises:
        ReadWriteError: the input is no longer readable.
    """
    index, rows, colour = navigation.index, navigation.listings.rows, navigation.colour
    if item is None:
        return Text("nothing here", style="dim")
    if level == "tokens":
        assert navigation.response is not None
        return _token(navigation.response, colour, item)
    if level == "responses":
        return Group(*drawn(navigation.reader.read([item]), colour, mark=mark, gap="\n"))
    rows = rows[(index.step_rank if level == "steps" else index.group)[rows] == item]
    step = f"step {index.step_name(item)}: " if level == "steps" else ""
    title = Text(printable(f"{step}{group_text(index, rows)}"), style="bold")
    if level == "steps":
        return title
    best = rows[np.argsort(-index.reward[rows], kind="stable")]
    extremes = best if len(best) <= len(_ENDS) else best[[*_ENDS]]
    return Group(title, *drawn(navigation.reader.read(extremes.tolist()), colour, most=_SHORT))


def _token(response: Response, colour: str | None, token: int) -> RenderableType:
    """Return the numbers of one token, and the tokens around it."""
    kind = "" if response.mask[token] else ", observation"
    values = [
        f"{NAMES[name]} {number(float(x[token]) if np.isfinite(x[token]) else None)}"
        for name, x in response.token_measures.items()
    ]
    text = f"token {token} of {len(response.token_texts)}{kind}: {', '.join(values)}"
    rollout = "" if response.rollout is None else f"{response.rollout.title}\n"
    parts = [Text(f"{rollout}{heading(response)}\n{text}", style="bold"), Text()]
    known = colour if colour in response.token_measures else None
    parts += [] if known is None else [legend(known)]
    first = max(0, token - _AROUND)
    line = coloured_tokens(response, known, cursor=token, first=first, limit=4 * _AROUND)
    return Group(*parts, line)
