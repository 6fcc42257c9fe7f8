"""Executors: they run the tasks that a driver calls, and store the blocks that tasks return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlpost.distributed.partition import Json, TaskContext
    from rlpost.distributed.tasks import TaskOutput


class BatchRef(NamedTuple):
    """A reference to a batch of a block, for a task that will read it."""

    block: Any
    """The executor's reference to the block."""
    batch: int
    table: int = 0
    """As in `LoadedBatch`."""
    shift: int = 0
    """As in `LoadedBatch`."""


class Call(NamedTuple):
    """The call of one task: `task(context, *arguments, batches)`."""

    task: Callable[..., TaskOutput]
    arguments: tuple[Any, ...]
    batches: tuple[BatchRef, ...]
    rows: int
    """For progress."""
    tokens: bool
    """Whether it computes on tokens, on the device."""


class TaskResult(NamedTuple):
    """What a task returned: its note, and a reference to its block."""

    note: Json
    block: Any


class Executor(Protocol):
    """Runs tasks, stores their blocks and reports progress."""

    def run(self, purpose: str, context: TaskContext, calls: Sequence[Call]) -> list[TaskResult]:
        """Run all calls, in any order, and repeat those that fail; return results in call order.

        Raises:
            RlpostError: what one of the tasks raised.
        """
