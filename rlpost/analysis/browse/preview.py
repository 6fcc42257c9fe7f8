"""Preview beside the list: counts of a step, extremes of a group, a response, a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from rlpost.analysis.responses.rollouts import rollout_view
from rlpost.analysis.responses.token_colors import NAMES, coloured_tokens, legend
from rlpost.analysis.responses.views import body, facts, field_lines, group_text, heading
from rlpost.display.controls import printable
from rlpost.display.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from rlpost.analysis.browse.navigation import Navigation
    from rlpost.analysis.responses.reader import Response


_SHORT = 160  # tokens of a response in a group
_HEAD = "bold"
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
    if level == "steps":
        rows = rows[index.step_rank[rows] == item]
        step = "" if index.step is None else str(index.step.label(int(index.step.codes[rows[0]])))
        return Text(printable(f"step {step}: {group_text(index, rows)}"), style=_HEAD)
    if level == "groups":
        rows = rows[index.group[rows] == item]
        best = rows[np.argsort(-index.reward[rows], kind="stable")]
        extremes = best if len(best) <= len(_ENDS) else best[[*_ENDS]]
        return _group(navigation.reader.read(extremes.tolist()), colour, group_text(index, rows))
    if level == "tokens":
        assert navigation.response is not None
        whole = _response(navigation.response, colour, item)
        rollout = navigation.rollout
        return whole if rollout is None else Group(Text(rollout.title, style=_HEAD), whole)
    (response,) = navigation.reader.read([item])
    rollout = rollout_view(index, navigation.reader, item)
    if rollout is None:
        return _response(response, colour, mark=mark)
    whole = _response(rollout.marked(response), colour, mark=mark)
    return Group(rollout.table(), Text(rollout.shares, style="dim"), Text(), whole)


def _group(responses: Sequence[Response], colour: str | None, title: str) -> RenderableType:
    """Return the title and the prompt of a group, and some of its responses, shortened."""
    parts: list[RenderableType] = [Text(title, style=_HEAD)]
    parts += [_prompt(responses[0])] if responses[0].prompt else []
    for response in responses:
        parts += [
            Text(f"\n{heading(response)}", style=_HEAD),
            Text(facts(response), style="dim"),
            body(response, colour, limit=_SHORT),
        ]
    return Group(*parts)


def _response(
    response: Response, colour: str | None, cursor: int | None = None, *, mark: str = ""
) -> RenderableType:
    """Return a response: prompt, coloured tokens, and the row's other columns.

    With a cursor: the numbers of that token and the tokens around it.
    """
    parts: list[RenderableType] = [
        Text(heading(response), style=_HEAD),
        Text(facts(response), style="dim"),
    ]
    if cursor is not None:
        parts.append(Text(_token(response, cursor), style=_HEAD))
    elif response.prompt:
        parts.append(_prompt(response, mark))
    parts.append(Text())
    known = colour if colour in response.token_measures else None
    if known is not None:
        shared = response.shared is not None and bool(response.shared.any())
        parts.append(legend(known, shared=shared))
    if cursor is not None:
        first = max(0, cursor - _AROUND)
        line = coloured_tokens(response, known, cursor=cursor, first=first, limit=4 * _AROUND)
        return Group(*parts, line)
    lines = [Text(printable(line), style="dim") for line in field_lines(response)]
    return Group(*parts, body(response, colour, mark=mark), Text(), *lines)


def _prompt(response: Response, mark: str = "") -> RenderableType:
    text = Text(printable(response.prompt))
    if mark:
        text.highlight_words([mark], "reverse", case_sensitive=False)
    return Group(Text("\nprompt", style=_HEAD), Padding(text, (0, 0, 0, 2)))


def _token(response: Response, token: int) -> str:
    """Return the numbers of one token as text."""
    kind = "" if response.mask[token] else ", observation"
    numbers = {name: float(values[token]) for name, values in response.token_measures.items()}
    values = [
        f"{NAMES[name]} {number(value if np.isfinite(value) else None)}"
        for name, value in numbers.items()
    ]
    return f"token {token} of {len(response.token_texts)}{kind}: " + ", ".join(values)
