"""What stands beside the list: a step's histograms, a group's extremes, a response, a token."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlpost.analysis.browse.listing import decimal
from rlpost.analysis.responses.render import facts, field_lines, heading, shortened
from rlpost.analysis.responses.token_colors import COLOURS, NAMES, legend, strip
from rlpost.io.text import printable, printable_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from rich.console import RenderableType

    from rlpost.analysis.browse.trail import Trail
    from rlpost.analysis.responses.index import Index, Keys
    from rlpost.analysis.responses.rows import Response


_BINS = 12
_BAR = 28
_SHORT = 160  # tokens of a response among others
_HEAD = "bold"
_MARK = "reverse"
_AROUND = 150  # tokens before the cursor
_ENDS = (0, 1, -2, -1)  # the best and the worst of a group


def beside(trail: Trail, level: str, item: int | None, mark: str = "") -> RenderableType:
    """What is shown of an item of a level; reads the responses that it needs.

    Args:
        trail: where one is.
        level: as of a listing.
        item: what the cursor is on.
        mark: a text that was searched for, marked where it is.

    Raises:
        ReadWriteError: the input can no longer be read.
    """
    index, rows, colour = trail.index, trail.levels.rows, trail.colour
    if item is None:
        return Text("nothing here", style="dim")
    if level == "steps":
        own = rows[index.step_rank[rows] == item]
        return of_rows(index, own, _title(index, own))
    if level == "groups":
        own = rows[index.group[rows] == item]
        best = own[np.argsort(-index.reward[own], kind="stable")]
        some = best if len(best) <= len(_ENDS) else best[[*_ENDS]]
        return of_group(trail.reader.read(some.tolist()), colour)
    if level == "tokens":
        assert trail.response is not None
        return of_response(trail.response, colour, item)
    (response,) = trail.reader.read([item])
    return of_response(response, colour, mark=mark)


def _title(index: Index, rows: NDArray[np.int64]) -> str:
    count = f"{len(rows):,} response{'' if len(rows) == 1 else 's'}"
    return printable(f"step {_step_of(index, rows)}: {count}")


def _step_of(index: Index, rows: NDArray[np.int64]) -> str:
    step = index.step
    return "" if step is None else str(step.label(int(step.codes[rows[0]])))


def of_rows(index: Index, rows: NDArray[np.int64], title: str) -> RenderableType:
    """Histograms of rewards and lengths of some rows, and means by domain."""
    parts: list[RenderableType] = [Text(title, style=_HEAD)]
    parts += _histogram("reward", index.reward[rows])
    parts += _histogram("policy tokens", index.length[rows].astype(np.float64))
    for name, values in index.measures.items():
        parts += _histogram(f"{NAMES[name]}, mean of a response", values[rows])
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
        labels = [f"{decimal(a)} to {decimal(b)}" for a, b in itertools.pairwise(edges)]
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    for label, count in zip(labels, counts.tolist(), strict=True):
        bar = "█" * round(_BAR * count / counts.max()) or ("▏" if count else "")
        table.add_row(Text(label, style="dim"), Text(bar, style="cyan"), f"{count:,}")
    return [Text(f"\n{name}", style=_HEAD), table]


def _by_domain(
    domains: Keys, reward: NDArray[np.float64], rows: NDArray[np.int64]
) -> list[RenderableType]:
    table = Table.grid(padding=(0, 2))
    for code in np.unique(domains.codes[rows]).tolist():
        own = reward[domains.codes[rows] == code]
        mean = float(own.mean()) if len(own) else float("nan")
        table.add_row(
            Text(printable_line(str(domains.label(code)))), f"{len(own):,}", decimal(mean)
        )
    return [Text("\ndomain, responses, mean reward", style=_HEAD), table]


def of_group(responses: Sequence[Response], colour: str | None) -> RenderableType:
    """The prompt of a group, and some of its responses in short."""
    parts: list[RenderableType] = [_prompt(responses[0])] if responses[0].prompt else []
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
    """A response: prompt, tokens in their colours, and the row's other columns.

    With a cursor, that token's numbers and the tokens around it.
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
    if colour in response.colours:
        parts.append(legend(str(colour)))
    parts.append(_tokens(response, colour, cursor, mark=mark))
    if cursor is None:
        parts += [Text(), *(Text(printable(line), style="dim") for line in field_lines(response))]
    return Group(*parts)


def _prompt(response: Response, mark: str = "") -> RenderableType:
    text = _marked(Text(printable(response.prompt)), mark)
    return Group(Text("\nprompt", style=_HEAD), Padding(text, (0, 0, 0, 2)))


def _marked(text: Text, words: str) -> Text:
    if words:
        text.highlight_words([words], _MARK, case_sensitive=False)
    return text


def _tokens(
    response: Response,
    colour: str | None,
    cursor: int | None,
    *,
    limit: int | None = None,
    mark: str = "",
) -> RenderableType:
    known = colour if colour in response.colours else None
    first = max(0, (cursor or 0) - _AROUND)
    most = 4 * _AROUND if cursor is not None else limit
    line = _marked(strip(response, known, cursor=cursor, first=first, limit=most), mark)
    if response.words or not response.text:
        return line
    text = Text(printable(response.text if limit is None else shortened(response.text, 6 * limit)))
    if cursor is not None:
        return line
    return _marked(text, mark) if known is None else Group(_marked(text, mark), Text(), line)


def _token(response: Response, place: int) -> str:
    """One token's numbers."""
    own = "" if response.mask[place] else ", observation"
    values = [
        f"{NAMES[name]} {decimal(float(response.colours[name][place]))}"
        for name in COLOURS
        if name in response.colours
    ]
    return f"token {place} of {len(response.pieces)}{own}: " + ", ".join(values)
