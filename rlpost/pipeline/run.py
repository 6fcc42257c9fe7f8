"""A run: a source, a recipe and the outputs, brought together."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost._version import __version__
from rlpost.errors import DataError, UsageError
from rlpost.io.parquet.sink import encoder_for, open_sink
from rlpost.io.parquet.source import TableSource
from rlpost.io.parquet.splice_plan import join_table_metadata
from rlpost.io.staged import StagedFile
from rlpost.io.threads import MOST_WORKERS, cores
from rlpost.pipeline.columns import columns_of
from rlpost.pipeline.device import chunk_tokens_for, device_named, keep_freed_memory
from rlpost.pipeline.engine import Engine, single_threaded_torch
from rlpost.pipeline.file_metadata import run_identity_of
from rlpost.pipeline.output import constant_per_response, emitted, schema_of
from rlpost.pipeline.outputs import check_writable, run_identity
from rlpost.pipeline.plan import Plan, loss_plan, plan_of
from rlpost.pipeline.readback import check_written
from rlpost.pipeline.reading import Decoder
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.running_state import load_state, save_state
from rlpost.pipeline.summary import summarise
from rlpost.pipeline.totals import ExactTotals
from rlpost.recipe.recipe import EXTRA, WRITTEN
from rlpost.recipe.roles import kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.io.parquet.encode import Encoder
    from rlpost.io.parquet.sink import Sink
    from rlpost.io.parquet.source import Source
    from rlpost.io.paths import AnyPath
    from rlpost.io.uploads import Upload
    from rlpost.kernels.rewards import RunningMoments
    from rlpost.losses.config import LossConfig
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.file_metadata import Part, Whole
    from rlpost.pipeline.options import Options
    from rlpost.pipeline.outputs import Outputs
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


Json = dict[str, Any]
MetadataOf = Callable[[Plan, int, "Responses", Any], dict[str, str]]
"""The metadata of a file, from the plan, the file's number, its responses and its totals."""


def advantages(source: Source, outputs: Outputs, recipe: Recipe, options: Options) -> Json:
    """Write every file of the source, enriched; raises and returns as `rlpost.api.advantages`."""
    running = load_state(options.state)
    check_writable(options.state)
    plan = bind(source, recipe, running)
    names = emitted(plan.resolved)
    check_clash(plan, names)
    engine = engine_for(plan, options)
    if outputs.journal is not None:
        outputs.journal.start(run_identity(engine, names, options.state))
    with single_threaded_torch():
        responses = engine.responses()
        with engine.clock.wall("write"):
            used = running if "running" in plan.resolved.norm else {}
            whole = run_identity_of(source.files, source.first_rows, used, options.asked)
            metadata = partial(enriched_metadata, whole=whole)
            engine.reporter.start("write", source.rows)
            totals, rewritten = write_files(
                engine, responses, outputs, names, metadata, verify=options.verify
            )
            facts = run_facts(engine, outputs, rewritten)
            summary = {**summarise(plan, responses, totals), **facts}
    summary["seconds"] = engine.clock.seconds
    if options.state is not None:
        save_state(options.state, {**running, **responses.notes.get("running", {})})
    return summary


def enrich(arrow: pa.Table, recipe: Recipe, options: Options) -> tuple[pa.Table, Json]:
    """The new columns beside those of a table; raises and returns as `rlpost.api.enrich`."""
    running = load_state(options.state)
    plan = bind(TableSource(arrow), recipe, running)
    names = emitted(plan.resolved)
    check_clash(plan, names)
    engine = engine_for(plan, options)
    with single_threaded_torch():
        responses = engine.responses()
        engine.reporter.start("write", plan.source.rows)
        made = list(engine.written(0, responses, names, lambda columns: columns))
    tally = sum((some.tally for some in made), ExactTotals())
    if options.state is not None:
        save_state(options.state, {**running, **responses.notes.get("running", {})})
    made_columns = pa.Table.from_batches([columns for some in made for _, columns in some.parts])
    return beside(plan, arrow, made_columns), summarise(plan, responses, tally)


def beside(plan: Plan, arrow: pa.Table, made: pa.Table) -> pa.Table:
    """New columns beside those of the table that are kept."""
    kept = (
        arrow.select(_keys(plan))
        if plan.resolved.recipe.emit_only
        else arrow.drop_columns([name for name in made.schema.names if name in arrow.schema.names])
    )
    told = join_table_metadata(kept.schema.metadata or {}, kept.schema.names, made.schema)
    for field, column in zip(made.schema, made.columns, strict=True):
        kept = kept.append_column(field, column)
    return kept.replace_schema_metadata(told or None)


def bind(
    source: Source | TableSource, recipe: Recipe, running: Mapping[str, RunningMoments]
) -> Plan:
    """Return the plan of a recipe on an open source; raises as `rlpost.api.plan`."""
    columns = _columns(source, recipe)
    return plan_of(source, columns, resolve_recipe(recipe, columns), running)


def bind_losses(
    source: Source | TableSource, recipe: Recipe, configs: Sequence[LossConfig], *, write: bool
) -> Plan:
    """Return the plan of policy losses on an open source; arguments and errors of `loss_plan`."""
    return loss_plan(source, _columns(source, recipe), recipe, configs, write=write)


def _columns(source: Source | TableSource, recipe: Recipe) -> ColumnMap:
    if source.rows == 0:
        raise DataError(f"{source.name}: there are no rows, so there is nothing to process")
    return columns_of(source, recipe)


def engine_for(plan: Plan, options: Options) -> Engine:
    """An engine for a job."""
    device, workers = device_named(options.device), options.workers or min(cores(), MOST_WORKERS)
    keep_freed_memory()
    decoder = Decoder(
        plan.source.files,
        plan.columns,
        plan.lists,
        plan.resolved.recipe.nonfinite,
        device,
        plan.resolved.recipe.numerics.missing_components,
    )
    return Engine(
        plan,
        decoder,
        chunk_tokens=options.chunk_tokens or chunk_tokens_for(device, workers),
        workers=workers,
        reporter=options.reporter,
    )


def check_clash(plan: Plan, names: Sequence[str]) -> None:
    """Raise UsageError where a column to write is in the input, and kept."""
    if plan.resolved.recipe.emit_only or plan.resolved.recipe.replace:
        return
    for schema, file in zip(plan.source.schemas, plan.source.files, strict=True):
        clash = [name for name in names if name in schema.names]
        if clash:
            chosen = clash[0] in (*WRITTEN, *EXTRA)  # by --emit; a loss has columns of its own
            raise UsageError(
                f"{file.path}: has a column {clash[0]!r} already; --replace replaces it"
                + (", --emit leaves it out" if chosen else "")
            )


def write_files(
    engine: Engine,
    responses: Responses,
    outputs: Outputs,
    names: tuple[str, ...],
    metadata: MetadataOf,
    *,
    verify: bool = False,
) -> tuple[Any, list[str]]:
    """Run the last pass over every file that is not finished, and publish all files at the end.

    Args:
        engine: of the plan.
        responses: from `Engine.responses`.
        outputs: one for each file; without any, the pass only computes totals.
        names: the columns to write.
        metadata: the key-value metadata of a file.
        verify: read each file again before it is published.

    Returns:
        The totals of all files, and the reasons of those that were not spliced.
    """
    plan = engine.plan
    total = plan.no_totals
    for index in range(len(plan.source.files)):
        first, last = plan.source.first_rows[index : index + 2]
        if index in outputs.finished:
            total += outputs.finished[index].tally
            engine.reporter.advance(last - first)
            continue
        if not outputs.targets:
            computed = engine.written(index, responses, (), lambda columns: columns)
            total += sum((made.tally for made in computed), plan.no_totals)
            continue
        sink = outputs.open(index, partial(sink_of, plan, index, names=names))
        if isinstance(sink.output, StagedFile):
            sink.output.checksumming = verify
        totals = fill(sink, engine, index, responses, names, metadata)
        if verify:
            with engine.clock.busy("verify"):
                check_written(plan, index, sink, names, totals)
        outputs.complete(index, totals)
        total += totals
    plan.source.check_unchanged()
    return total, outputs.publish()


def fill(
    sink: Sink,
    engine: Engine,
    index: int,
    responses: Responses,
    names: tuple[str, ...],
    metadata: MetadataOf,
) -> Any:
    """Write the new columns of one file of the source, complete it, and return its totals.

    Args:
        sink: from `sink_of`.
        engine: of a source that has the file.
        index: the file's number in that source.
        responses: from `Engine.responses`.
        names: the columns to write.
        metadata: the key-value metadata of a file.
    """
    first, last = engine.plan.source.first_rows[index : index + 2]
    totals = engine.plan.no_totals
    for made in engine.written(index, responses, names, sink.encode):
        with engine.clock.busy("copy"):
            for row_group, columns in made.parts:
                sink.append(row_group, columns)
        totals += made.tally
    totals = totals.compact()
    with engine.clock.busy("copy"):
        sink.complete(metadata(engine.plan, index, responses.rows(first, last), totals))
    return totals


def run_facts(engine: Engine, outputs: Outputs, rewritten: list[str]) -> Json:
    """Return what a summary of a whole run has besides the numbers of its responses."""
    plan = engine.plan
    return {
        "rlpost_version": __version__,
        "recipe": plan.resolved.recipe.model_dump(mode="json"),
        "inputs": [str(file.path) for file in plan.source.files],
        "outputs": [str(target) for target in outputs.targets],
        "rewritten": rewritten,
        "halved_pieces": engine.splits,
    }


def sink_of(
    plan: Plan,
    index: int,
    target: AnyPath,
    begun: StagedFile | Upload | None = None,
    *,
    names: tuple[str, ...],
) -> Sink:
    """Where the rows of one input file go, with these columns beside the kept ones."""
    recipe = plan.resolved.recipe
    return open_sink(
        plan.source.files[index].path,
        target,
        schema_of(names),
        drop=names if recipe.replace else (),
        keep=_keys(plan) if recipe.emit_only else None,
        constant=constant_per_response(plan.resolved),
        aliases=_aliases(plan, names),
        begun=begun,
    )


def encoder_of(plan: Plan, names: tuple[str, ...], *, indexed: bool) -> Encoder:
    """What a sink from `sink_of` encodes new columns with, where it copies the kept ones.

    `indexed` is whether the source has page indexes.
    """
    constant, aliases = constant_per_response(plan.resolved), _aliases(plan, names)
    return encoder_for(schema_of(names), constant=constant, aliases=aliases, indexed=indexed)


def _aliases(plan: Plan, names: tuple[str, ...]) -> dict[str, str]:
    same = plan.resolved.same_returns and {"advantages", "returns"} <= {*names}
    return {"returns": "advantages"} if same else {}


def _keys(plan: Plan) -> list[str]:
    """The columns that tell rows apart, which --emit-only keeps."""
    found = plan.columns.columns.items()
    return [column for role, column in found if kind_of(role) == "key"]


def enriched_metadata(
    plan: Plan,
    index: int,
    responses: Responses,
    totals: ExactTotals,
    *,
    whole: Whole,
    first: int = 0,
) -> dict[str, str]:
    """Return the metadata of an enriched file.

    Args:
        plan: the plan of a source that has the file.
        index: the file's number in that source.
        responses: of the file.
        totals: of the file.
        whole: the run.
        first: the number that the source's first file has in the run.
    """
    return metadata_of(plan, index, summarise(plan, responses, totals), whole.part(first + index))


def metadata_of(plan: Plan, index: int, summary: Json, part: Part) -> dict[str, str]:
    """Return the metadata of an enriched file; the same bytes for the same input and recipe."""
    return {
        "rlpost.version": __version__,
        "rlpost.recipe": plan.resolved.recipe.model_dump_json(),
        "rlpost.input": plan.source.files[index].path.name,
        "rlpost.summary": json.dumps(summary),
        **part.note,
    }
