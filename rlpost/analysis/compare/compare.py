"""Comparison of advantages: of two or more files, or of several recipes on one input."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.compare import matching
from rlpost.analysis.compare.agreement import Agreement, ValueStats, spearman
from rlpost.analysis.compare.sides import (
    POPULATION,
    RESPONSES,
    FileSide,
    RecipeSide,
    file_side,
)
from rlpost.analysis.difference import align, finite
from rlpost.analysis.responses import columns as lists
from rlpost.display.reporter import SilentReporter
from rlpost.errors import DataError, UsageError
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.system import cores, keep_freed_memory
from rlpost.io.threads import MOST_WORKERS, map_ordered
from rlpost.recipe.input_columns import resolve_input
from rlpost.recipe.presets import differences

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.compare.matching import Match, RowKeys
    from rlpost.analysis.compare.sides import EffectiveRecipe, Side
    from rlpost.analysis.difference import ColumnChunk
    from rlpost.display.reporter import Reporter
    from rlpost.io.parquet.source import TableSource
    from rlpost.io.paths import PathText
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap

    Numbers = NDArray[np.float64]


SCHEMA_VERSION = 1


_ROUNDING = 1e-6  # advantages are float32


Json = dict[str, Any]


def compare_files(
    paths: Sequence[PathText],
    columns_map: Mapping[str, str],
    *,
    column: str | None,
    count: int,
    names: Sequence[str] | None = None,
    reporter: Reporter | None = None,
) -> Json:
    """Compare the advantages of two or more inputs; see `rlpost.compare`.

    Each path is an input: a file, a directory or a glob. `names` are those of temporary paths.
    """
    if len(paths) == 1:
        raise UsageError(
            f"{paths[0]}: a comparison needs another input, or --preset, --config, "
            "--estimator or --set"
        )
    sides = [file_side(_source([path]), columns_map, column) for path in paths]
    short = [Path(str(path)).name for path in names or paths]
    if len(set(short)) == len(short):
        sides = [replace(side, name=name) for side, name in zip(sides, short, strict=True)]
    rows = [matching.read_keys(side.source, side.columns) for side in sides]
    return compare(sides, rows, _mask(sides[0].source, sides[0].columns), count, reporter)


def compare_recipes(
    paths: Sequence[PathText],
    named_recipes: Sequence[tuple[str, Recipe]],
    columns_map: Mapping[str, str],
    *,
    column: str | None,
    count: int,
    reporter: Reporter | None = None,
) -> Json:
    """Compare the advantages of recipes on one input; see `rlpost.compare`.

    The recipes run in parallel, chunk by chunk, and write no files.
    """
    from rlpost.api import Options  # noqa: PLC0415 - slow to import
    from rlpost.pipeline.device import single_threaded  # noqa: PLC0415
    from rlpost.pipeline.run import bind  # noqa: PLC0415

    source = _source(paths)
    columns = resolve_input(source, columns_map)
    options = Options(workers=max(1, cores() // len(named_recipes)))
    plans = [bind(source, recipe) for _, recipe in named_recipes]
    names = [name for name, _ in named_recipes]
    sides: list[Side] = [RecipeSide(*pair, options) for pair in zip(names, plans, strict=True)]
    mask = _mask(source, columns)
    if len(sides) == 1:
        sides.insert(0, file_side(source, columns_map, column))
    elif all(_mask(source, plan.columns) == mask for plan in plans):
        mask = None  # no side keeps another token
    rows = matching.read_keys(source, columns)
    with single_threaded():
        return compare(sides, [rows], mask, count, reporter)


def _source(paths: Sequence[PathText]) -> Source:
    return Source(find_inputs(paths))


def _mask(source: Source, columns: ColumnMap) -> tuple[Source, str] | None:
    return (source, columns.column("mask")) if "mask" in columns else None


def compare(
    sides: Sequence[Side],
    inputs: Sequence[RowKeys],
    mask: tuple[Source, str] | None,
    count: int,
    reporter: Reporter | None = None,
) -> Json:
    """Compare the advantages of two or more sides.

    Args:
        sides: at least two.
        inputs: the keys of each side's rows; a single one if all sides have the same input.
        mask: source and column of the mask of the first side; None: every token counts.
        count: the number of responses that differ the most to list for each pair.
        reporter: gets the progress.

    Returns:
        What `rlpost.compare` returns, as a plain mapping.

    Raises:
        DataError: the rows do not match; or as the sides' inputs.
    """
    keep_freed_memory()
    matched = matching.match(inputs) if len(inputs) > 1 else None
    totals, by_response = _ComparisonTotals(len(sides)), any(side.by_response for side in sides)
    chunks = align(_advantage_columns(sides, inputs, matched, mask))
    of_chunk = partial(_ComparisonTotals.of, masked=mask is not None, by_response=by_response)
    reporter = reporter or SilentReporter()
    reporter.start("compare", len(matched.rows[0]) if matched else inputs[0].count)
    for part in map_ordered(of_chunk, chunks, min(cores(), MOST_WORKERS)):
        totals.add(part)
        reporter.advance(len(part.means[0][0]))
    means = [np.concatenate(parts) if parts else np.zeros(0) for parts in totals.means]
    rows = matched.rows[0] if matched else np.arange(inputs[0].count)
    if len(means[0]) != len(rows):
        raise DataError(f"{inputs[0].name}: {len(means[0])} of {len(rows)} rows were read")
    compared = next((side.column for side in sides if isinstance(side, FileSide)), "advantages")
    return {
        "schema_version": SCHEMA_VERSION,
        "inputs": [*dict.fromkeys(side.source.name for side in sides)],
        "recipe_differences": recipe_differences(sides, compared),
        "rows": _row_facts(matched, inputs, len(rows), totals),
        "warnings": [text for side in sides for text in side.warnings()],
        "population": RESPONSES if by_response else POPULATION,
        "sides": [
            {"name": side.name, "advantage": stats.facts()}
            for side, stats in zip(sides, totals.stats, strict=True)
        ],
        "pairs": [
            {
                "left": sides[left].name,
                "right": sides[right].name,
                "responses": {
                    **Agreement.of(means[left], means[right]).facts(),
                    "spearman": spearman(means[left], means[right]),
                },
                "tokens": None if by_response else agreement.facts(),
                "most_different": _most_different(
                    means[left], means[right], rows, inputs[0], sides[0].source, count
                ),
            }
            for (left, right), agreement in totals.pairs.items()
        ],
    }


class _ComparisonTotals:
    """Statistics of all sides and pairs, added up chunk by chunk."""

    def __init__(self, sides: int) -> None:
        self.pairs = {pair: Agreement() for pair in combinations(range(sides), 2)}
        self.stats = [ValueStats() for _ in range(sides)]
        self.means: list[list[Numbers]] = [[] for _ in range(sides)]
        self.unequal = 0
        """Rows whose lists differ in length; they count for responses, not for tokens."""

    @classmethod
    def of(
        cls, columns: Sequence[ColumnChunk], *, masked: bool, by_response: bool = False
    ) -> _ComparisonTotals:
        """Return the statistics of the same rows of every side; if masked, the mask is last.

        By response, a side's numbers are the means of responses, and there are none of tokens.
        """
        beside = (columns[-1].offsets, columns[-1].values) if masked else None
        columns = columns[:-1] if masked else columns
        totals, masks, chosen = cls(len(columns)), [], []
        for i, column in enumerate(columns):
            values, offsets = column.values, column.offsets
            # Tokens that a side dropped are NaN: in no statistic of it, and of no pair with it.
            kept = lists.mask_beside(beside, offsets) & ~np.isnan(values)
            totals.means[i].append(lists.row_means(values, offsets, kept))
            masks.append(kept)
            chosen.append(totals.means[i][0] if by_response else _where(kept, values))
            totals.stats[i] = ValueStats.of(chosen[i])
        if by_response:
            return totals
        same = np.logical_and.reduce([column.lengths == columns[0].lengths for column in columns])
        totals.unequal = int((~same).sum())
        for left, right in totals.pairs:
            pair = chosen[left], chosen[right]
            if totals.unequal or not np.array_equal(masks[left], masks[right]):
                inside = [np.repeat(same, columns[i].lengths) for i in (left, right)]
                both = masks[left][inside[0]] & masks[right][inside[1]]
                pair = columns[left].values[inside[0]][both], columns[right].values[inside[1]][both]
            totals.pairs[left, right] = Agreement.of(*pair)
        return totals

    def add(self, part: _ComparisonTotals) -> None:
        """Add the statistics of the next rows."""
        for pair, agreement in part.pairs.items():
            self.pairs[pair].add(agreement)
        for total, stats in zip(self.stats, part.stats, strict=True):
            total.add(stats)
        for means, new in zip(self.means, part.means, strict=True):
            means.extend(new)
        self.unequal += part.unequal


def _where(mask: NDArray[np.bool_], values: Numbers) -> Numbers:
    """Return the values where a mask is true; all of them are not copied."""
    return values if mask.all() else values[mask]


def _advantage_columns(
    sides: Sequence[Side],
    inputs: Sequence[RowKeys],
    matched: Match | None,
    mask: tuple[Source, str] | None,
) -> list[Generator[ColumnChunk]]:
    """Return the matched rows of the advantages of every side, and of the mask, which is last."""
    columns = [side.chunks() for side in sides]
    counts, rows = [keys.count for keys in inputs], matched.rows if matched else []
    if mask is not None:
        columns.append(matching.read_column(*mask))
        counts, rows = [*counts, counts[0]], [*rows, *rows[:1]]
    if matched is None:
        return columns
    return [
        matching.select_rows(column, row_numbers, count)
        for column, row_numbers, count in zip(columns, rows, counts, strict=True)
    ]


def _row_facts(
    matched: Match | None, inputs: Sequence[RowKeys], count: int, totals: _ComparisonTotals
) -> Json:
    return {
        "count": count,
        "matched_by": ["position"] if not matched or not matched.by else list(matched.by),
        "by_order_within": bool(matched and matched.ordinal),
        "left_out": {keys.name: keys.count - count for keys in inputs},
        "unequal_lengths": totals.unequal,
    }


def _most_different(
    left: Numbers,
    right: Numbers,
    rows: NDArray[np.int64],
    keys: RowKeys,
    source: Source | TableSource,
    count: int,
) -> list[Json]:
    """Return the rows whose scaled advantages differ the most; ties in the order of the rows."""
    both = np.isfinite(left) & np.isfinite(right)
    differences = np.abs(_divided_by_rms(left, both) - _divided_by_rms(right, both))
    differing = np.flatnonzero(differences > _ROUNDING)
    order = differing[np.argsort(-differences[differing], kind="stable")][:count]
    return [
        {
            "row": int(rows[i]),
            **_place(source, int(rows[i])),
            "step": keys.label("batch", int(rows[i])),
            "prompt_id": keys.label("group", int(rows[i])),
            "reward": finite(keys.reward[rows[i]]),
            "left": float(left[i]),
            "right": float(right[i]),
            "scaled_difference": float(differences[i]),
        }
        for i in order.tolist()
    ]


def _place(source: Source | TableSource, row: int) -> Json:
    """Return the file of a row, and its number in the file."""
    file = bisect_right(source.first_rows, row) - 1
    return {"file": str(source.files[file].path), "file_row": row - source.first_rows[file]}


def _divided_by_rms(values: Numbers, chosen: NDArray[np.bool_]) -> Numbers:
    """Return the values divided by the root mean square of the chosen ones."""
    rms = float(np.sqrt(np.square(values[chosen]).mean())) if chosen.any() else 0.0
    return values / rms if rms else values


def recipe_differences(sides: Sequence[Side], column: str) -> list[Json] | None:
    """Return the fields in which recipes differ, of those that can change the compared column.

    Args:
        sides: at least two.
        column: the written column that is compared.

    Returns:
        `field` (of the recipe, of its numerics, or `options.NAME` if all estimators have the
        option) and `values`, of each side, in the order of fields; None if the recipe of a side is
        unknown.
    """
    recipes = [side.effective_recipe(column) for side in sides]
    known = [recipe for recipe in recipes if recipe is not None]
    if len(known) < len(recipes):
        return None
    fields = frozenset(name for recipe in known for name in recipe.fields)
    first = known[0].recipe
    names = {
        name: None
        for other in known[1:]
        for name in [difference.field for difference in differences(first, other.recipe)]
        if name in fields or f"numerics.{name}" in fields
    }
    of_all = set.intersection(
        *({f"options.{key}" for key in recipe.recipe.options} for recipe in known)
    )
    names = {name: None for name in names if name in of_all or not name.startswith("options.")}
    return [{"field": name, "values": [_value(recipe, name) for recipe in known]} for name in names]


def _value(recipe: EffectiveRecipe, name: str) -> Any:
    """Return the value of a field, as plain data."""
    plain = recipe.recipe.model_dump(mode="json")
    table, dot, key = name.partition(".")
    if dot:
        return plain[table].get(key)
    return plain[name] if name in plain else plain["numerics"][name]
