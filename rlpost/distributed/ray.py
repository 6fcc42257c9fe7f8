"""Runs on a Ray cluster, over files and over the blocks of a Ray Dataset.

Ray schedules the tasks, repeats those of lost workers, and stores what they return.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from contextlib import contextmanager, redirect_stdout, suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import ray
from ray import exceptions

from rlpost._version import __version__
from rlpost.display.text import counted
from rlpost.distributed import tasks
from rlpost.distributed.driver import InputRows, StagedOutputs, TaskPasses, parts_of, with_tasks
from rlpost.distributed.tasks import Job
from rlpost.errors import RlpostError, UnavailableError, UsageError
from rlpost.io.clock import Clock
from rlpost.io.parquet.source import Source, TableSource
from rlpost.io.publish import StagedFiles
from rlpost.io.shutdown import TERMINATED, keep_handlers, received_exit_code
from rlpost.io.system import cores
from rlpost.pipeline.device import AUTO, CPU, TORCH_CPU
from rlpost.pipeline.options import Options
from rlpost.pipeline.output.columns import emitted
from rlpost.pipeline.output.files import check_writable
from rlpost.pipeline.run import bind, check_clash, check_findings, run_metadata
from rlpost.pipeline.running_state import load_state, save_state
from rlpost.pipeline.summary import run_summary, summarise
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ray.data import Dataset

    from rlpost.distributed.driver import Call
    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.paths import AnyPath


Json = dict[str, Any]
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
    need: dict[str, Any] = {"num_gpus": 1} if card == "GPU" else {"resources": {card: 1}}
    return ray.remote(max_calls=1, **need)(_task)


def _task(version: str, folder: str, call: list[Any], table: pa.Table | None) -> Any:
    """Run one task.

    Args:
        version: of the driver's rlpost; what another one has sent is not read.
        folder: the start of relative paths, if it exists on this machine.
        call: the reference to a `Call`.
        table: the part of the input, if it is a table.

    Raises:
        UnavailableError: this process has another version of rlpost.
    """
    if version != __version__:
        raise UnavailableError(
            f"the Ray cluster's workers have rlpost {__version__}, and this is {version}: all "
            "nodes need the same"
        )
    if Path(folder).is_dir():
        os.chdir(folder)
    task, job, part, arguments = ray.get(call[0])
    return task(job, part if table is None else table, *arguments)


class _TableFacts(NamedTuple):
    """The schema and the rows of a table, and the bytes of each column."""

    schema: Any
    rows: int
    bytes: dict[str, int]


def _describe(table: Any) -> _TableFacts:
    sizes = {name: table[name].nbytes for name in table.schema.names}
    return _TableFacts(table.schema, table.num_rows, sizes)


class RayExecutor:
    """Runs tasks on the cluster that this process is connected to."""

    def describe(self, tables: Sequence[Any]) -> list[_TableFacts]:
        """Return the facts of each Arrow table."""
        task = ray.remote(_describe).options(max_retries=_RETRIES)
        return self._results("read schemas", [task.remote(table) for table in tables])

    def run(
        self, purpose: str, calls: Sequence[Call], done: Callable[[int], None]
    ) -> list[tuple[Any, Any]]:
        """Run all calls; see `rlpost.distributed.driver.Executor`."""
        started = []
        for call in calls:
            table = call.part if isinstance(call.part, ray.ObjectRef) else None
            sent = call._replace(part=None) if table is not None else call
            task = _remote(call.job.options.device).options(
                name=call.task.__name__,
                num_returns=2,
                num_cpus=call.job.options.workers,
                max_retries=_RETRIES,
            )
            started.append(task.remote(__version__, str(Path.cwd()), [ray.put(tuple(sent))], table))
        results = self._results(purpose, [result for result, _ in started], done)
        return [*zip(results, [table for _, table in started], strict=True)]

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
        schemas = [table.schema for table in tables if table.rows] or [tables[0].schema]
        super().__init__(pa.unify_schemas(schemas).empty_table())
        self.rows = sum(table.rows for table in tables)
        self.first_rows = [0, self.rows]
        self._tables = tables

    def bytes_of(self, columns: Sequence[str]) -> int:
        """Return the bytes in memory of some columns."""
        return sum(table.bytes.get(name, 0) for table in self._tables for name in columns)


def enriched(dataset: Dataset, recipe: Recipe, options: Options) -> Dataset:
    """Return the dataset with new columns; raises as `rlpost.ray.advantages`."""
    from ray import data  # noqa: PLC0415 - a second, and it needs pandas

    for name, value, kind, how in (
        ("dataset", dataset, data.Dataset, "ray.data.read_parquet or from_arrow makes one"),
        ("recipe", recipe, Recipe, "rlpost.Recipe(estimator=...) makes one"),
        ("options", options, Options, "rlpost.Options(...) makes them"),
    ):
        if not isinstance(value, kind):
            raise UsageError(
                f"rlpost.ray.advantages: {name} is of type {type(value).__name__}, and "
                f"{kind.__name__} is needed: {how}"
            )
    with connected(options.ray_address):
        blocks: list[Any] = dataset.materialize().to_arrow_refs()
        slots(options.workers or 1, options.device)
        executor, clock = RayExecutor(), Clock(options.started, options.cpu_started)
        tables, state = executor.describe(blocks), load_state(options.state)
        plan = bind(_EmptySource(tables), recipe, state)
        names = emitted(plan.resolved)
        check_clash(plan, names)
        job = Job.of(plan, state, names, options)
        firsts = accumulate((table.rows for table in tables), initial=0)
        filled = zip(blocks, firsts, [table.rows for table in tables], strict=False)
        parts = [InputRows(block, first, rows) for block, first, rows in filled if rows]
        passes = TaskPasses(plan, job, parts, executor, options, clock)
        responses = passes.responses(names)
        return data.from_arrow_refs(passes.last_pass(tasks.enrich, responses)[1])


def advantages(
    files: Sequence[InputFile], targets: Sequence[AnyPath], recipe: Recipe, options: Options
) -> Json:
    """Write an enriched copy of every file; raises and returns as `rlpost.api.advantages`."""
    check_writable(options.state)
    executor, clock = RayExecutor(), Clock(options.started, options.cpu_started)
    with connected(options.ray_address), StagedFiles(targets), StagedOutputs(targets) as staged:
        at_once = slots(options.workers or 1, options.device)  # before anything is read
        source, state = Source(files), load_state(options.state)
        plan = bind(source, recipe, state)
        names = emitted(plan.resolved)
        check_clash(plan, names)
        metadata = run_metadata(plan, source, state, options)
        job = Job.of(plan, state, names, options, metadata)
        parts = parts_of(source, staged.paths, at_once)
        passes = TaskPasses(plan, job, parts, executor, options, clock)
        responses = passes.responses(names)
        notes, _ = passes.last_pass(tasks.write, responses)
        totals = sum((note.totals for note in notes), plan.no_totals)
        reasons = zip(targets, [x for note in notes for x in note.reasons], strict=True)
        rewritten = [f"{target.name}: {reason}" for target, reason in reasons if reason]
        inputs = [file.path for file in files]
        summary = {
            **summarise(plan, responses, totals),
            **run_summary(plan, inputs, job.options.device, targets, rewritten),
            "new_columns": [*names],
        }
        check_findings(summary, options.fail_on)
        with clock.publishing():
            source.check_unchanged("since the run began; run again when no process writes it")
            staged.publish()
    if options.state is not None:
        save_state(options.state, state.after(responses.notes))
    for note in notes:
        clock.count_bytes(**note.bytes)
    return {
        **summary,
        "engine": {"name": "ray", "tasks_at_once": at_once, "partitions": len(parts)},
        "bytes": clock.bytes,
        "seconds": with_tasks(clock.seconds, notes),
    }
