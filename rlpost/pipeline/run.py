"""A run: the passes over a source, the last of which writes the outputs."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from rlpost.display.text import counted
from rlpost.errors import FindingsError, UsageError
from rlpost.io.clock import Clock
from rlpost.io.outputs import SMALL_BYTES
from rlpost.io.parquet.schemas import SPARK_SCHEMA
from rlpost.io.parquet.sink import open_sink
from rlpost.io.parquet.source import CHUNK_TOKENS, TableSource
from rlpost.io.system import cores, keep_freed_memory
from rlpost.io.threads import MOST_WORKERS
from rlpost.pipeline.columns import columns_of_rows
from rlpost.pipeline.device import AUTO, CPU, Device, single_threaded
from rlpost.pipeline.engine import Engine
from rlpost.pipeline.findings import add_rows, texts_of
from rlpost.pipeline.output.columns import constant_per_response, emitted, mask_metadata, schema_of
from rlpost.pipeline.output.files import check_writable
from rlpost.pipeline.output.metadata import FileMetadata
from rlpost.pipeline.plan import Plan, plan_of
from rlpost.pipeline.reading import Decoder
from rlpost.pipeline.recorded import compared_column
from rlpost.pipeline.resolved import resolve_recipe
from rlpost.pipeline.running_state import RunState, load_state, save_state
from rlpost.pipeline.summary import (
    FileSummaries,
    SummaryPart,
    TableFacts,
    run_summary,
    summarise,
    summary_of,
    summary_part,
    table_facts,
)
from rlpost.pipeline.totals import Totals
from rlpost.pipeline.turns import TURN_ROLES
from rlpost.recipe.recipe import EXTRA, WRITTEN
from rlpost.recipe.roles import is_read_by_name, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from rlpost.io.outputs import OutputFile, OutputFiles
    from rlpost.io.parquet.sink import Sink
    from rlpost.io.parquet.source import Source
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.engine import Passes
    from rlpost.pipeline.options import FailOn, Options
    from rlpost.pipeline.totals import ExactTotals
    from rlpost.recipe.recipe import Recipe


Json = dict[str, Any]


class FileTotals:
    """The totals of files while they are written, in order, and what makes their metadata.

    Args:
        none: the totals of no responses.
    """

    def __init__(self, none: Any) -> None:
        self.total = none

    def add(self, totals: Any) -> None:
        """Add the totals of the next chunk."""
        self.total += totals

    def entries(self, index: int) -> dict[str, str]:  # noqa: ARG002 - of other files
        """Return the key-value metadata of a file, all of whose chunks are added."""
        return {}


TotalsOf = Callable[[Plan, "Responses"], FileTotals]
"""Returns the totals of the files of a plan, before the first, from the table of responses."""
LEAST_BYTES = 1 << 30
"""Bytes of token columns from which `--device auto` is a card. For these the CPU computes 9 s (gae
with KL, of one core), and importing torch takes 2; no card was measured."""
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_COMPLETING = 4  # files that are completed and synced at a time, while the next one is computed


def write(
    plan: Plan,
    outputs: OutputFiles,
    options: Options,
    entries: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    *,
    start: Callable[[Plan, Options, Clock | None], Passes] | None = None,
    finish: Callable[..., WrittenFiles] | None = None,
) -> tuple[Json, SummaryPart]:
    """Write every file of a plan's source, enriched; return the summary, and what it is made of.

    It raises as `rlpost.api.advantages`.

    Args:
        plan: of the input.
        outputs: one for each file.
        options: how it is computed.
        entries: more key-value metadata of each file.
        clock: of several calls.
        start: returns the passes of a plan; None: an engine.
        finish: runs the last of them, as `write_files`.
    """
    check_writable(options.state)
    names = emitted(plan.resolved)
    check_clash(plan, names)
    engine = (start or engine_for)(plan, options, clock)
    with single_threaded():
        responses = engine.responses(names)
        files, run = [file.path for file in plan.source.files], run_metadata(plan, options)
        table = table_facts(plan, responses)
        totals_of = partial(EnrichedFiles, run=run, entries=entries or {})
        if len(files) == 1:
            totals_of = partial(totals_of, table=table)
        last: Callable[..., WrittenFiles] = finish or write_files
        done = last(engine, responses, outputs, names, totals_of)
        part = summary_part(table, done.totals)
        summary = summary_of(plan, part) | run_summary(plan, files, engine.device.name)
        add_rows(summary["findings"], plan, responses)
        check_findings(summary, options.fail_on)
        publish(engine, done)
    if options.state is not None:
        save_state(options.state, plan.state.after(responses.notes))
    clock, written = engine.clock, [str(target) for target in outputs.targets]
    summary |= {"outputs": written, "new_columns": [*names]}
    return {**summary, "bytes": clock.bytes, "seconds": clock.seconds}, part


def enrich(table: pa.Table, recipe: Recipe, options: Options) -> tuple[pa.Table, Json]:
    """Add the new columns to a table; raises and returns as `rlpost.api.enrich`."""
    source = TableSource(table)
    plan = bind(source, recipe, load_state(options.state))
    names = emitted(plan.resolved)
    check_clash(plan, names)
    engine = engine_for(plan, options)
    with single_threaded():
        responses = engine.responses(names)
        engine.reporter.start("write", plan.source.rows)
        enriched, totals = enrich_table(engine, table, responses)
    summary = summarise(plan, responses, totals)
    summary["recipe"] = plan.resolved.recipe.model_dump(mode="json")
    summary["device"] = engine.device.name
    summary["new_columns"] = [*names]
    check_findings(summary, options.fail_on)
    if options.state is not None:
        save_state(options.state, plan.state.after(responses.notes))
    return enriched, summary


def check_findings(summary: Json, fail_on: FailOn | None) -> None:
    """Raise FindingsError before a run publishes its files, if it has findings that fail it.

    Args:
        summary: of the whole run.
        fail_on: the least severity of findings that fail a run; None: none does.
    """
    errors = texts_of(summary, "error") if fail_on else []
    warnings = texts_of(summary, "warning") if fail_on == "warning" else []
    if errors or warnings:
        findings = counted(len(errors) + len(warnings), "finding")
        last = f"nothing was published because of {findings}"
        raise FindingsError(*errors, *warnings, last, summary=summary)


def enrich_table(
    engine: Engine, table: pa.Table, responses: Responses
) -> tuple[pa.Table, ExactTotals]:
    """Run the last pass over a table; return its kept and its new columns, and the totals.

    Args:
        engine: of a plan on the table.
        table: the input.
        responses: of the table, from all earlier passes.
    """
    plan = engine.plan
    names = emitted(plan.resolved)
    written = list(engine.last_pass([0], responses, names, lambda columns: columns))
    batches = [columns for chunk in written for *_, columns in chunk.parts]
    new = pa.Table.from_batches(batches, schema_of(names))
    kept = (
        table.select(_keys(plan))
        if plan.resolved.recipe.emit_only
        else table.drop_columns([name for name in names if name in table.schema.names])
    )
    metadata = {k: v for k, v in (kept.schema.metadata or {}).items() if k != SPARK_SCHEMA}
    metadata |= {k.encode(): v.encode() for k, v in mask_metadata(plan.resolved, names).items()}
    for field, column in zip(new.schema, new.columns, strict=True):
        kept = kept.append_column(field, column)
    totals: ExactTotals = sum((chunk.totals for chunk in written), plan.no_totals)
    return kept.replace_schema_metadata(metadata or None), totals


def bind(
    source: Source | TableSource,
    recipe: Recipe,
    state: RunState | None = None,
    *,
    compares: bool = True,
) -> Plan:
    """Return the plan of a recipe on an open source; raises as `rlpost.api.plan`.

    Args:
        source: the input.
        recipe: what is computed.
        state: before the first batch.
        compares: advantages that a trainer recorded are compared with the computed ones.
    """
    columns = columns_of_rows(source, recipe)
    if compares:
        columns = columns.with_recorded(compared_column(source, columns, recipe))
    return plan_of(source, columns, resolve_recipe(recipe, columns), state or RunState())


def engine_for(plan: Plan, options: Options, clock: Clock | None = None) -> Engine:
    """Return an engine that runs a plan.

    Args:
        plan: of the run.
        options: of the run.
        clock: of several engines; None: of this one.

    Raises:
        UsageError: the options name no device.
        UnavailableError: this machine does not have the device.
    """
    clock = clock or Clock(options.started)
    keep_freed_memory()
    return Engine(
        plan,
        Decoder(plan, device_for(options.device, plan.token_bytes, clock)),
        chunk_tokens=options.chunk_tokens or CHUNK_TOKENS,
        workers=options.workers or min(cores(), MOST_WORKERS),
        reporter=options.reporter,
        clock=clock,
    )


def device_for(name: str, token_bytes: int, clock: Clock) -> Device:
    """Return the device of a run.

    Args:
        name: of `--device`; `auto` is a card if one pays, and the CPU otherwise.
        token_bytes: bytes of the token columns of the input.
        clock: counts the bytes that are sent and fetched.

    Raises:
        UsageError: torch has no such kind.
        UnavailableError: this machine has no such device, or it does not compute in float64.
    """
    driver = token_bytes >= LEAST_BYTES and any(Path(file).exists() for file in _DRIVERS)
    if name == CPU or (name == AUTO and not driver):
        return Device(CPU, clock)
    from rlpost.pipeline.torch_device import TorchDevice, accelerator  # noqa: PLC0415 - torch

    name = accelerator() or CPU if name == AUTO else name
    return Device(CPU, clock) if name == CPU else TorchDevice(name, clock)


def check_clash(plan: Plan, names: Sequence[str]) -> None:
    """Raise UsageError if the input has a column that is to be written, and it is kept."""
    if plan.resolved.recipe.emit_only or plan.resolved.recipe.replace:
        return
    for schema, file in zip(plan.source.schemas, plan.source.files, strict=True):
        clash = [name for name in names if name in schema.names]
        if clash:
            chosen = clash[0] in (*WRITTEN, *EXTRA)  # with --emit; not the columns of a loss
            raise UsageError(
                f"{file.path}: has a column {clash[0]!r} already; --replace replaces it"
                + (", --emit leaves it out" if chosen else "")
            )


def write_files(
    engine: Engine,
    responses: Responses,
    outputs: OutputFiles,
    names: tuple[str, ...],
    totals_of: TotalsOf,
    *,
    purpose: str = "write",
) -> WrittenFiles:
    """Run the last pass over every file.

    Args:
        engine: of the plan.
        responses: from `Engine.responses`.
        outputs: one for each file; without any, the pass only computes totals.
        names: the columns to write.
        totals_of: the totals, and the metadata of files.
        purpose: the name of the pass.
    """
    plan, clock, totals = engine.plan, engine.clock, totals_of(engine.plan, responses)
    engine.reporter.start(purpose, plan.source.rows)

    def opened(index: int) -> Sink:
        return sink_of(plan, index, outputs.stage(outputs.targets[index]), names=names)

    with clock.wall(purpose):
        if outputs.targets:
            files = filled_files(engine, responses, names, totals, opened)
            _complete_files(files, partial(complete_file, clock))
        else:
            indices = range(len(plan.source.files))
            for chunk in engine.last_pass(indices, responses, (), lambda columns: columns):
                totals.add(chunk.totals)
    return WrittenFiles(totals.total, outputs.publish)


class WrittenFiles(NamedTuple):
    """What the last pass of a run wrote."""

    totals: Any
    publish: Callable[[], None]
    """Publishes the complete files."""


def publish(passes: Passes, written: WrittenFiles) -> None:
    """Publish the files of a run if no input was changed meanwhile.

    Raises:
        ReadWriteError: an input was changed, or a file cannot be renamed; those before it are
            published, and perhaps some objects after it.
    """
    with passes.clock.after("publishing"):
        passes.plan.source.check_unchanged()
        written.publish()


def _complete_files(files: Iterator[FilledFile], complete: Callable[[FilledFile], None]) -> None:
    """Complete files in order; small ones while the next are computed."""
    pending: deque[Future[None]] = deque()
    with ThreadPoolExecutor(_COMPLETING, thread_name_prefix="rlpost-complete") as pool:
        for file in files:
            if small := file.is_small:
                pending.append(pool.submit(copy_context().run, complete, file))
            while len(pending) > _COMPLETING * small:
                pending.popleft().result()
            if not small:
                complete(file)
        while pending:
            pending.popleft().result()


class FilledFile(NamedTuple):
    """An output with all of its new columns, which `complete_file` completes."""

    sink: Sink
    metadata: Mapping[str, str]
    """Key-value entries for its footer."""

    @property
    def is_small(self) -> bool:
        """Whether it is completed sooner than a run that stops should wait."""
        return sum(span.size for span in self.sink.output.ranges) <= SMALL_BYTES


def filled_files(
    engine: Engine,
    responses: Responses,
    names: tuple[str, ...],
    totals: FileTotals,
    sink_at: Callable[[int], Sink],
) -> Iterator[FilledFile]:
    """Write the new columns of the files of a source, and yield each file that has them.

    Args:
        engine: of the source.
        responses: from `Engine.responses`.
        names: the columns to write.
        totals: to which the files are added.
        sink_at: opens the sink of a file, from its number; `sink_of` returns one.
    """
    count = len(engine.plan.source.files)
    place, sink = 0, sink_at(0)
    for chunk in engine.last_pass(range(count), responses, names, sink.encode):
        totals.add(chunk.totals)
        for file, row_group, columns in chunk.parts:
            for following in range(place + 1, file + 1):
                yield FilledFile(sink, totals.entries(place))
                place, sink = following, sink_at(following)
            sink.append(row_group, columns)
    yield FilledFile(sink, totals.entries(place))
    for without_rows in range(place + 1, count):
        yield FilledFile(sink_at(without_rows), totals.entries(without_rows))


def complete_file(clock: Clock, file: FilledFile) -> None:
    """Complete a file, which is not published.

    Args:
        clock: measures the work.
        file: to complete.

    Raises:
        ReadWriteError: the file cannot be written.
    """
    file.sink.complete(file.metadata)
    copied = sum(span.size for span in file.sink.output.ranges)
    clock.count_bytes(written=file.sink.size, copied=copied)


def sink_of(
    plan: Plan, index: int, target: AnyPath | OutputFile, *, names: tuple[str, ...]
) -> Sink:
    """Return the sink of one input file: its kept columns and the new ones go to the target."""
    recipe = plan.resolved.recipe
    same = plan.resolved.same_returns and {"advantages", "returns"} <= {*names}
    return open_sink(
        plan.source.files[index].path,
        target,
        schema_of(names),
        drop=names if recipe.replace else (),
        keep=_keys(plan) if recipe.emit_only else None,
        constant=constant_per_response(plan.resolved),
        aliases={"returns": "advantages"} if same else {},
        decoded=plan.source.take_decoded(),
    )


def _keys(plan: Plan) -> list[str]:
    """Return the key columns, which --emit-only keeps."""
    columns = plan.columns.columns.items()
    return [
        column
        for role, column in columns
        if kind_of(role) == "key" and role not in TURN_ROLES and not is_read_by_name(role)
    ]


def run_metadata(plan: Plan, options: Options) -> FileMetadata:
    """Return the metadata that all files of a run share."""
    resolved, source, state = plan.resolved, plan.source, plan.state
    text = json.dumps([[str(file.relative) for file in source.files], [*source.first_rows]])
    used = RunState(
        state.running if "running" in resolved.norm else {},
        state.kl_coef if resolved.recipe.kl_target is not None else None,
    )
    return FileMetadata(
        resolved.recipe,
        sha256(text.encode()).hexdigest()[:32],
        len(source.files),
        source.rows,
        asked=dict(options.asked),
        mask=mask_metadata(resolved, emitted(resolved)),
        **used.to_json(),
    )


class EnrichedFiles(FileTotals):
    """The totals and the metadata of enriched files; the same bytes for one input and recipe.

    Args:
        plan: of a source that has the files.
        responses: of these files.
        run: the metadata of the run.
        first: the number that the source's first file has in the run.
        entries: more metadata.
        table: the facts about the responses, as of `FileSummaries`.
    """

    def __init__(
        self,
        plan: Plan,
        responses: Responses,
        *,
        run: FileMetadata,
        first: int = 0,
        entries: Mapping[str, str],
        table: TableFacts | None = None,
    ) -> None:
        super().__init__(plan.no_totals)
        self._summaries = FileSummaries(plan, responses, table)
        self._files, self._run, self._first, self._entries = plan.source.files, run, first, entries
        self._cells = len(responses.cells.pairs)
        self._recent = self._last = plan.no_totals  # of the chunks with rows of the next file
        self._sums: dict[int, Totals] = {}

    def add(self, totals: ExactTotals) -> None:
        """Add the totals of the next chunk."""
        self.total += totals.rekeyed(totals.codes % self._cells)
        self._recent, self._last, self._sums = self._recent + totals, totals, {}

    def entries(self, index: int) -> dict[str, str]:
        """Return the key-value metadata of a file, all of whose chunks are added."""
        if index not in self._sums:
            files = self._recent.codes // self._cells - self._first
            self._sums = self._summaries.sums_of(self._recent, files)
        self._recent = self._last
        summary = self._summaries.of(index, self._sums.get(index, Totals()))
        entries = self._run.entries_of(self._first + index, self._files[index].path, summary)
        return {**entries, **self._entries}
