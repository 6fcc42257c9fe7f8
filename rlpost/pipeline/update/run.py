"""What a run of an update does beside any other: metadata of inputs, marker and state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpost.errors import UnavailableError
from rlpost.io.parquet.splice_plan import SOURCE_KEY
from rlpost.pipeline.coupled_files import joined_files
from rlpost.pipeline.coupling import coupling_of
from rlpost.pipeline.device_choice import AUTO, DeviceChoice, check_device, choose_device
from rlpost.pipeline.running_state import save_state, state_text
from rlpost.pipeline.update.checks import check_steps, roles_of
from rlpost.pipeline.update.marker import mark, unmark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlpost.pipeline.data import Responses
    from rlpost.pipeline.options import Options
    from rlpost.pipeline.output.metadata import FileMetadata
    from rlpost.pipeline.plan import Plan
    from rlpost.pipeline.running_state import RunState
    from rlpost.pipeline.update.files import Update


class UpdateRun:
    """A run over the chosen files of an update.

    Args:
        update: has the files.
        plan: of the run.
        state: before the run.
        options: of the run.

    Raises:
        UsageError: statistics that are carried from batch to batch cannot continue; see
            `check_steps`.
        UnavailableError: this machine does not have the device.
    """

    def __init__(self, update: Update, plan: Plan, state: RunState, options: Options) -> None:
        check_steps(update, plan, state, options)
        self._update, self._plan, self._state, self._options = update, plan, state, options
        self.device = self._chosen_device()
        """The device of the run."""

    def _chosen_device(self) -> DeviceChoice:
        """Return the device: `auto` is that of the outputs that are up to date, if there are any.

        Raises:
            UnavailableError: this machine does not have it.
        """
        before = [entry.device for entry in self._update.kept.values()]
        if self._options.device != AUTO or not before:
            return choose_device(self._options.device, self._plan.token_bytes)
        try:
            check_device(before[-1])
        except UnavailableError as error:
            raise UnavailableError(
                f"{self._update.output}: earlier files were computed with {error}"
            ) from None
        return DeviceChoice(before[-1], f"computed the earlier files of {self._update.output}")

    def metadata(
        self, responses: Responses, run: FileMetadata, of_file: Callable[..., dict[str, str]]
    ) -> Callable[[Plan, int, Responses, Any], dict[str, str]]:
        """Return a function that returns the metadata of each file, with its input.

        Files that share no batch or group are runs of their own, since a later update may write
        one of them again.

        Args:
            responses: of the run.
            run: the metadata of the run.
            of_file: returns the metadata of a file from its run and the number in it.
        """
        update, source = self._update, self._plan.source
        coupling, rows = coupling_of(self._plan.resolved), source.first_rows
        alike = all({*schema.names} == {*source.schemas[0].names} for schema in source.schemas)
        firsts = joined_files(coupling, responses, rows) if alike else [0] * len(source.files)
        members: dict[int, list[int]] = {}
        for index, first in enumerate(firsts):
            members.setdefault(first, []).append(index)
        runs = {}
        for first, own in members.items():
            counts = [rows[index + 1] - rows[index] for index in own]
            runs[first] = run.of_files([source.files[index] for index in own], counts)
        roles, chosen, device = roles_of(self._plan), [*update.chosen], self.device.name

        def entries(plan: Plan, index: int, responses: Responses, totals: Any) -> dict[str, str]:
            first = firsts[index]
            shift = members[first].index(index) - index
            own = of_file(plan, index, responses, totals, run=runs[first], first=shift)
            return {**own, SOURCE_KEY.decode(): update.entry(chosen[index], roles, device)}

        return entries

    def before_publishing(self, responses: Responses) -> Callable[[list[Path]], None]:
        """Return a function that writes the marker and saves the state after these responses."""
        after, path, update = self._state.after(responses.notes), self._options.state, self._update
        if "batch" in self._plan.columns:
            after = replace(after, step=str(responses.labels["step"][-1]))

        def save(staged: list[Path]) -> None:
            names = [found.name for found in update.chosen]
            files = dict(zip(names, staged, strict=True))
            mark(update.output, files, path, None if path is None else state_text(after))
            if path is not None:
                save_state(path, after)

        return save

    def published(self) -> None:
        """Remove the marker."""
        unmark(self._update.output)
        self._update.written = True
