"""`inspect`: statistics and findings of rollout files, as a tree of dataclasses."""

from __future__ import annotations

import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlpost.analysis.counted import RowReader, counted_table, counting_of, joined, stream_chunks
from rlpost.analysis.inspect.findings import FINDINGS, run_checks
from rlpost.analysis.inspect.inspected import Inspected
from rlpost.analysis.inspect.reading import read
from rlpost.analysis.inspect.selection import select_columns, unusable_roles
from rlpost.errors import UsageError, no_such
from rlpost.findings import Place
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import PathText, location_of
from rlpost.pipeline.columns import LENGTH, absent, lacks_of, masked_rows, without_effect
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.recipe.input_columns import recorded_advantages, resolve_input
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.analysis.inspect.model import Facts, Json
    from rlpost.analysis.inspect.selection import ColumnSelection
    from rlpost.display.reporter import Reporter
    from rlpost.io.input_paths import InputPaths
    from rlpost.kernels.moments import Mask
    from rlpost.pipeline.columns import Masked
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.roles import ColumnMap, Unit


def inspect(inputs: PathText | Sequence[PathText], **options: Any) -> Facts:
    """Return statistics and findings of rollout files; `options` as of `inspect_source`.

    The files are read once, in chunks of about half a million tokens. If a column may leave rows
    out, keys and flags of rows are read before. Only a few numbers per response stay in memory.
    Numbers that `rlpost advantages` also reports are the same.
    """
    inputs = [inputs] if isinstance(inputs, PathText) else inputs
    return inspect_source(Source(find_inputs(inputs)), inputs, **options)[0]


def inspect_source(
    source: Source,
    inputs: Sequence[PathText],
    *,
    columns_map: Mapping[str, str] | None = None,
    reward_components: Mapping[str, float] = MappingProxyType({}),
    ignore: Sequence[str] = (),
    evidence: int = 5,
    partial: bool = False,
    details: bool = True,
    reporter: Reporter | None = None,
    **counting: Any,
) -> tuple[Facts, Inspected]:
    """Return statistics and findings of an open source, and the rows behind them.

    Args:
        source: the files of `inputs`.
        inputs: as typed.
        columns_map: this and the other options as of `rlpost.inspect`.
        reward_components: columns whose weighted sum is the reward, with their weights.
        ignore: likewise.
        evidence: likewise.
        partial: the source has the rows of a condition alone, so its groups may lack some.
        details: likewise.
        reporter: gets the progress.
        counting: the fields of COUNTING, as of `rlpost.inspect`.

    Raises:
        UsageError, DataError, ReadWriteError: as `rlpost.inspect`.
    """
    start = time.perf_counter()
    _check_names(ignore)
    columns = _columns(source, columns_map or {}, reward_components)
    unit: Unit | None = counting.get("unit")
    chosen = unit or ("rollout" if columns.is_mapped("rollout") else None)
    fields, stored = _counting(source, columns, counting)
    recipe = Recipe(
        estimator="raw",
        **fields,
        reward_components=tuple(reward_components) or None,
        component_weights=tuple(reward_components.values()) or None,
    )
    if recipe.failures == "zero" and "failure" not in columns:
        raise absent(source, columns, {"failure": "--failures zero"}, lacks_of(source))
    selection = select_columns(
        source, columns, components=reward_components, details=details,
        recorded=recorded_advantages(source, columns, columns_map or {}),
    )  # fmt: skip
    columns = _with_lengths(columns, selection)
    resolved = resolve_recipe(recipe, selection.columns)
    masked = masked_rows(source, selection.columns)
    counted = _counted(source, selection, resolved, masked=masked)
    reading = read(source, selection, reporter, counted)
    table = counted_table(reading.said, resolved, count=len(reading.rows), masked=masked)
    inspected = Inspected(
        reading, table, columns, masked=masked != "none", chosen_unit=chosen,
        evidence=evidence, partial=partial,
    )  # fmt: skip
    findings, checks = run_checks(inspected, ignore)
    facts = replace(
        inspected.facts,
        inputs=[str(location_of(path)) for path in inputs],
        findings=findings,
        checks=checks,
        counting={name: x for name, x in counting.items() if x is not None},
        stored_counting=stored,
        seconds=time.perf_counter() - start,
    )
    return facts, inspected


def _counted(
    source: Source, selection: ColumnSelection, resolved: ResolvedRecipe, *, masked: Masked
) -> Mask | None:
    """Return the rows that are not left out, [N]; None if all count, or if no tokens are read.

    That takes the keys, failures and attempts of all rows, which are read before their tokens.
    """
    recipe = resolved.recipe
    failures = resolved.failures and recipe.failures == "drop"
    chooses = masked != "none" or failures or (resolved.attempts and recipe.attempts == "newest")
    if not chooses or (not selection.tokens and selection.entropy is None):
        return None
    reader = RowReader(source, selection.columns, selection.components)
    chunks = stream_chunks(source, reader.names, None, "rows that count")
    rows = joined([*map(reader.rows, chunks)])
    table = counted_table(rows, resolved, count=source.rows, masked=masked)
    counted: Mask = table.rows["left_out"] == 0
    return None if counted.all() else counted


def with_names(facts: Facts, inputs: Sequence[str], made_of: InputPaths) -> Facts:
    """Return facts that name the inputs and their rows in place of those of temporary files.

    Args:
        facts: of the temporary files.
        inputs: as typed.
        made_of: what temporary files and folders are made of.
    """
    files = [replace(file, path=made_of.named(file.path)) for file in facts.input.files]
    findings = [
        replace(finding, rows=tuple(_named(place, made_of) for place in finding.rows))
        for finding in facts.findings
    ]
    worst = [prompt | {"place": _named(prompt["place"], made_of)} for prompt in facts.worst_prompts]
    gap = facts.mismatch
    if gap is not None:
        largest = [
            replace(token, file=made_of.named(token.file), row=made_of.row(token.file, token.row))
            for token in gap.largest
        ]
        gap = replace(gap, largest=largest)
    return replace(
        facts, inputs=list(inputs), input=replace(facts.input, files=files), findings=findings,
        worst_prompts=worst, mismatch=gap,
    )  # fmt: skip


def _named(place: Place, made_of: InputPaths) -> Place:
    row = None if place.row is None else made_of.row(place.file, place.row)
    return Place(made_of.named(place.file), row)


def _check_names(ignore: Sequence[str]) -> None:
    """Raise UsageError if there is no check of a name."""
    for name in ignore:
        if name not in FINDINGS:
            text, tip = f"--ignore {name}: no check {name!r}", "rlpost list checks"
            raise UsageError(no_such(text, name, FINDINGS, f"`{tip}` lists the checks"))


def _columns(
    source: Source,
    columns_map: Mapping[str, str],
    components: Mapping[str, float],
) -> ColumnMap:
    """Return the column of each role; raises the errors of the arguments of `inspect`."""
    named = {f"component:{name}": name for name in components}
    if components and "reward" in columns_map:
        raise UsageError(
            f"--map reward={columns_map['reward']}: --reward-components takes its place; leave one "
            "of them out"
        )
    columns = resolve_input(source, columns_map, named)
    return columns.without(("reward",)) if components else columns


def _counting(source: Source, columns: ColumnMap, chosen: Json) -> tuple[Json, Json]:
    """Return what statistics of responses count, as `counting_of`."""
    columns = columns.without(unusable_roles(source, columns))
    counting, stored = counting_of(source, columns, chosen)
    needed = ("rollout", "group") if chosen.get("unit") == "rollout" else ()
    if lacking := {role: "--unit rollout" for role in needed if role not in columns}:
        raise absent(source, columns, lacking, lacks_of(source))
    return counting, stored


def _with_lengths(columns: ColumnMap, selection: ColumnSelection) -> ColumnMap:
    """Return the columns, with that of lengths only if it is read; raises if it was chosen."""
    if selection.lists is not None and columns.how.get(LENGTH) == "map":
        raise without_effect(f"--map {LENGTH}={columns.column(LENGTH)}")
    return columns if LENGTH in selection.columns else columns.without([LENGTH])
