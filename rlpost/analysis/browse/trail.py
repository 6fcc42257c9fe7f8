"""Where one is: the way from the steps down to a token, and the moves along it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.browse import levels
from rlpost.analysis.browse.levels import Levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.browse.listing import Listing
    from rlpost.analysis.responses.index import Index
    from rlpost.analysis.responses.rows import Reader, Response


_UNSORTED = ("rewards", "text")  # columns that are pictures or texts


@dataclass
class Shelf:
    """One listing on the way down."""

    level: str
    of: int | None
    """The step whose groups, the group whose responses, the row whose tokens; None: all."""
    step: int | None
    """The rank of the step it lies in, where it lies in one."""
    listing: Listing
    cursor: int = 0

    @property
    def id(self) -> int | None:
        """What the cursor is on."""
        return self.listing.id(self.cursor) if len(self.listing) else None


class Trail:
    """The shelves from the top level to the current one.

    Args:
        index: of the input.
        reader: reads a response when its tokens are opened.
        colour: what colours tokens.
    """

    def __init__(self, index: Index, reader: Reader, colour: str | None) -> None:
        self.index = index
        self.reader = reader
        self.colour = colour
        self.levels = Levels(index, np.ones(len(index), dtype=np.bool_))
        self.response: Response | None = None
        self.shelves = [self._root()]

    @property
    def top(self) -> Shelf:
        """The current shelf."""
        return self.shelves[-1]

    def _root(self) -> Shelf:
        steps = len(np.unique(self.index.step_rank))
        if steps > 1:
            return self._shelf("steps", None, None)
        level = "groups" if self.index.prompt is not None else "responses"
        return self._shelf(level, None, None)

    def _shelf(self, level: str, of: int | None, step: int | None) -> Shelf:
        if level == "steps":
            listing = self.levels.steps()
        elif level == "groups":
            listing = self.levels.groups(step)
        elif level == "responses":
            listing = self.levels.responses(of, step)
        else:
            assert of is not None
            (self.response,) = self.reader.read([of])
            listing = levels.tokens(self.response, self.colour)
        return Shelf(level, of, step, listing)

    def open(self) -> bool:
        """Go down into what the cursor is on; False where there is nothing below."""
        shelf, item = self.top, self.top.id
        if item is None or shelf.level == "tokens":
            return False
        if shelf.level == "steps":
            below = "groups" if self.index.prompt is not None else "responses"
            self._push(self._shelf(below, None, item))
        elif shelf.level == "groups":
            step = int(self.index.step_rank[self._rows_of_group(item)[0]])
            self._push(self._shelf("responses", item, step))
        else:
            self._push(self._shelf("tokens", item, shelf.step))
        return True

    def _push(self, shelf: Shelf) -> None:
        self.shelves.append(shelf)

    def _rows_of_group(self, group: int) -> NDArray[np.int64]:
        return np.flatnonzero((self.index.group == group) & self.levels.kept)

    def back(self) -> bool:
        """Go up; False at the top level."""
        if len(self.shelves) == 1:
            return False
        self.shelves.pop()
        return True

    def flat(self, *, everywhere: bool = False) -> None:
        """List all responses: of the step one is in, or of all steps."""
        while self.top.level in ("responses", "tokens") and len(self.shelves) > 1:
            self.shelves.pop()
        if everywhere:
            del self.shelves[1:]
        step = self.top.id if self.top.level == "steps" else self.top.step
        if self.top.level != "responses":
            self._push(self._shelf("responses", None, None if everywhere else step))

    def sort(self, name: str | None, *, descending: bool) -> None:
        """Sort the current listing, the cursor staying on what it is on."""
        shelf, item = self.top, self.top.id
        shelf.listing = shelf.listing.sorted_by(name, descending=descending)
        shelf.cursor = 0 if item is None else shelf.listing.place_of(item) or 0

    def next_column(self) -> str | None:
        """The column to sort by after the current one; None: as they came."""
        names = [c.name for c in self.top.listing.columns if c.name not in _UNSORTED]
        if self.top.listing.by not in names:
            return names[0]
        place = names.index(str(self.top.listing.by)) + 1
        return names[place] if place < len(names) else None

    def sibling(self, delta: int) -> bool:
        """Go to the next or previous group, response or step beside the one one is in."""
        if len(self.shelves) == 1:
            return False
        above = self.shelves[-2]
        place = above.cursor + delta
        if not 0 <= place < len(above.listing):
            return False
        self.shelves.pop()
        above.cursor = place
        return self.open()

    def step(self, delta: int) -> bool:
        """Go to the next or previous step: of the same prompt, where one is in a group of it."""
        shelf = self.top
        if shelf.level == "steps":
            place = shelf.cursor + delta
            shelf.cursor = max(0, min(place, len(shelf.listing) - 1))
            return shelf.cursor == place
        if shelf.level == "tokens":
            return self._tokens_of_step(delta)
        if shelf.step is None:
            return False
        rows = self.levels.rows
        if shelf.of is not None and self.index.prompt is not None:
            prompt = self.index.prompt.codes
            rows = rows[prompt[rows] == prompt[self._rows_of_group(shelf.of)[0]]]
        ranks = np.unique(self.index.step_rank[rows])
        later = ranks[ranks > shelf.step] if delta > 0 else ranks[ranks < shelf.step][::-1]
        if not len(later):
            return False
        self._go_to(int(later[0]), rows)
        return True

    def _tokens_of_step(self, delta: int) -> bool:
        """The same place of the group of the next step: the response beside, over time."""
        kept = self.shelves.pop()
        place = self.top.cursor
        if self.top.of is None or not self.step(delta):
            self._push(kept)
            return False
        self.top.cursor = min(place, len(self.top.listing) - 1)
        return self.open()

    def _go_to(self, step: int, rows: NDArray[np.int64]) -> None:
        """Replace the shelves of a step by those of another one."""
        shelf = self.shelves.pop()
        by, descending = shelf.listing.by, shelf.listing.descending
        group = None
        if shelf.of is not None:
            group = int(self.index.group[rows[self.index.step_rank[rows] == step][0]])
            if self.top.level == "groups" and self.top.step is not None:
                self.top.step = step
                self.top.listing = self._shelf("groups", None, step).listing.sorted_by(
                    self.top.listing.by, descending=self.top.listing.descending
                )
            if self.top.level == "groups":
                self.top.cursor = self.top.listing.place_of(group) or 0
        steps = self.shelves[0]
        if steps.level == "steps":
            steps.cursor = steps.listing.place_of(step) or 0
        self._push(self._shelf(shelf.level, group, step))
        self.sort(by, descending=descending)
        self.top.cursor = min(shelf.cursor, max(0, len(self.top.listing) - 1))

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """List only these rows, from the same place on as far as it is still there."""
        self.levels = Levels(self.index, kept)
        old, self.shelves = self.shelves, []
        for place, shelf in enumerate(old):
            made = self._root() if place == 0 else self._shelf(shelf.level, shelf.of, shelf.step)
            if place and not len(made.listing):
                return
            self.shelves.append(made)
            self.sort(shelf.listing.by, descending=shelf.listing.descending)
            if shelf.id is not None:
                found = made.listing.place_of(shelf.id)
                made.cursor = found or 0
                if found is None:
                    return

    def where(self) -> list[str]:
        """The names on the way down, from the input to the current listing."""
        return [self._name(above, shelf) for above, shelf in pairwise(self.shelves)]

    def _name(self, above: Shelf, shelf: Shelf) -> str:
        """What was opened on a shelf to get to the next one."""
        step = above.listing.cells(above.cursor)[0] if len(above.listing) else ""
        if shelf.level == "responses" and shelf.of is None:
            return (
                f"step {step}, all" if above.level == "steps" and shelf.step is not None else "all"
            )
        if above.level == "steps":
            return f"step {step}"
        prompt = self.index.prompt
        if above.level == "groups" and prompt is not None and shelf.of is not None:
            row = self._rows_of_group(shelf.of)[0]
            return " ".join(str(prompt.label(int(prompt.codes[row]))).split())
        return f"row {above.id}"
