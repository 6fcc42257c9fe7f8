"""Ray runs the tasks: it schedules, retries those of lost workers, keeps and spills the sheets.

A run over the blocks of a Ray Dataset.

A run over files on Ray: `rlpost advantages --engine ray`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray
import ray.data
from ray import exceptions

from rlpost._version import __version__
from rlpost.distributed.driver import bucket_count, prepare, settled
from rlpost.distributed.executor import TaskResult
from rlpost.distributed.last_pass import busy, files_of, summary_from, written
from rlpost.distributed.partition import Block, Part, TaskContext, check_inputs, go_to
from rlpost.distributed.staging import StagedOutputs
from rlpost.errors import RlpostError, UnavailableError, UsageError
from rlpost.io.parquet.inputs import join_metadata
from rlpost.io.parquet.source import TableSource, input_metadata
from rlpost.io.shutdown import TERMINATED, received_exit_code, reinstall_handlers
from rlpost.io.threads import cores
from rlpost.kernels.rewards import RunningMoments
from rlpost.pipeline.options import Options
from rlpost.pipeline.output import emitted
from rlpost.pipeline.outputs import Outputs, check_writable
from rlpost.pipeline.run import bind, check_clash
from rlpost.pipeline.running_state import load_state, save_state
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlpost.distributed.executor import Call
    from rlpost.distributed.partition import Json
    from rlpost.distributed.tasks import TaskOutput
    from rlpost.io.parquet.inputs import InputFile, InputMetadata
    from rlpost.io.paths import AnyPath
    from rlpost.io.progress import Reporter


_RETRIES = 8  # of a task whose worker was lost; a task that fails fails at once
_PATIENCE = 10  # seconds for a cluster to answer
_NO_IMPORT = "failed to import on the worker"  # Ray's words
_LOOK = 0.5  # seconds between two looks at what is done


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A connection to a cluster: the one this process has, the one at an address, or a new one.

    A cluster of this machine is started where there is no address (nor RAY_ADDRESS); what is
    begun here ends with the block.

    Raises:
        UnavailableError: there is none at the address, or none can be started.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that is started here
    address = address or os.environ.get("RAY_ADDRESS") or "local"  # Ray would look for others'
    if "NO_COLOR" in os.environ or not sys.stderr.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    with redirect_stdout(sys.stderr):  # Ray tells of lost workers there, until it has shut down
        _connect(address)
        try:
            yield
        except SystemExit as ended:  # Ray's calls make code 1 of any
            raise SystemExit(received_exit_code() or ended.code) from None
        finally:
            ray.shutdown()
            reinstall_handlers()


def _connect(address: str) -> None:
    """Connect to the cluster at an address, or start one where it is `local`.

    Raises:
        UnavailableError: there is none, or none can be started.
    """
    own: dict[str, Any] = (
        {"num_cpus": cores(), "include_dashboard": False} if address == "local" else {}
    )
    try:
        _check_reachable(address)
        ray.init(address=address, log_to_driver=False, logging_level="error", **own)
    except SystemExit as ended:  # from a handler of Ray's, which has other codes
        raise SystemExit(received_exit_code() or TERMINATED) from ended
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = "--engine ray" if address == "local" else f"--ray-address {address}"
        line = next(iter(str(error).splitlines()), "")
        raise UnavailableError(
            f"{where}: no Ray cluster: {line}; `ray start --head` starts one, and without "
            "--ray-address one of this machine's own is started"
        ) from None
    finally:
        reinstall_handlers()  # Ray takes SIGTERM over while it connects


def _check_reachable(address: str) -> None:
    """Raise OSError where nobody answers at HOST:PORT; Ray would ask for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


def slots(workers: int, device: str) -> int:
    """How many tasks of this many threads the cluster runs at once, with a GPU each on `cuda`.

    Raises:
        UnavailableError: no node of the cluster has room for one; Ray would wait for such a node.
    """
    gpus = int(device.startswith("cuda"))
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    rooms = [(int(node.get("CPU", 0)) // workers, int(node.get("GPU", 0))) for node in nodes]
    fit = [min(room) if gpus else room[0] for room in rooms]
    if not sum(fit):
        needs = f"{workers} CPUs{' and a GPU' if gpus else ''}"
        raise UnavailableError(
            f"the Ray cluster has no node with {needs}, which a task needs with --workers "
            f"{workers} --device {device}"
        )
    return sum(fit)


def _task(
    task: Callable[..., TaskOutput], work: TaskContext, given: tuple[Any, ...], parts: Any
) -> Any:
    """Run one task; sheets come by reference, one after another, so that few are held."""
    go_to(work.folder)
    if given and isinstance(given[0], Block):
        given = (given[0]._replace(table=ray.get(given[0].table)), *given[1:])
    read = (Part(ray.get(block), *rest) for block, *rest in parts)
    return task(work, *given, read) if parts else task(work, *given, ())


def _look(version: str, folder: str, files: Sequence[InputFile]) -> InputMetadata:
    """Read some footers; raises UnavailableError where the driver's rlpost is another."""
    if version != __version__:
        raise UnavailableError(
            f"the Ray cluster's workers have rlpost {__version__}, and this is {version}: all "
            "nodes need the same"
        )
    go_to(folder)
    return input_metadata(files)


def _describe(table: Any) -> tuple[Any, int]:
    """Schema and rows of a table."""
    return table.schema, table.num_rows


class RayExecutor:
    """Runs tasks on the cluster that this process is connected to.

    Args:
        reporter: who is told of progress.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def look(self, parts: Sequence[Sequence[InputFile]]) -> list[InputMetadata]:
        """Surveys of some files each."""
        look, folder = ray.remote(_look).options(max_retries=_RETRIES), str(Path.cwd())
        return self._results([look.remote(__version__, folder, part) for part in parts])

    def described(self, tables: Sequence[Any]) -> list[tuple[Any, int]]:
        """Schema and rows of Arrow tables."""
        describe = ray.remote(_describe).options(max_retries=_RETRIES)
        return self._results([describe.remote(table) for table in tables])

    def run(self, purpose: str, work: TaskContext, calls: Sequence[Call]) -> list[TaskResult]:
        """Run all of these; see `rlpost.distributed.executor.Executor`."""
        total = sum(call.rows for call in calls)
        if total:
            self._reporter.start(purpose, total)
        on = {True: ray.put(work), False: ray.put(replace(work, device="cpu"))}
        gpus = {True: int(work.device.startswith("cuda")), False: 0}
        run = ray.remote(_task)
        started = [
            run.options(
                name=call.task.__name__,
                num_returns=2,
                num_cpus=work.workers,
                num_gpus=gpus[call.tokens],
                max_retries=_RETRIES,
            ).remote(call.task, on[call.tokens], call.given, call.parts)
            for call in calls
        ]
        notes = self._results(
            [note for note, _ in started],
            lambda place: self._reporter.advance(calls[place].rows) if total else None,
        )
        return [TaskResult(note, block) for note, (_, block) in zip(notes, started, strict=True)]

    def _results(self, refs: list[Any], tell: Callable[[int], None] = lambda _: None) -> list[Any]:
        places = {ref: place for place, ref in enumerate(refs)}
        found: dict[int, Any] = {}
        waiting = refs
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_LOOK)
                for ref, note in zip(ready, _got(ready), strict=True):
                    found[places[ref]] = note
                    tell(places[ref])
        except BaseException:
            for ref in waiting:
                ray.cancel(ref, force=True)
            raise
        return [found[place] for place in range(len(refs))]


def _got(refs: Sequence[Any]) -> list[Any]:
    """What tasks gave; what one of them raised, or that the cluster lost it for good, is raised."""
    try:
        found: list[Any] = ray.get(refs)
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
        raise UnavailableError(
            f"the Ray cluster lost a task for good ({type(error).__name__}): {line}"
        ) from None
    return found


class _Known(TableSource):
    """What binding asks of a source, of a table whose rows are elsewhere."""

    name = "dataset"

    def __init__(self, schema: pa.Schema, rows: int) -> None:
        super().__init__(schema.empty_table())
        self.rows = rows


def enriched(dataset: ray.data.Dataset, recipe: Recipe, options: Options) -> ray.data.Dataset:
    """The dataset with new columns; raises and returns as `rlpost.ray.advantages`."""
    _check_kinds(dataset, recipe, options)
    with connected(options.ray_address):
        refs: list[Any] = dataset.materialize().to_arrow_refs()
        slots(options.workers or 1, options.device)
        executor = RayExecutor(options.reporter)
        known = executor.described(refs)
        schema = pa.unify_schemas([schema for schema, rows in known if rows] or [known[0][0]])
        running = load_state(options.state)
        plan = bind(_Known(schema, sum(rows for _, rows in known)), recipe, running)
        check_clash(plan, emitted(plan.resolved))
        work = TaskContext(
            recipe,
            plan.columns,
            running,
            bucket_count(plan, plan.source.rows),
            device="cpu" if options.device == "auto" else options.device,
            chunk_tokens=options.chunk_tokens,
            workers=options.workers or 1,
        )
        partitions = [Block(ref, rows) for ref, (_, rows) in zip(refs, known, strict=True) if rows]
        _, tables = written(work, partitions, settled(work, partitions, executor), executor)
        return ray.data.from_arrow_refs(tables)


def _check_kinds(dataset: object, recipe: object, options: object) -> None:
    """Raise UsageError where an argument is not what it should be."""
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


_FILES_A_LOOK = 64  # footers that one task reads


def advantages(
    files: Sequence[InputFile], targets: Sequence[AnyPath], recipe: Recipe, options: Options
) -> Json:
    """Write every file's twin, enriched; raises and returns as `rlpost.api.advantages`."""
    running = load_state(options.state)
    check_writable(options.state)
    begun = time.perf_counter()
    with connected(options.ray_address), Outputs(targets):
        waiting, executor = StagedOutputs(targets), RayExecutor(options.reporter)
        connect = time.perf_counter()
        free = slots(options.workers or 1, options.device)
        look = surveyed(executor, files)
        run = prepare(look, waiting.places, recipe, running, options, free)
        waiting.begin()
        try:
            found = settled(run.work, run.partitions, executor)
            reduce = time.perf_counter()
            notes, _ = written(run.work, run.partitions, found, executor)
            check_inputs(run.partitions, "since the run began; run again when nobody writes it")
            marks = [file["mark"] for file in files_of(notes)]
            waiting.publish(marks, overwrite=options.overwrite)
        except BaseException:
            waiting.discard()
            raise
    if options.state is not None:
        own = {name: RunningMoments(**values) for name, values in found.running.items()}
        save_state(options.state, {**running, **own})
    end = time.perf_counter()
    passes = {"connect": connect - begun, "settle": reduce - connect, "write": end - reduce}
    return {
        **summary_from(run.plan, found, notes, [str(file.path) for file in files], targets),
        "engine": {"name": "ray", "tasks_at_once": free, "lots": len(run.partitions)},
        "seconds": {"total": end - begun, "passes": passes, "busy": busy(notes)},
    }


def surveyed(executor: RayExecutor, files: Sequence[InputFile]) -> InputMetadata:
    """The survey of all files, whose footers tasks read."""
    parts = [files[at : at + _FILES_A_LOOK] for at in range(0, len(files), _FILES_A_LOOK)]
    return join_metadata(executor.look(parts))
