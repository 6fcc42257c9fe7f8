"""Runs on a Ray cluster, over files and over the blocks of a Ray Dataset.

Ray schedules the tasks, repeats those of lost workers, and stores and spills their blocks.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import ray
import ray.data
from ray import exceptions

from rlpost._version import __version__
from rlpost.display.text import counted
from rlpost.distributed.driver import (
    bucket_count,
    last_pass,
    prepare,
    reduce_responses,
    whole_summary,
    work_seconds,
    written_files,
)
from rlpost.distributed.executor import TaskResult
from rlpost.distributed.partition import (
    LoadedBatch,
    TablePartition,
    TaskContext,
    change_to,
    check_inputs,
)
from rlpost.distributed.staging import StagedOutputs
from rlpost.errors import RlpostError, UnavailableError, UsageError
from rlpost.io.clock import Clock
from rlpost.io.memory_limit import memory_limit
from rlpost.io.parquet.inputs import join_metadata
from rlpost.io.parquet.source import TableSource, input_metadata
from rlpost.io.publish import StagedFiles
from rlpost.io.shutdown import TERMINATED, keep_handlers, received_exit_code
from rlpost.io.system import cores
from rlpost.pipeline.device import AUTO, CPU, TORCH_CPU
from rlpost.pipeline.options import Options
from rlpost.pipeline.output.columns import emitted
from rlpost.pipeline.output.files import check_writable
from rlpost.pipeline.run import bind, check_clash, check_findings
from rlpost.pipeline.running_state import load_state, save_state
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlpost.display.reporter import Reporter
    from rlpost.distributed.executor import Call
    from rlpost.distributed.partition import Json
    from rlpost.distributed.tasks import TaskOutput
    from rlpost.io.parquet.inputs import InputFile, InputMetadata
    from rlpost.io.paths import AnyPath


_RETRIES = 8  # of a task whose worker was lost; a task that fails fails at once
_OWN_CLUSTER = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray kills workers of a node that has no memory left, and retries their tasks without end,
    # after 1, 2, 4 ... 60 s. Five retries take half a minute; then the run ends with an error.
    "RAY_task_oom_retries": "5",
}
"""Ray's settings of a cluster that is started here, unless the environment has others."""
_TIMEOUT = 10  # seconds for a cluster to answer
_NO_IMPORT = "failed to import on the worker"  # Ray's words
_POLL = 0.5  # seconds between two checks for finished tasks
_CANCELLED = 1.0  # seconds for cancelled tasks to end; after a signal a process has 1.3
_SILENCE = 60.0  # seconds without a finished task until a warning; twice as long until the next
_BUSY = (  # what to do if a cluster of the run's own does not start
    "its processes have 15 s to start: run again when this machine is less busy, or start a "
    "cluster with `ray start --head` and use --ray-address auto"
)
_ABSENT = (  # and if none answers
    "`ray start --head` starts one, and without --ray-address a new one is started on this machine"
)
_LOG = logging.getLogger("rlpost")
_FILES_A_TASK = 64  # footers that one task reads


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a cluster: the one this process has, the one at an address, or a new one.

    Without an address (and RAY_ADDRESS) a cluster of this machine is started. A new connection or
    cluster ends with the block.

    Raises:
        UnavailableError: no cluster answers at the address, or none can be started.
    """
    if ray.is_initialized():
        yield
        return
    address = (
        address or os.environ.get("RAY_ADDRESS") or "local"
    )  # by itself Ray would join another's
    if "NO_COLOR" in os.environ or not sys.stderr.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    with redirect_stdout(sys.stderr):  # Ray reports lost workers on stdout until it has shut down
        _connect(address)
        try:
            yield
        except SystemExit as ended:  # Ray's calls turn every code into 1
            raise SystemExit(received_exit_code() or ended.code) from None
        finally:
            with keep_handlers():
                ray.shutdown()


def _connect(address: str) -> None:
    """Connect to the cluster at an address, or start one if it is `local`.

    Raises:
        UnavailableError: no cluster answers, or none can be started.
    """
    own: dict[str, Any] = {}
    if address == "local":
        own = {"num_cpus": cores(), "include_dashboard": False}
        for name, value in _OWN_CLUSTER.items():
            os.environ.setdefault(name, value)
    try:
        _check_reachable(address)
        with keep_handlers():
            ray.init(address=address, log_to_driver=False, logging_level="error", **own)
    except SystemExit as ended:  # from Ray's handler of signals, with another code
        raise SystemExit(received_exit_code() or TERMINATED) from ended
    except Exception as error:  # noqa: BLE001 - Ray has no class for a cluster that does not start
        line = next(iter(str(error).splitlines()), type(error).__name__)
        where, advice = f"--ray-address {address}", _ABSENT
        if address == "local":
            where, advice = "--engine ray", _BUSY
        raise UnavailableError(f"{where}: no Ray cluster: {line}; {advice}") from None


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing answers at HOST:PORT; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT).close()


def card_resource(device: str) -> str | None:
    """Return Ray's name for the cards of a kind, one of which a task uses; None for the CPU.

    Raises:
        UsageError: the name has a number, but Ray chooses the card.
    """
    if device in (AUTO, CPU, TORCH_CPU):
        return None
    kind, _, number = device.partition(":")
    if number:
        raise UsageError(
            f"--device {device}: Ray chooses a card for each task; write --device {kind} with "
            "--engine ray"
        )
    return "GPU" if kind in ("cuda", "xpu") else kind.upper()


def slots(workers: int, device: str) -> int:
    """Return how many tasks of this many threads the cluster runs at once, with a card each.

    Raises:
        UsageError: from `card_resource`.
        UnavailableError: no node is large enough for one task; Ray would wait for such a node.
    """
    card = card_resource(device)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fit = [int(node.get("CPU", 0)) // workers for node in nodes]
    if card is not None:
        fit = [min(one, int(node.get(card, 0))) for one, node in zip(fit, nodes, strict=True)]
    if card is not None and not sum(int(node.get(card, 0)) for node in nodes):
        raise UnavailableError(
            f"--device {device}: the Ray cluster has no node with a {card}, which a task needs; "
            "add such a node, or compute on CPUs: --device cpu"
        )
    if not sum(fit):
        needs = counted(workers, "CPU") + (f" and a {card}" if card else "")
        raise UnavailableError(
            f"--workers {workers}: the Ray cluster has no node with {needs}, which a task needs; "
            "add such a node, or use fewer workers"
        )
    return sum(fit)


def _remote(device: str) -> Any:
    """Return `_task` as a remote function, with a card of its own on a device with cards.

    Ray makes one card visible, which is number 0 there. A process that has used a card keeps it,
    so each of these tasks has a process of its own.
    """
    card = card_resource(device)
    if card is None:
        return ray.remote(_task)
    one: dict[str, Any] = {"num_gpus": 1} if card == "GPU" else {"resources": {card: 1}}
    return ray.remote(max_calls=1, **one)(_task)


def _task(
    task: Callable[..., TaskOutput], context: TaskContext, arguments: tuple[Any, ...], batches: Any
) -> Any:
    """Run one task; its blocks are loaded one after another, so that few are in memory."""
    change_to(context.folder)
    if arguments and isinstance(arguments[0], TablePartition):
        table = ray.get(arguments[0].table)
        arguments = (arguments[0]._replace(table=table), *arguments[1:])
    loaded = (LoadedBatch(ray.get(block), *rest) for block, *rest in batches)
    return task(context, *arguments, loaded)


def _survey(version: str, folder: str, files: Sequence[InputFile]) -> InputMetadata:
    """Read some footers; raises UnavailableError if the driver has another version of rlpost."""
    if version != __version__:
        raise UnavailableError(
            f"the Ray cluster's workers have rlpost {__version__}, and this is {version}: all "
            "nodes need the same"
        )
    change_to(folder)
    return input_metadata(files)


class _TableFacts(NamedTuple):
    """The schema and the rows of a table, and the bytes of each column."""

    schema: Any
    rows: int
    bytes: dict[str, int]


def _describe(table: Any) -> _TableFacts:
    sizes = {name: table[name].nbytes for name in table.schema.names}
    return _TableFacts(table.schema, table.num_rows, sizes)


class RayExecutor:
    """Runs tasks on the cluster that this process is connected to.

    Args:
        reporter: shows progress.
        clock: measures the passes.
    """

    def __init__(self, reporter: Reporter, clock: Clock) -> None:
        self._reporter = reporter
        self._clock = clock

    def survey(self, files: Sequence[InputFile]) -> InputMetadata:
        """Return the survey of all files, whose footers tasks read."""
        task, folder = ray.remote(_survey).options(max_retries=_RETRIES), str(Path.cwd())
        some = [files[at : at + _FILES_A_TASK] for at in range(0, len(files), _FILES_A_TASK)]
        refs = [task.remote(__version__, folder, own) for own in some]
        return join_metadata(self._results("read footers", refs))

    def describe(self, tables: Sequence[Any]) -> list[_TableFacts]:
        """Return the facts of each Arrow table."""
        task = ray.remote(_describe).options(max_retries=_RETRIES)
        return self._results("read schemas", [task.remote(table) for table in tables])

    def run(self, purpose: str, context: TaskContext, calls: Sequence[Call]) -> list[TaskResult]:
        """Run all calls; see `rlpost.distributed.executor.Executor`."""
        total = sum(call.rows for call in calls)
        if total:
            self._reporter.start(purpose, total)
        on = {True: ray.put(context), False: ray.put(replace(context, device=CPU))}
        run = {True: _remote(context.device), False: _remote(CPU)}
        with self._clock.wall(purpose):
            started = [
                run[call.tokens]
                .options(
                    name=call.task.__name__,
                    num_returns=2,
                    num_cpus=context.workers,
                    max_retries=_RETRIES,
                )
                .remote(call.task, on[call.tokens], call.arguments, call.batches)
                for call in calls
            ]
            notes = self._results(
                purpose,
                [note for note, _ in started],
                lambda number: self._reporter.advance(calls[number].rows) if total else None,
            )
        return [TaskResult(note, block) for note, (_, block) in zip(notes, started, strict=True)]

    def _results(
        self, purpose: str, refs: list[Any], report: Callable[[int], None] = lambda _: None
    ) -> list[Any]:
        """Return what tasks return, in order; cancel the others if one fails.

        A task may take hours, or wait for CPUs of a busy cluster. So no time ends the run, but a
        warning names what it waits for.
        """
        numbers = {ref: number for number, ref in enumerate(refs)}
        results: dict[int, Any] = {}
        pending, silence, last = refs, _SILENCE, time.monotonic()
        try:
            while pending:
                ready, pending = ray.wait(pending, num_returns=len(pending), timeout=_POLL)
                if ready:
                    silence, last = _SILENCE, time.monotonic()
                elif time.monotonic() - last >= silence:
                    _warn_of_silence(purpose, silence, len(pending), len(refs))
                    silence *= 2
                for ref, result in zip(ready, _got(ready), strict=True):
                    results[numbers[ref]] = result
                    report(numbers[ref])
        except BaseException:
            for ref in pending:
                ray.cancel(ref, force=True)
            if pending:  # a task that still runs would make files again that are removed next
                with suppress(Exception):
                    ray.wait(pending, num_returns=len(pending), timeout=_CANCELLED)
            raise
        return [results[number] for number in range(len(refs))]


def _warn_of_silence(purpose: str, seconds: float, pending: int, tasks: int) -> None:
    """Log a warning that no task of a pass has finished for a while, with the state of Ray."""
    state = ""
    with suppress(Exception):  # Ray may not answer either
        free, all_ = ray.available_resources(), ray.cluster_resources()
        store = free.get("object_store_memory", 0.0) / all_["object_store_memory"]
        state = (
            f"; {free.get('CPU', 0):g} of {all_['CPU']:g} CPUs and {store:.0%} of the object store "
            "are free"
        )
    _LOG.warning(
        "rlpost: --engine ray: no task of the pass %r finished for %g s, %d of %d are left%s. Ray "
        "retries lost tasks by itself; its logs are in /tmp/ray/session_latest/logs of the node",
        purpose,
        seconds,
        pending,
        tasks,
        state,
    )


def _got(refs: Sequence[Any]) -> list[Any]:
    """Return what tasks returned; raise what one raised, or that the cluster lost it for good."""
    try:
        results: list[Any] = ray.get(refs)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, RlpostError):
            raise error.cause from None
        if _NO_IMPORT in str(error):
            line = str(error).strip().splitlines()[-1]
            raise UnavailableError(
                f"the Ray cluster's workers cannot import rlpost: {line}; install rlpost[ray] "
                f"{__version__} on every node"
            ) from None
        raise
    except exceptions.RayError as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        advice = ""
        if isinstance(error, exceptions.OutOfMemoryError):
            advice = "; free memory there, or run fewer tasks at once: --workers N is N CPUs a task"
        raise UnavailableError(
            f"the Ray cluster lost a task for good ({type(error).__name__}): {line}{advice}"
        ) from None
    return results


class _EmptySource(TableSource):
    """A source with the schema, rows and bytes of tables on other machines, to bind a recipe."""

    name = "dataset"

    def __init__(self, tables: Sequence[_TableFacts]) -> None:
        schema = pa.unify_schemas([one.schema for one in tables if one.rows] or [tables[0].schema])
        super().__init__(schema.empty_table())
        self.rows = sum(one.rows for one in tables)
        self._tables = tables

    def bytes_of(self, columns: Sequence[str]) -> int:
        """Return the bytes in memory of some columns."""
        return sum(one.bytes.get(name, 0) for one in self._tables for name in columns)


def enriched(dataset: ray.data.Dataset, recipe: Recipe, options: Options) -> ray.data.Dataset:
    """Return the dataset with new columns; raises as `rlpost.ray.advantages`."""
    _check_types(dataset, recipe, options)
    with connected(options.ray_address):
        refs: list[Any] = dataset.materialize().to_arrow_refs()
        slots(options.workers or 1, options.device)
        executor = RayExecutor(options.reporter, Clock(options.started, options.cpu_started))
        tables = executor.describe(refs)
        source = _EmptySource(tables)
        state = load_state(options.state)
        plan = bind(source, recipe, state)
        check_clash(plan, emitted(plan.resolved))
        context = TaskContext(
            plan.resolved.recipe,
            plan.columns,
            state,
            bucket_count(plan, plan.source.rows),
            device=CPU if options.device == AUTO else options.device,
            chunk_tokens=options.chunk_tokens,
            workers=options.workers or 1,
            max_memory=memory_limit().text or None,
        )
        partitions = [
            TablePartition(ref, one.rows) for ref, one in zip(refs, tables, strict=True) if one.rows
        ]
        reduced = reduce_responses(context, partitions, executor)
        _, written = last_pass(context, partitions, reduced, executor)
        return ray.data.from_arrow_refs(written)


def _check_types(dataset: object, recipe: object, options: object) -> None:
    """Raise UsageError if an argument has another type."""
    for name, value, kind, how in (
        ("dataset", dataset, ray.data.Dataset, "ray.data.read_parquet or from_arrow makes one"),
        ("recipe", recipe, Recipe, "rlpost.Recipe(estimator=...) makes one"),
        ("options", options, Options, "rlpost.Options(...) makes them"),
    ):
        if not isinstance(value, kind):
            raise UsageError(
                f"rlpost.ray.advantages: {name} is of type {type(value).__name__}, and "
                f"{kind.__name__} is needed: {how}"
            )


def advantages(
    files: Sequence[InputFile], targets: Sequence[AnyPath], recipe: Recipe, options: Options
) -> Json:
    """Write an enriched copy of every file; raises and returns as `rlpost.api.advantages`."""
    check_writable(options.state)
    clock = Clock(options.started, options.cpu_started)
    with connected(options.ray_address), StagedFiles(targets):
        staged, executor = StagedOutputs(targets), RayExecutor(options.reporter, clock)
        workers = options.workers or 1
        at_once = slots(workers, options.device)  # before anything is read
        survey = executor.survey(files)
        state = load_state(options.state)
        run = prepare(
            survey,
            staged.paths,
            recipe,
            state,
            options,
            at_once,
        )
        staged.create()
        try:
            reduced = reduce_responses(run.context, run.partitions, executor)
            notes, _ = last_pass(run.context, run.partitions, reduced, executor)
            inputs = [file.path for file in files]
            summary = whole_summary(run.plan, reduced, notes, inputs, run.context.device, targets)
            check_findings(summary, options.fail_on)
            with clock.publishing():
                then = "since the run began; run again when no process writes it"
                check_inputs(run.partitions, then)
                digests = [file["digest"] for file in written_files(notes)]
                staged.publish(digests, overwrite=options.overwrite)
        except BaseException:
            staged.discard()
            raise
    if options.state is not None:
        save_state(options.state, state.after(reduced.after))
    seconds = clock.seconds
    return {
        **summary,
        "engine": {"name": "ray", "tasks_at_once": at_once, "partitions": len(run.partitions)},
        "seconds": {**seconds, **work_seconds(notes, seconds["cpu"]), "limits": {}},
    }
