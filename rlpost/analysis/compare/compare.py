"""Comparison of advantages: of two or more files, or of several recipes on one input.

The same rows of all sides are read together and become measures: numbers of a side, and differences
of each pair, by step and domain.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost._version import __version__
from rlpost.analysis.compare.matching import KEY_ROLES, match, read_keys, select_rows
from rlpost.analysis.compare.measures import (
    RowMeasures,
    facts_of,
    measured,
    pearson,
    slices_of,
    spearman,
)
from rlpost.analysis.compare.sides import file_side, read_rows, recipe_side
from rlpost.analysis.difference import ColumnChunk, align, finite
from rlpost.analysis.responses import columns as lists
from rlpost.display.reporter import SilentReporter
from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError
from rlpost.findings import Finding
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.system import cores, keep_freed_memory
from rlpost.io.threads import MOST_WORKERS, map_ordered
from rlpost.recipe.input_columns import resolve_input
from rlpost.recipe.presets import differences

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.compare.matching import Match, RowKeys
    from rlpost.analysis.compare.measures import Slices
    from rlpost.analysis.compare.sides import Side
    from rlpost.display.reporter import Reporter
    from rlpost.io.parquet.source import TableSource
    from rlpost.io.paths import PathText
    from rlpost.recipe.recipe import Recipe

    Codes = NDArray[np.int64]
    Numbers = NDArray[np.float64]


Json = dict[str, Any]
SCHEMA_VERSION = 2
TOKENS, RESPONSES = "policy tokens of kept responses", "kept responses"
"""Populations of the numbers of a side; those of a pair are what both sides keep."""
_ROUNDING = 1e-6  # advantages are float32


def compare(
    paths: Sequence[PathText],
    columns_map: Mapping[str, str],
    recipes: Mapping[str, Recipe],
    *,
    column: str | None,
    count: int,
    names: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> Json:
    """Return the comparison of inputs, or of recipes on one input; see `rlpost.compare`.

    Recipes run in parallel, chunk by chunk, and write no files.

    Args:
        paths: files, directories or globs; each is an input, or all are if there are recipes.
        columns_map: role to column.
        recipes: by name; a single one is compared with the column of the input.
        column: what is compared; None: the advantages.
        count: the number of responses that differ the most to list for each pair.
        names: of temporary paths.
        reporter: gets the progress.
    """
    from rlpost.api import Options  # noqa: PLC0415 - slow to import
    from rlpost.pipeline.device import single_threaded  # noqa: PLC0415

    if len(paths) == 1 and not recipes:
        raise UsageError(
            f"{paths[0]}: a comparison needs another input, or --preset, --config or --estimator"
        )
    sources = [Source(find_inputs(own)) for own in ([paths] if recipes else [[p] for p in paths])]
    short = [Path(str(path)).name for path in names or paths]
    if recipes or len({*short}) < len(short):
        short = [source.name for source in sources]
    inputs = [read_keys(source, resolve_input(source, columns_map)) for source in sources]
    sides = []
    if len(recipes) < 2:  # noqa: PLR2004 - a single one is compared with the input
        each = zip(sources, inputs, short, strict=True)
        sides = [file_side(source, keys.roles, name, column) for source, keys, name in each]
    options = Options(workers=max(1, cores() // max(1, len(recipes))))
    for name, recipe in recipes.items():
        sides.append(recipe_side(name, sources[0], recipe, column, options))
    with single_threaded():
        return _compared(sides, inputs, count, reporter or SilentReporter())


def _compared(
    sides: Sequence[Side], inputs: Sequence[RowKeys], count: int, reporter: Reporter
) -> Json:
    """Return the comparison of two or more sides; of one input, `inputs` has its keys alone."""
    keep_freed_memory()
    matched, keys = match(inputs), inputs[0]
    rows, names = matched.rows[0], [side.name for side in sides]
    slices, by_response = slices_of(keys.keys, rows), any(side.by_response for side in sides)
    streams, roles = [side.chunks() for side in sides], keys.roles
    indices = [*range(len(sides))] if len(inputs) > 1 else [0] * len(sides)
    if masked := "mask" in roles and any(side.mask != roles.column("mask") for side in sides):
        streams.append(read_rows(keys.source, roles.column("mask")))
        indices.append(0)
    selected = [
        select_rows(stream, matched.rows[i], inputs[i].count)
        for stream, i in zip(streams, indices, strict=True)
    ]

    def chunks() -> Iterator[tuple[Slices, tuple[ColumnChunk, ...]]]:
        first = 0
        for columns in align(selected):
            last = first + columns[0].num_rows
            yield {by: (x, codes[first:last]) for by, (x, codes) in slices.items()}, columns
            first = last

    def of_tokens(chunk: tuple[Slices, tuple[ColumnChunk, ...]]) -> RowMeasures:
        own, columns = chunk
        beside = (columns[-1].offsets, columns[-1].values) if masked else None
        columns = columns[: len(names)]
        kept = [lists.mask_beside(beside, x.offsets) & np.isfinite(x.values) for x in columns]
        if not by_response:
            return measured(columns, kept, own, names)
        pairs = zip(columns, kept, strict=True)
        means = [lists.row_means(x.values, x.offsets, keep) for x, keep in pairs]
        return RowMeasures(means=means)

    reporter.start("compare", len(rows))
    parts: list[RowMeasures] = []
    for part in map_ordered(of_tokens, chunks(), min(cores(), MOST_WORKERS)):
        parts.append(part)
        reporter.advance(len(part.means[0]))
    means = [np.concatenate(column) for column in zip(*(part.means for part in parts), strict=True)]
    if len(means[0]) != len(rows):
        raise DataError(f"{keys.name}: {len(means[0])} of {len(rows)} rows were read")
    alone = [ColumnChunk(np.ones(len(rows), np.int64), column) for column in means]
    kept = [np.isfinite(column) for column in means]
    responses = measured(alone, kept, slices, names, "response_", of_sides=by_response)
    populations = {
        "advantage": RESPONSES if by_response else TOKENS,
        "response_": f"{RESPONSES} of both sides",
        "": f"{TOKENS} of both sides",
    }
    facts = facts_of([*parts, responses], slices, populations)
    pairs = [
        {
            "left": names[i],
            "right": names[j],
            "pearson": {
                "responses": pearson([responses.products[i, j]]),
                "tokens": pearson([part.products[i, j] for part in parts if part.products]),
            },
            "spearman": spearman(means[i], means[j]),
            "scale": scale_of(means[i], means[j]),
            "most_different": _most_different(means[i], means[j], rows, keys, count),
        }
        for i, j in combinations(range(len(sides)), 2)
    ]
    unequal = sum(part.unequal for part in parts)
    trained = [np.isfinite(column) & (column != 0) for column in means]
    findings = [*_findings(matched, inputs, unequal), *(x for side in sides for x in side.findings)]
    return {
        "schema_version": SCHEMA_VERSION,
        "rlpost_version": __version__,
        "inputs": [*dict.fromkeys(side.source.name for side in sides)],
        "responses": len(rows),
        "rollouts": keys.distinct(rows, "rollout"),
        "groups": keys.distinct(rows, "group"),
        "groups_with_signal": keys.distinct(rows[np.any(trained, axis=0)], "group"),
        "roles": {
            role: {"column": column, "found_by": roles.how[role]}
            for role, column in roles.columns.items()
            if role in (*KEY_ROLES, "domain", "reward", "mask")
        },
        "verdict": _verdict(facts, pairs),
        "findings": [finding.as_json() for finding in findings],
        "facts": facts,
        "sides": names,
        "pairs": pairs,
        "recipe_differences": recipe_differences(sides),
        "matched_by": [*matched.by] or ["position"],
        "by_order_within": matched.ordinal,
    }


def _verdict(facts: Json, pairs: Sequence[Json]) -> Json:
    """Return whether all pairs are equal, and how many responses have opposite signs."""
    names = [f"{pair['left']}:{pair['right']}" for pair in pairs]
    equal = [facts[f"response_equal:{name}"]["all"] for name in names]
    apart = [whole["count"] - whole["total"] for whole in equal]
    differing = sum(count > 0 for count in apart)
    if not any(whole["count"] for whole in equal):
        return {"level": "warning", "text": "No response is kept by two sides"}
    if not differing:
        return {"level": "ok", "text": "Equal advantages in all responses"}
    if len(pairs) > 1:
        text = f"{differing:,} of {counted(len(pairs), 'pair')} differ"
    else:
        text = f"{apart[0]:,} of {counted(equal[0]['count'], 'response')} differ"
        if opposite := facts[f"response_opposite_sign:{names[0]}"]["all"]["total"]:
            text += f", {opposite:,} with opposite signs"
    return {"level": "warning", "text": text}


def _findings(matched: Match, inputs: Sequence[RowKeys], unequal: int) -> Iterator[Finding]:
    """Yield what is missing in the comparison."""
    for keys, rows in zip(inputs, matched.rows, strict=True):
        if left_out := keys.count - len(rows):
            verb = "has" if left_out == 1 else "have"
            text = f"{counted(left_out, 'response')} of {keys.name} {verb} no match"
            yield Finding("unmatched", "warning", text, "they count in no number")
    if unequal:
        text = f"{counted(unequal, 'response')} with different lengths"
        yield Finding("unequal_lengths", "warning", text, "their tokens are not compared")


def scale_of(left: Numbers, right: Numbers) -> float:
    """Return the ratio of the root mean squares of what both sides keep; 1 if one has none."""
    both = np.isfinite(left) & np.isfinite(right)
    squares = (float(np.square(side[both]).sum()) for side in (left, right))
    left_squares, right_squares = squares
    return (left_squares / right_squares) ** 0.5 if left_squares and right_squares else 1.0


def _most_different(
    left: Numbers, right: Numbers, rows: Codes, keys: RowKeys, count: int
) -> list[Json]:
    """Return the rows that differ the most beyond the scale; ties in the order of the rows."""
    differences = left - scale_of(left, right) * right
    both = np.isfinite(differences)
    size = float(np.sqrt(np.square(left[both]).mean())) if both.any() else 0.0
    distance = np.where(both, np.abs(differences), 0.0)
    differing = np.flatnonzero(distance > _ROUNDING * size)
    order = differing[np.argsort(-distance[differing], kind="stable")][:count]
    return [
        {
            "row": int(rows[i]),
            **_place(keys.source, int(rows[i])),
            "step": keys.label("batch", int(rows[i])),
            "prompt_id": keys.label("group", int(rows[i])),
            "reward": finite(keys.reward[rows[i]]),
            "left": float(left[i]),
            "right": float(right[i]),
            "difference": float(left[i] - right[i]),
            "beyond_scale": float(differences[i]),
        }
        for i in order.tolist()
    ]


def _place(source: Source | TableSource, row: int) -> Json:
    """Return the file of a row, and its number in the file."""
    file = bisect_right(source.first_rows, row) - 1
    return {"file": str(source.files[file].path), "file_row": row - source.first_rows[file]}


def recipe_differences(sides: Sequence[Side]) -> list[Json] | None:
    """Return the fields in which recipes differ, of those that can change the compared numbers.

    Returns:
        `field` (of the recipe, of its numerics, or `options.NAME` if all estimators have the
        option) and `values`, of each side, in the order of fields; None if the recipe of a side is
        unknown.
    """
    recipes = [side.recipe for side in sides if side.recipe is not None]
    if len(recipes) < len(sides):
        return None
    of_all = set.intersection(*({f"options.{key}" for key in recipe.options} for recipe in recipes))
    fields = {name.removeprefix("numerics.") for side in sides for name in side.fields}
    fields = {name for name in fields if not name.startswith("options.") or name in of_all}
    differing = (other.field for recipe in recipes[1:] for other in differences(recipes[0], recipe))
    names = [name for name in dict.fromkeys(differing) if name in fields]
    plain = [recipe.model_dump(mode="json") for recipe in recipes]
    return [{"field": name, "values": [_value(recipe, name) for recipe in plain]} for name in names]


def _value(recipe: Json, name: str) -> Any:
    """Return the value of a field of a recipe, which is plain data."""
    for part in name.split("."):
        recipe = recipe[part] if part in recipe else recipe["numerics"][part]
    return recipe
