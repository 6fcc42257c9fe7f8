"""Runs on a Ray cluster, over files and over the blocks of a Ray Dataset.

Ray schedules the tasks, repeats those of lost workers, and stores what they return.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray
from ray import exceptions

from rlpost._version import __version__
from rlpost.display.text import counted
from rlpost.distributed.passes import InputPart, StagedOutputs, TaskPasses, enrich, parts_of
from rlpost.errors import RlpostError, UnavailableError, UsageError
from rlpost.io.outputs import OutputFiles
from rlpost.io.parquet.source import Source, TableSource
from rlpost.io.shutdown import TERMINATED, keep_handlers, received_exit_code
from rlpost.io.system import cores
from rlpost.pipeline import run as local
from rlpost.pipeline.device import AUTO, CPU, TORCH_CPU
from rlpost.pipeline.options import Options
from rlpost.pipeline.output.columns import emitted
from rlpost.pipeline.running_state import load_state
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ray.data import Dataset

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
_BUSY = (  # what to do if a cluster of the run's own does not start
    "its processes have 15 s to start: run again when this machine is less busy, or start a "
    "cluster with `ray start --head` and use --ray-address auto"
)
_ABSENT = (  # and if none answers
    "`ray start --head` starts one, and without --ray-address a new one is started on this machine"
)


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
        cards = (int(node.get(card, 0)) for node in nodes)
        fit = [min(pair) for pair in zip(fit, cards, strict=True)]
    if not sum(fit):
        needs = counted(workers, "CPU") + (f" and a {card}" if card else "")
        other = f"use fewer workers than --workers {workers}"
        other += f", or CPUs in place of --device {device}" if card else ""
        raise UnavailableError(
            f"the Ray cluster has no node with {needs}, which a task needs",
            tip=f"add such a node, or {other}",
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


def _task(version: str, folder: str, sent: list[Any], table: pa.Table | None) -> Any:
    """Run one task.

    Args:
        version: of the driver's rlpost; what another one has sent is not read.
        folder: the start of relative paths, if it exists on this machine.
        sent: the reference to the task and what it gets.
        table: that of the part, if it is one.

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
    task, part, rows = ray.get(sent[0])
    return task(part._replace(table=table), rows)


def run_tasks(
    purpose: str,
    task: Callable[[InputPart, Any], tuple[Any, Any]],
    items: Sequence[tuple[InputPart, Any]],
    options: Options,
    done: Callable[[int], None],
) -> Iterator[tuple[Any, Any]]:
    """Run a task on parts of the input, again where a worker or a node is lost.

    Args:
        purpose: of the pass, in words.
        task: gets a part, and the rows of the table of responses of the part, if there is a table;
            returns what the driver gets, and a table, which stays where it is.
        items: what it gets.
        options: the device and the threads of each task.
        done: gets the number of each item that is done.

    Yields:
        What each task returns, with a reference to its table, in the order of the items.

    Raises:
        RlpostError: what one of the tasks raised.
    """
    threads, here = options.workers, (__version__, str(Path.cwd()))
    remote = _remote(options.device).options(
        name=purpose, num_returns=2, num_cpus=threads, max_retries=_RETRIES
    )
    results, tables = [], []
    for part, rows in items:
        sent = ray.put((task, part._replace(table=None), rows))
        result, table = remote.remote(*here, [sent], part.table)
        results.append(result)
        tables.append(table)
    yield from zip(_results(results, done), tables, strict=True)


def _results(refs: list[Any], report: Callable[[int], None] = lambda _: None) -> Iterator[Any]:
    """Yield what tasks return, in order; cancel the others if one fails.

    Args:
        refs: of the tasks; the list is emptied, so that a result is freed when it was yielded.
        report: gets the number of each task that is done.
    """
    numbers, pending, count = {ref: number for number, ref in enumerate(refs)}, [*refs], len(refs)
    refs.clear()
    results: dict[int, Any] = {}
    first = 0
    try:
        while first < count:
            ready, pending = ray.wait(pending, num_returns=len(pending), timeout=_POLL)
            for ref, result in zip(ready, _got(ready), strict=True):
                number = numbers.pop(ref)
                results[number] = result
                report(number)
            while first in results:
                yield results.pop(first)
                first += 1
    except BaseException:
        for ref in pending:
            ray.cancel(ref, force=True)
        if pending:  # a task that still runs would make files again that are removed next
            with suppress(Exception):
                ray.wait(pending, num_returns=len(pending), timeout=_CANCELLED)
        raise


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
        describe = ray.remote(lambda table: (table.schema, table.num_rows))
        facts = [*_results([describe.remote(block) for block in blocks])]
        schemas = [schema for schema, rows in facts if rows] or [facts[0][0]]
        source = TableSource(pa.unify_schemas(schemas).empty_table(), "dataset")
        source.rows = sum(rows for _, rows in facts)
        plan = local.bind(source, recipe, load_state(options.state))
        names = emitted(plan.resolved)
        local.check_clash(plan, names)
        firsts = accumulate((rows for _, rows in facts), initial=0)
        filled = zip(blocks, firsts, facts, strict=False)
        parts = [InputPart(first, rows, block) for block, first, (_, rows) in filled if rows]
        passes = TaskPasses(plan, options, run=run_tasks, parts=parts)
        results = passes.results(-1, enrich, passes.responses(names))
        return data.from_arrow_refs([table for _, table in results])


def advantages(
    files: Sequence[InputFile], targets: Sequence[AnyPath], recipe: Recipe, options: Options
) -> Json:
    """Write an enriched copy of every file; raises and returns as `rlpost.api.advantages`."""
    with (
        connected(options.ray_address),
        OutputFiles(targets) as outputs,
        StagedOutputs(targets) as staged,
    ):
        at_once = slots(options.workers or 1, options.device)  # before anything is read
        source = Source(files)
        parts = parts_of(source, staged.paths, at_once)
        start = partial(TaskPasses, run=run_tasks, parts=parts)
        finish = staged.write
        plan = local.bind(source, recipe, load_state(options.state))
        summary, _ = local.write(plan, outputs, options, start=start, finish=finish)
    engine = {"name": "ray", "tasks_at_once": at_once, "partitions": len(parts)}
    return {**summary, "engine": engine}
