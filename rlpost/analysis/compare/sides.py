"""What is compared: the advantages of enriched files, or of recipes run on one input."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlpost.analysis.compare import streams
from rlpost.analysis.responses.columns import NAMES
from rlpost.errors import DataError
from rlpost.recipe.roles import closest, resolve

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from rlpost.analysis.compare.streams import Chunk
    from rlpost.api import Options
    from rlpost.io.parquet.source import Source
    from rlpost.recipe.recipe import Recipe
    from rlpost.recipe.roles import ColumnMap


Json = dict[str, Any]
_CLIPS = ("reward_clip", "token_reward_clip", "advantage_clip")


@dataclass
class FileSide:
    """The advantages that an input holds."""

    name: str
    source: Source
    columns: ColumnMap
    column: str

    def chunks(self) -> Generator[Chunk]:
        """Its advantages, in its order."""
        return streams.read(self.source, self.column)

    def rates(self) -> Json | None:
        """What was clipped and masked, as the files' metadata say; None where they do not."""
        stored = [(f.metadata or {}).get(b"rlpost.summary") for f in self.source.footers]
        if not all(stored):
            return None
        return _joined([_rates(json.loads(text)) for text in stored if text])


@dataclass
class RecipeSide:
    """The advantages that a recipe gives, computed as they are read and written nowhere."""

    name: str
    inputs: Sequence[str]
    recipe: Recipe
    options: Options
    summary: Json = field(default_factory=dict)

    def chunks(self) -> Generator[Chunk]:
        """Its advantages, in the order of the input; the rates are known at the end."""
        from rlpost import api  # noqa: PLC0415 - torch takes a second to import
        from rlpost.pipeline import run  # noqa: PLC0415 - torch takes a second to import
        from rlpost.pipeline.summary import summarise  # noqa: PLC0415
        from rlpost.pipeline.totals import ExactTotals  # noqa: PLC0415

        job = api.plan(self.inputs, self.recipe)
        engine = run.engine_for(job, self.options)
        responses = engine.responses()
        tally = ExactTotals()
        for file in range(len(job.source.files)):
            for made in engine.last_pass(file, responses, ("advantages",), lambda batch: batch):
                tally += made.totals
                for _, columns in made.parts:
                    yield streams.chunk_of(columns.column("advantages"))
        self.summary = summarise(job, responses, tally)

    def rates(self) -> Json | None:
        """What was clipped and masked, of the run that `chunks` made."""
        return _rates(self.summary)


Side = FileSide | RecipeSide


def file_side(source: Source, columns_map: Mapping[str, str], column: str | None) -> FileSide:
    """The advantages of an input.

    Args:
        source: the input, which may be several files.
        columns_map: role to column, as `--map` says.
        column: the column to compare; None: `advantages`, or else `advantage`.

    Raises:
        DataError: there is no such column, or no rows.
    """
    columns = resolve(source.columns, columns_map, source.name)
    names = NAMES["advantage"] if column is None else (column,)
    found = next((name for name in names if name in source.columns), None)
    if found is None:
        hint = closest(names[0], source.columns)
        raise DataError(
            f"{source.name}: no column {names[0]!r} to compare{hint}; `rlpost advantages` writes "
            "one, --column names another, --estimator or --preset compute it"
        )
    if not source.rows:
        raise DataError(f"{source.name}: there are no rows, so there is nothing to compare")
    return FileSide(source.name, source, columns, found)


def _rates(summary: Json) -> Json:
    """The rates of a run, by what was masked or clipped."""
    found = {
        f"masked: {name}": {"count": facts["responses"], "rate": facts["rate"]}
        for name, facts in summary["masked"].items()
    }
    for name in _CLIPS:
        clip = summary.get(name)
        if clip is not None:
            found[name] = {
                "count": clip["count"], "rate": clip["fraction"], "bound": clip["bound"]
            }  # fmt: skip
    return found


def _joined(parts: list[Json]) -> Json:
    """The rates of several files: counts added, rates weighted by what each was a share of."""
    found: Json = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        own = [part[name] for part in parts if name in part]
        count = sum(facts["count"] for facts in own)
        bases = [facts["count"] / facts["rate"] for facts in own if facts["rate"]]
        known = len(bases) == len(own)
        rate = own[0]["rate"] if len(own) == 1 else count / sum(bases) if known else None
        found[name] = {**own[0], "count": count, "rate": 0.0 if not count else rate}
    return found
