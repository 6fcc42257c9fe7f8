"""Navigation from steps down to tokens, and the preview of the item under the cursor."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.text import Text

from rlpost.analysis.browse import levels
from rlpost.analysis.browse.levels import Listings
from rlpost.analysis.responses.token_colors import NAMES, coloured_tokens, legend
from rlpost.analysis.responses.views import drawn, group_text, heading
from rlpost.display.controls import printable
from rlpost.display.text import number

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import RenderableType

    from rlpost.analysis.browse.listing import Listing
    from rlpost.analysis.responses.index import Index
    from rlpost.analysis.responses.reader import Response, ResponseReader


_UNSORTED = ("rewards", "text")  # columns that are pictures or texts


@dataclass
class Level:
    """An opened listing and its cursor."""

    level: str
    step: int | None
    """The rank of the step that it is in; None: all steps."""
    group: int | None
    """The group that it is in; None: all groups."""
    listing: Listing
    cursor: int = 0

    @property
    def id(self) -> int | None:
        """The id of the item under the cursor."""
        return self.listing.id(self.cursor) if len(self.listing) else None


class Navigation:
    """The opened levels from the top level to the current one.

    Args:
        index: of the input.
        reader: reads a response when its tokens are opened.
        colour: the measure for token colours.
    """

    def __init__(self, index: Index, reader: ResponseReader, colour: str | None) -> None:
        self.index = index
        self.reader = reader
        self.colour = colour
        self.listings = Listings(index, np.ones(len(index), dtype=np.bool_))
        self.response: Response | None = None
        """Whose tokens are open."""
        self._orders: dict[str, tuple[str | None, bool]] = {}
        """By level, the column that orders it, and whether it descends."""
        self.levels = [self._level(self._first_level())]

    @property
    def top(self) -> Level:
        """The current level."""
        return self.levels[-1]

    def _first_level(self) -> str:
        return "steps" if self.index.step_rank.any() else self._below_steps()

    def _below_steps(self) -> str:
        return "groups" if "group" in self.index.keys else "responses"

    def _level(
        self, level: str, step: int | None = None, group: int | None = None, row: int = 0
    ) -> Level:
        if level == "steps":
            listing = self.listings.steps()
        elif level == "groups":
            listing = self.listings.groups(step)
        elif level == "responses":
            listing = self.listings.responses(group, step)
        else:
            (self.response,) = self.reader.read([row])
            listing = levels.tokens(self.response, self.colour)
        name, descending = self._orders.get(level, (None, False))
        return Level(level, step, group, listing.sorted_by(name, descending=descending))

    def open(self) -> bool:
        """Open the item under the cursor; return False if it cannot be opened."""
        level, item = self.top, self.top.id
        if item is None or level.level == "tokens":
            return False
        if level.level == "steps":
            below = self._level(self._below_steps(), item)
        elif level.level == "groups":
            rows = np.flatnonzero(self.index.group == item)
            below = self._level("responses", int(self.index.step_rank[rows[0]]), item)
        else:
            below = self._level("tokens", level.step, level.group, item)
        if len(below.listing):
            self.levels.append(below)
        return len(below.listing) > 0

    def back(self) -> bool:
        """Close the current level; return False at the top level."""
        if len(self.levels) == 1:
            return False
        self.levels.pop()
        return True

    def flat(self) -> None:
        """List all responses."""
        del self.levels[1:]
        if self.top.level != "responses":
            self.levels.append(self._level("responses"))

    def sort(self, name: str | None, *, descending: bool) -> None:
        """Sort the listings of the current level; the cursor stays on its item."""
        level, item = self.top, self.top.id
        self._orders[level.level] = (name, descending)
        level.listing = level.listing.sorted_by(name, descending=descending)
        level.cursor = 0 if item is None else level.listing.place_of(item) or 0

    def next_column(self) -> str | None:
        """Return the column to sort by after the current one; None: the original order."""
        listing = self.top.listing
        names = [None, *(x.name for x in listing.columns if x.name not in _UNSORTED), None]
        return names[names.index(listing.by) + 1]

    def sibling(self, delta: int) -> bool:
        """Open the next or previous item of the level above; return False if there is none."""
        if len(self.levels) == 1 or not 0 <= (place := self.levels[-2].cursor + delta) < len(
            self.levels[-2].listing
        ):
            return False
        self.levels.pop()
        self.top.cursor = place
        return self.open()

    def step(self, delta: int) -> bool:
        """Go to the next or previous step, of the same prompt if a group is open.

        What is open becomes that of the item at the same place.
        """
        opened, steps, rows = self.levels, self.levels[0], self.listings.rows
        if steps.level != "steps" or self.top.step is None:
            place = steps.cursor + delta
            moves = self.top is steps and steps.level == "steps" and 0 <= place < len(steps.listing)
            steps.cursor = place if moves else steps.cursor
            return moves
        if self.top.group is not None:
            prompt = self.index.keys["group"].codes
            rows = rows[prompt[rows] == prompt[self.index.group == self.top.group][0]]
        ranks = np.unique(self.index.step_rank[rows])
        later = ranks[ranks > self.top.step] if delta > 0 else ranks[ranks < self.top.step][::-1]
        if not len(later):
            return False
        group = self.index.group[rows[self.index.step_rank[rows] == later[0]][0]]
        steps.cursor = steps.listing.place_of(int(later[0])) or 0
        self.levels = [steps]
        for old in opened[1:]:
            if not self.open():
                break
            same = self.top.listing.place_of(int(group)) if old is not opened[-1] else None
            place = same if old.level == "groups" and same is not None else old.cursor
            self.top.cursor = min(place, len(self.top.listing) - 1)
        return True

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """List only these rows, at the same position as far as it still exists."""
        self.listings = Listings(self.index, kept)
        old = self.levels
        self.levels = [self._level(old[0].level)]
        for level, below in zip(old, [*old[1:], None], strict=True):
            place = None if level.id is None else self.top.listing.place_of(level.id)
            self.top.cursor = place or 0
            if below is None or (place is None and below.group is not None):
                return
            if below.level == "responses" and below.step is None and level.level != "groups":
                self.flat()
            elif place is None or not self.open():
                return

    def where(self) -> list[str]:
        """Return the names of the opened items, from the input to the current listing."""
        return [self._name(above, level) for above, level in pairwise(self.levels)]

    def _name(self, above: Level, level: Level) -> str:
        """Return the name of the item that was opened to reach a level."""
        if level.level == "responses" and level.step is None and level.group is None:
            return "all"
        if above.level == "steps":
            return f"step {self.index.step_name(level.step or 0)}"
        if above.level == "groups" and level.group is not None:
            row = int(np.flatnonzero(self.index.group == level.group)[0])
            return " ".join(str(self.index.label("group", row)).split())
        return f"row {self.index.row_name(above.id or 0)}"


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
