"""The manifest of a planned run: all that its shards need to know, as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost._version import __version__
from rlpost.errors import DataError, UsageError
from rlpost.kernels.rewards import RunningMoments
from rlpost.parquet.divide import Range
from rlpost.parquet.inputs import InputFile
from rlpost.parquet.places import place_of
from rlpost.parquet.stamps import Stamp
from rlpost.provenance import Whole
from rlpost.recipe import Recipe
from rlpost.row_facts import GroupFacts, RowFacts
from rlpost.schema import ColumnMap
from rlpost.tasks.crew import Named
from rlpost.tasks.drive import Settled
from rlpost.tasks.lots import Lot, Work

if TYPE_CHECKING:
    from rlpost.parquet.places import Place
    from rlpost.tasks.lots import Json

_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """A run whose responses are settled, and whose files are to be written."""

    work: Work
    lots: list[Lot]
    settled: Settled
    inputs: list[str]
    """As the user named them."""
    targets: list[Place]
    """The names that the files will get."""
    run: str
    """The name of the run; see `Waiting`."""
    state: str | None = None
    """The file of running moments that the run goes on with."""
    overwrite: bool = False
    """Whether files that have the targets' names are replaced."""

    def to_json(self) -> str:
        """The manifest as text."""
        work, found = self.work, self.settled
        groups = found.facts.groups
        return json.dumps(
            {
                "manifest": _VERSION,
                "rlpost": __version__,
                "recipe": work.recipe.model_dump(mode="json"),
                "columns": asdict(work.columns),
                "running": {name: asdict(one) for name, one in work.running.items()},
                "bundles": work.bundles,
                "whole": None if work.whole is None else asdict(work.whole),
                "device": work.device,
                "chunk_tokens": work.chunk_tokens,
                "lots": [_lot_to_json(lot) for lot in self.lots],
                "parts": found.parts,
                "labels": found.labels,
                "own": found.own,
                "facts": {
                    "sizes": None if groups is None else [*groups.sizes.items()],
                    "zero_variance": 0 if groups is None else groups.zero_variance,
                    "empty": found.facts.empty,
                    "coefficients": found.facts.coefficients,
                    "unwhitened": found.facts.unwhitened,
                },
                "after": found.running,
                "inputs": self.inputs,
                "targets": [str(target) for target in self.targets],
                "run": self.run,
                "state": self.state,
                "overwrite": self.overwrite,
            }
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """The manifest that a text holds.

        Args:
            text: what `to_json` gave.
            where: what errors call it.

        Raises:
            UsageError: another version of rlpost wrote it.
            DataError: it is no manifest.
        """
        try:
            table = json.loads(text)
            if table["manifest"] != _VERSION or table["rlpost"] != __version__:
                raise UsageError(
                    f"{where}: planned by rlpost {table['rlpost']}, and this is {__version__}: "
                    "run `rlpost plan` again"
                )
            return cls(
                _work_of(table),
                [_lot_of(lot) for lot in table["lots"]],
                _settled_of(table),
                table["inputs"],
                [place_of(target) for target in table["targets"]],
                table["run"],
                table["state"],
                table["overwrite"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{where}: not what `rlpost plan` writes ({error!r}): run it again"
            ) from None


def _work_of(table: Json) -> Work:
    return Work(
        Recipe.model_validate(table["recipe"]),
        ColumnMap(**table["columns"]),
        {name: RunningMoments(**values) for name, values in table["running"].items()},
        table["bundles"],
        None if table["whole"] is None else Whole(**table["whole"]),
        table["device"],
        table["chunk_tokens"],
    )


def _settled_of(table: Json) -> Settled:
    facts = table["facts"]
    sizes = facts["sizes"]
    groups = None if sizes is None else GroupFacts(Counter(dict(sizes)), facts["zero_variance"])
    return Settled(
        [tuple(Named(*part) for part in parts) for parts in table["parts"]],
        table["labels"],
        table["own"],
        RowFacts({}, groups, facts["empty"], facts["coefficients"], facts["unwhitened"]),
        table["after"],
    )


def _lot_to_json(lot: Lot) -> Json:
    return {
        "files": [[_absolute(f.path), str(f.relative), f.partitions] for f in lot.files],
        "targets": [_absolute(target) for target in lot.targets],
        "stamps": lot.stamps,
        "first": lot.first,
        "rows": lot.rows,
        "part": lot.part,
    }


def _absolute(place: Place) -> str:
    """Where a shard finds it that was started in another folder."""
    return str(place.absolute()) if isinstance(place, Path) else str(place)


def _lot_of(table: Json) -> Lot:
    def file_of(path: str, relative: str, partitions: list[list[str]]) -> InputFile:
        pairs: list[Any] = [tuple(pair) for pair in partitions]
        return InputFile(place_of(path), Path(relative), tuple(pairs))

    return Lot(
        tuple(file_of(*file) for file in table["files"]),
        tuple(place_of(target) for target in table["targets"]),
        tuple(None if stamp is None else Stamp(*stamp) for stamp in table["stamps"]),
        table["first"],
        table["rows"],
        None if table["part"] is None else Range(*table["part"]),
    )
