"""What a driver and who runs its tasks say to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlpost.distributed.partition import Json, TaskContext
    from rlpost.distributed.tasks import TaskOutput


class BatchRef(NamedTuple):
    """A batch of a sheet that a task will read: the sheet by the name that the crew gave it."""

    block: Any
    place: int
    table: int = 0
    shift: int = 0
    """These two as `Part` has them."""


class Call(NamedTuple):
    """One task to be run: `task(work, *given, parts)`."""

    task: Callable[..., TaskOutput]
    given: tuple[Any, ...]
    parts: tuple[BatchRef, ...]
    rows: int
    """For progress."""
    tokens: bool
    """It works on tokens, on the device."""


class TaskResult(NamedTuple):
    """What a task gave: its note, and its sheet by name."""

    note: Json
    block: Any


class Executor(Protocol):
    """Who runs tasks, keeps sheets and tells of progress."""

    def run(self, purpose: str, work: TaskContext, calls: Sequence[Call]) -> list[TaskResult]:
        """Run all of these, in any order, each as often as it takes; in the order of the calls.

        Raises:
            RlpostError: what one of the tasks raised.
        """
