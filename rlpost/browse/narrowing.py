"""Which responses are listed: those that a filter and a search leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from rlpost.browse import filters, search
from rlpost.errors import DataError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.browse.index import Index

Asked = Literal["search", "filter"]


class Narrowing:
    """A filter line, a text that is searched for, and the rows that fulfil both.

    Args:
        index: of the input.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.texts: dict[Asked, str] = {"search": "", "filter": ""}
        self._kept: dict[Asked, NDArray[np.bool_]] = {}

    @property
    def kept(self) -> NDArray[np.bool_]:
        """[N] the rows to list."""
        every = np.ones(len(self.index), dtype=np.bool_)
        for kept in self._kept.values():
            every &= kept
        return every

    def ask(self, what: Asked, text: str) -> None:
        """Take a new filter or search; an empty one asks for nothing. May stream columns.

        Raises:
            UsageError: the filter is wrong, or nothing would be left; the old one stays.
            DataError: the input has no text to search, or no column for what is filtered by.
        """
        others = {name: kept for name, kept in self._kept.items() if name != what}
        if text:
            others[what] = self._rows(what, text)
            if not np.logical_and.reduce([*others.values()]).any():
                raise UsageError(f"no response: {text}")
        self.texts[what], self._kept = text, others

    def _rows(self, what: Asked, text: str) -> NDArray[np.bool_]:
        if what == "filter":
            return filters.kept_by(text, self.index)
        if not search.text_columns(self.index):
            raise DataError(f"{self.index.source.name}: there is no column of text to search")
        return search.rows_with(text, self.index)

    def clear(self) -> None:
        """List everything again."""
        self.texts = {"search": "", "filter": ""}
        self._kept = {}
