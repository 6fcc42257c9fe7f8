"""Single responses of a rollout file: a group side by side, one row, the highest and lowest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.responses import render as render_views
from rlpost.analysis.responses.index import MEASURES, build
from rlpost.analysis.responses.rows import Reader
from rlpost.analysis.responses.token_colors import COLOURS
from rlpost.display.text import number
from rlpost.errors import DataError, UsageError
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.analysis.responses.index import Index


_MOST_COMPARED = 10_000  # names among which the nearest is looked for


def show(
    inputs: Sequence[str],
    *,
    columns_map: Mapping[str, str],
    prompt: str | None = None,
    row: int | None = None,
    top: str | None = None,
    worst: bool = False,
    count: int = 5,
    colour: str | None = None,
    format: str = "table",  # noqa: A002 - the option's name
) -> None:
    """Print the chosen responses on stdout; exactly one of prompt, row, and top or worst chooses.

    Args:
        inputs: Parquet files, directories or globs.
        columns_map: role to column, as `--map` says.
        prompt: the id of a group: its responses, of every step, best reward first.
        row: the number of one row, counted from 0 over all inputs.
        top: `reward`, `kl`, `length` or `advantage`: the rows where it is highest.
        worst: the rows where it is lowest; of `reward` where `top` is None.
        count: how many rows of `top` and `worst`.
        colour: what colours tokens, `logprob`, `kl` or `advantage`; None: plain text.
        format: `table`, `json` or `markdown`.

    Raises:
        UsageError: none or several of the choices; an unknown measure or colour.
        DataError: no such prompt or row; the columns that a measure or colour needs are missing.
        ReadWriteError: an input can't be read.
    """
    if top is not None and top not in MEASURES:
        hint = closest(top, MEASURES) or f"; there are {', '.join(MEASURES)}"
        raise UsageError(f"--top {top}: no such measure{hint}")
    if colour is not None and colour not in COLOURS:
        hint = closest(colour, COLOURS) or f"; there are {', '.join(COLOURS)}"
        raise UsageError(f"--colour {colour}: no such colouring{hint}")
    if (prompt is not None) + (row is not None) + (top is not None or worst) != 1:
        raise UsageError("one of --prompt, --row, and --top or --worst is needed, and only one")
    index = build(inputs, columns_map)
    if colour is not None and not index.columns_for(colour):
        raise index.lacking(colour)
    if prompt is not None:
        title, rows = _group(index, prompt)
    elif row is not None:
        title, rows = _single(index, row)
    else:
        title, rows = _extremes(index, top or "reward", count, lowest=worst)
    responses = Reader(index, COLOURS).read(rows)
    render_views.show(title, responses, colour, format)


def _group(index: Index, prompt: str) -> tuple[str, list[int]]:
    """The rows of a prompt: step by step, best reward first."""
    rows = index.rows_of(prompt)
    if not len(rows):
        raise _no_prompt(index, prompt)
    rewards = index.reward[rows]
    order = np.lexsort((rows, -rewards, index.step_rank[rows]))
    steps = len(np.unique(index.step_rank[rows]))
    known = rewards[~np.isnan(rewards)]
    title = f"{render_views.shortened(prompt, 80)}: {len(rows)} responses"
    title += f" in {steps} steps" if steps > 1 else ""
    if len(known):
        deviation = f", std {number(float(known.std(ddof=1)))}" if len(known) > 1 else ""
        title += f", reward mean {number(float(known.mean()))}{deviation}"
    return title, rows[order].tolist()


def _no_prompt(index: Index, prompt: str) -> DataError:
    if index.prompt is None:
        return DataError(f"{index.source.name}: no column for group; --map group=COLUMN names one")
    labels = [str(label) for label in index.prompt.labels[:_MOST_COMPARED].to_pylist()]
    hint = closest(prompt, labels) or f"; there are {', '.join(labels[:5])} ..."
    return DataError(f"{index.source.name}: no prompt {prompt!r}{hint}")


def _single(index: Index, row: int) -> tuple[str, list[int]]:
    if not 0 <= row < len(index):
        raise DataError(
            f"{index.source.name}: no row {row}: there are {len(index)}, counted from 0"
        )
    return f"Row {row} of {len(index):,}", [row]


def _extremes(index: Index, measure: str, count: int, *, lowest: bool) -> tuple[str, list[int]]:
    """The rows where a measure is highest or lowest; the first of equal ones first."""
    if not index.columns_for(measure):
        raise index.lacking(measure)
    index.measure(measure)
    values = index.number(measure)
    known = np.flatnonzero(~np.isnan(values))
    order = np.argsort(values[known] if lowest else -values[known], kind="stable")
    rows = known[order[:count]]
    return f"The {len(rows)} {'lowest' if lowest else 'highest'} by {measure}", rows.tolist()
