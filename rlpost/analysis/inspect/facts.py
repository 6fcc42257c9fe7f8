"""`inspect`: statistics and findings of rollout files, as a tree of dataclasses."""

from __future__ import annotations

import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.analysis.counted import counted_table, counting_of
from rlpost.analysis.inspect.causes import causes_of
from rlpost.analysis.inspect.findings import FINDINGS, CheckInput, run_checks
from rlpost.analysis.inspect.footers import input_facts, role_facts
from rlpost.analysis.inspect.measures import table_facts
from rlpost.analysis.inspect.model import (
    Facts,
    FailureFacts,
    Mismatch,
)
from rlpost.analysis.inspect.prefixes import SegmentReader
from rlpost.analysis.inspect.reading import read
from rlpost.analysis.inspect.responses import (
    entropy_profile,
    group_facts,
    group_table,
    histograms_of,
    populations_of,
    profiles_of,
    worst_groups,
)
from rlpost.analysis.inspect.selection import LOG_PROB_PAIRS, select_columns, unusable_roles
from rlpost.analysis.rows import RowReader, joined, stream_chunks
from rlpost.errors import UsageError, no_such
from rlpost.findings import Place
from rlpost.io.parquet.inputs import find_inputs
from rlpost.io.parquet.source import Source
from rlpost.io.paths import PathText, location_of
from rlpost.pipeline.columns import LENGTH, absent, lacks_of, masked_rows, without_effect
from rlpost.pipeline.failures import reasons_of_failures
from rlpost.pipeline.groups import NO_GROUPS
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.recipe.input_columns import recorded_advantages, resolve_input
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from rlpost.analysis.counted import CountedTable
    from rlpost.analysis.inspect.model import Json
    from rlpost.analysis.inspect.reading import PassResult
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
) -> tuple[Facts, CheckInput]:
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
    segments = None if selection.ids is None else SegmentReader(selection.ids)
    resolved = resolve_recipe(recipe, selection.columns)
    masked = masked_rows(source, selection.columns)
    counted = _counted(source, selection, resolved, masked=masked)
    reading = read(source, selection, segments, reporter, counted)
    rows = reading.rows
    table = counted_table(reading.said, resolved, count=len(rows), masked=masked)
    groups = table.groups() if "group" in rows else None
    group_rows = None if groups is None else group_table(rows, table, groups)
    stored_input = input_facts(source, columns)
    populations, pairs, labels = populations_of(rows, table, groups)
    noun = "rollout" if resolved.unit == "rollout" else "response"
    words = {"row": "row" if noun == "rollout" else noun, "unit": noun}
    measured = table_facts(populations, pairs, labels, **words)
    measured |= reading.sums.facts(labels, **words)
    both = {*LOG_PROB_PAIRS[0]} <= {*selection.tokens}
    credit = selection.advantages if "advantage" in measured else None
    facts = Facts(
        inputs=[str(location_of(path)) for path in inputs],
        responses=len(rows),
        rollouts=int(table.units["known"].sum()) if resolved.unit == "rollout" else None,
        tokens=_token_counts(rows),
        roles=role_facts(source, columns),
        findings=[],
        facts=measured,
        prompt_groups=None if groups is None or group_rows is None else group_facts(
            selection.columns, table, groups, group_rows, rewarded="reward" in rows
        ),
        histograms=histograms_of(reading, table),
        token_columns=reading.columns,
        mismatch=_mismatch(reading) if both and "engine_k3" in measured else None,
        input=stored_input,
        checks=[],
        seconds=0.0,
        rlpost_version=__version__,
        advantages=None if credit is None else {
            "column": credit,
            "nonfinite": reading.nonfinite_advantages,
            "recorded": selection.recorded,
        },
        failures=None if "failure" not in selection.columns else FailureFacts(
            selection.columns.column("failure"),
            recipe.failures,
            dict(reasons_of_failures(table.rows).most_common()),
        ),
        worst_groups=[] if group_rows is None or "reward" not in rows else worst_groups(
            reading, group_rows, [file.path for file in stored_input.files], evidence
        ),
        profiles=profiles_of(rows, table, NO_GROUPS if groups is None else groups),
        counting={name: x for name, x in counting.items() if x is not None},
        stored_counting=stored,
        left_out=0 if "kept" not in rows else table.left_out.get("sample_mask", 0)
        if masked != "none" else int((~rows["kept"].to_numpy() & table.counted).sum()),
    )  # fmt: skip
    data = CheckInput(
        reading=reading,
        table=table,
        facts=facts,
        group_rows=group_rows,
        repeated=_repeated(segments, rows, table) if segments and len(rows) else None,
        chosen_unit=chosen,
        evidence=evidence,
        partial=partial,
    )
    findings, checks = run_checks(data, ignore)
    facts = replace(
        facts,
        findings=findings,
        checks=checks,
        turns=bool((data.turns > 0).any()),
        entropy=entropy_profile(reading, facts),
        seconds=time.perf_counter() - start,
    )
    return facts, data


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


def _repeated(
    segments: SegmentReader, rows: pl.DataFrame, table: CountedTable
) -> tuple[NDArray[np.int64], int]:
    """Return what `SegmentReader.repeated` returns of the rows that have a rollout id."""
    trains = rows["rollout"].is_not_null().to_numpy()
    return segments.repeated(table.rows, trains, grouped="group" in rows)


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
    stored = replace(facts.input, files=files)
    worst = [group | {"place": _named(group["place"], made_of)} for group in facts.worst_groups]
    return replace(facts, inputs=list(inputs), input=stored, findings=findings, worst_groups=worst)


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


def _token_counts(rows: pl.DataFrame) -> Json | None:
    """Return how many tokens responses have, `all` and `policy`; None if that is unknown."""
    if "tokens" not in rows:
        return None
    total = int(rows["length"].sum()) if "length" in rows else None
    return {"all": total, "policy": int(rows["tokens"].fill_nan(0).sum())}


def _mismatch(reading: PassResult) -> Mismatch:
    """Return the causes of the difference of engine and trainer."""
    rows = reading.rows
    tokens = reading.sample.compared(rows, reading.selection.machines)
    if tokens is None or not len(tokens):
        return Mismatch()
    largest = reading.sample.largest_tokens(rows, reading.files)
    return Mismatch(causes_of(tokens), len(tokens), largest)
