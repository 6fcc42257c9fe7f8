"""Navigation: the opened levels from steps down to tokens, and the moves between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.browse import levels
from rlpost.analysis.browse.levels import Listings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.browse.listing import Listing
    from rlpost.analysis.responses.index import Index
    from rlpost.analysis.responses.reader import Response, ResponseReader


_UNSORTED = ("rewards", "text")  # columns that are pictures or texts


@dataclass
class Level:
    """An opened listing and its cursor."""

    level: str
    of: int | None
    """The step of the groups, the group of the responses or the row of the tokens; None: all."""
    step: int | None
    """The rank of its step; None: all steps."""
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
        self.levels = [self._root()]

    @property
    def top(self) -> Level:
        """The current level."""
        return self.levels[-1]

    def _root(self) -> Level:
        steps = len(np.unique(self.index.step_rank))
        if steps > 1:
            return self._shelf("steps", None, None)
        level = "groups" if "group" in self.index.keys else "responses"
        return self._shelf(level, None, None)

    def _shelf(self, level: str, of: int | None, step: int | None) -> Level:
        if level == "steps":
            listing = self.listings.steps()
        elif level == "groups":
            listing = self.listings.groups(step)
        elif level == "responses":
            listing = self.listings.responses(of, step)
        else:
            assert of is not None
            self.response = self.reader.read_whole(of)
            listing = levels.tokens(self.response, self.colour)
        return Level(level, of, step, listing)

    def open(self) -> bool:
        """Open the item under the cursor; return False if it cannot be opened."""
        level, item = self.top, self.top.id
        if item is None or level.level == "tokens":
            return False
        if level.level == "steps":
            below = "groups" if "group" in self.index.keys else "responses"
            self.levels.append(self._shelf(below, None, item))
        elif level.level == "groups":
            step = int(self.index.step_rank[self._rows_of_group(item)[0]])
            self.levels.append(self._shelf("responses", item, step))
        else:
            tokens = self._shelf("tokens", item, level.step)
            if not len(tokens.listing):
                return False
            self.levels.append(tokens)
        return True

    def _rows_of_group(self, group: int) -> NDArray[np.int64]:
        return np.flatnonzero((self.index.group == group) & self.listings.kept)

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
            self.levels.append(self._shelf("responses", None, None))

    def sort(self, name: str | None, *, descending: bool) -> None:
        """Sort the current listing; the cursor stays on its item."""
        level, item = self.top, self.top.id
        level.listing = level.listing.sorted_by(name, descending=descending)
        level.cursor = 0 if item is None else level.listing.place_of(item) or 0

    def next_column(self) -> str | None:
        """Return the column to sort by after the current one; None: the original order."""
        names = [c.name for c in self.top.listing.columns if c.name not in _UNSORTED]
        if self.top.listing.by not in names:
            return names[0]
        place = names.index(str(self.top.listing.by)) + 1
        return names[place] if place < len(names) else None

    def sibling(self, delta: int) -> bool:
        """Open the next or previous item of the level above; return False if there is none."""
        if len(self.levels) == 1:
            return False
        above = self.levels[-2]
        place = above.cursor + delta
        if not 0 <= place < len(above.listing):
            return False
        self.levels.pop()
        above.cursor = place
        return self.open()

    def step(self, delta: int) -> bool:
        """Go to the next or previous step, of the same prompt if a group is open.

        Tokens that are open become those of the response at the same position of the group.
        """
        opened, steps = self.levels, self.levels[0]
        if self.top is steps or self.top.step is None or steps.level != "steps":
            place = steps.cursor + delta
            possible = steps.level == "steps" and 0 <= place < len(steps.listing)
            steps.cursor = place if possible and self.top is steps else steps.cursor
            return possible and self.top is steps
        rows, group = (
            self.listings.rows,
            next((x.of for x in opened if x.level == "responses"), None),
        )
        if group is not None and "group" in self.index.keys:
            prompt = self.index.keys["group"].codes
            rows = rows[prompt[rows] == prompt[self._rows_of_group(group)[0]]]
        ranks = np.unique(self.index.step_rank[rows])
        later = ranks[ranks > self.top.step] if delta > 0 else ranks[ranks < self.top.step][::-1]
        if not len(later):
            return False
        self.levels = [steps]
        steps.cursor = steps.listing.place_of(int(later[0])) or 0
        for old in opened[1:]:
            if not self.open():
                break
            self.sort(old.listing.by, descending=old.listing.descending)
            self.top.cursor = max(0, min(old.cursor, len(self.top.listing) - 1))
            if old.level == "groups" and group is not None:
                code = int(self.index.group[rows[self.index.step_rank[rows] == later[0]][0]])
                self.top.cursor = self.top.listing.place_of(code) or 0
        return True

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """List only these rows, at the same position as far as it still exists."""
        self.listings = Listings(self.index, kept)
        old, self.levels = self.levels, []
        for place, level in enumerate(old):
            new = self._root() if place == 0 else self._shelf(level.level, level.of, level.step)
            if place and not len(new.listing):
                return
            self.levels.append(new)
            self.sort(level.listing.by, descending=level.listing.descending)
            if level.id is not None:
                found = new.listing.place_of(level.id)
                new.cursor = found or 0
                if found is None:
                    return

    def where(self) -> list[str]:
        """Return the names of the opened items, from the input to the current listing."""
        return [self._name(above, level) for above, level in pairwise(self.levels)]

    def _name(self, above: Level, level: Level) -> str:
        """Return the name of the item that was opened to reach a level."""
        if level.level == "responses" and level.step is None and level.of is None:
            return "all"
        if above.level == "steps":
            return f"step {above.listing.cells(above.cursor)[0]}" if len(above.listing) else "step"
        if above.level == "groups" and level.of is not None:
            row = int(self._rows_of_group(level.of)[0])
            return " ".join(str(self.index.label("group", row)).split())
        return f"row {above.id}"
