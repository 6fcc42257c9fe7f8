"""Preview beside the list: histograms of a step, extremes of a group, a response, a token."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlpost.analysis.responses.rollouts import rollout_view
from rlpost.analysis.responses.token_colors import COLOURS, NAMES, coloured_tokens, legend
from rlpost.analysis.responses.views import (
    facts,
    field_lines,
    group_text,
    heading,
    response_counts,
    shortened,
)
from rlpost.display.charts import bar
from rlpost.display.controls import printable, printable_line
from rlpost.display.text import aligned, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from rich.console import RenderableType

    from rlpost.analysis.browse.navigation import Navigation
    from rlpost.analysis.responses.index import Index
    from rlpost.analysis.responses.reader import Response
    from rlpost.io.keys import KeyColumn


_BINS = 12
_BAR = 28
_SHORT = 160  # tokens of a response in a group
_HEAD = "bold"
_MARK = "reverse"
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
        own = rows[index.step_rank[rows] == item]
        title = f"step {_step_of(index, own)}: {response_counts(index, own)}"
        return of_rows(index, index.counted(own), printable(title))
    if level == "groups":
        own = rows[index.group[rows] == item]
        best = own[np.argsort(-index.reward[own], kind="stable")]
        extremes = best if len(best) <= len(_ENDS) else best[[*_ENDS]]
        text = group_text(index, own)
        return of_group(navigation.reader.read(extremes.tolist()), colour, text)
    if level == "tokens":
        assert navigation.response is not None
        whole = of_response(navigation.response, colour, item)
        own = navigation.rollout
        return whole if own is None else Group(Text(own.title, style=_HEAD), whole)
    (response,) = navigation.reader.read([item])
    rollout = rollout_view(index, navigation.reader, item)
    if rollout is None:
        return of_response(response, colour, mark=mark)
    whole = of_response(rollout.marked(response), colour, mark=mark)
    return Group(rollout.table(), Text(rollout.shares, style="dim"), Text(), whole)


def _step_of(index: Index, rows: NDArray[np.int64]) -> str:
    step = index.step
    return "" if step is None else str(step.label(int(step.codes[rows[0]])))


def of_rows(index: Index, rows: NDArray[np.int64], title: str) -> RenderableType:
    """Return histograms of rewards and lengths, and means by domain, of rows that count."""
    parts: list[RenderableType] = [Text(title, style=_HEAD)]
    parts += _histogram("reward", index.reward[rows])
    parts += _histogram("policy tokens", index.total_length[rows])
    for name, values in index.measures.items():
        parts += _histogram(f"{NAMES[name]}, mean per response", values[rows])
    if index.domain is not None:
        parts += _by_domain(index.domain, index.reward[rows], rows)
    return Group(*parts)


def _histogram(name: str, values: NDArray[np.float64]) -> list[RenderableType]:
    values = values[np.isfinite(values)]
    if not len(values):
        return []
    distinct = np.unique(values)
    if len(distinct) <= _BINS:
        labels, counts = (
            [f"{v:g}" for v in distinct.tolist()],
            np.unique(values, return_counts=True)[1],
        )
    else:
        counts, edges = np.histogram(values, bins=_BINS)
        labels = [f"{a} to {b}" for a, b in itertools.pairwise(aligned(edges.tolist()))]
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    for label, count in zip(labels, counts.tolist(), strict=True):
        chart = Text(bar(count, counts.max(), _BAR), style="cyan")
        table.add_row(Text(label, style="dim"), chart, f"{count:,}")
    return [Text(f"\n{name}", style=_HEAD), table]


def _by_domain(
    domains: KeyColumn, reward: NDArray[np.float64], rows: NDArray[np.int64]
) -> list[RenderableType]:
    table = Table.grid(padding=(0, 2))
    codes = np.unique(domains.codes[rows]).tolist()
    every = [reward[domains.codes[rows] == code] for code in codes]
    means = aligned([None if np.isnan(own).any() else float(own.mean()) for own in every])
    for code, own, mean in zip(codes, every, means, strict=True):
        table.add_row(Text(printable_line(str(domains.label(code)))), f"{len(own):,}", mean)
    return [Text("\ndomain, responses, mean reward", style=_HEAD), table]


def of_group(responses: Sequence[Response], colour: str | None, title: str) -> RenderableType:
    """Return the title and the prompt of a group, and some of its responses, shortened."""
    parts: list[RenderableType] = [Text(title, style=_HEAD)]
    parts += [_prompt(responses[0])] if responses[0].prompt else []
    for one in responses:
        parts += [
            Text(f"\n{heading(one)}", style=_HEAD),
            Text(facts(one), style="dim"),
            _tokens(one, colour, None, limit=_SHORT),
        ]
    return Group(*parts)


def of_response(
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
    if colour in response.token_measures:
        shared = response.shared is not None and bool(response.shared.any())
        parts.append(legend(str(colour), shared=shared))
    parts.append(_tokens(response, colour, cursor, mark=mark))
    if cursor is None:
        parts += [Text(), *(Text(printable(line), style="dim") for line in field_lines(response))]
    return Group(*parts)


def _prompt(response: Response, mark: str = "") -> RenderableType:
    text = _marked(Text(printable(response.prompt)), mark)
    return Group(Text("\nprompt", style=_HEAD), Padding(text, (0, 0, 0, 2)))


def _marked(text: Text, mark: str) -> Text:
    if mark:
        text.highlight_words([mark], _MARK, case_sensitive=False)
    return text


def _tokens(
    response: Response,
    colour: str | None,
    cursor: int | None,
    *,
    limit: int | None = None,
    mark: str = "",
) -> RenderableType:
    known = colour if colour in response.token_measures else None
    first = max(0, (cursor or 0) - _AROUND)
    most = 4 * _AROUND if cursor is not None else limit
    line = _marked(coloured_tokens(response, known, cursor=cursor, first=first, limit=most), mark)
    if response.has_texts or not response.text:
        return line
    text = Text(printable(response.text if limit is None else shortened(response.text, 6 * limit)))
    if cursor is not None:
        return line
    return _marked(text, mark) if known is None else Group(_marked(text, mark), Text(), line)


def _token(response: Response, token: int) -> str:
    """Return the numbers of one token as text."""
    kind = "" if response.mask[token] else ", observation"
    values = [
        f"{NAMES[name]} {_number(float(response.token_measures[name][token]))}"
        for name in COLOURS
        if name in response.token_measures
    ]
    return f"token {token} of {len(response.token_texts)}{kind}: " + ", ".join(values)


def _number(value: float) -> str:
    return number(value if np.isfinite(value) else None)
