"""The metadata of an enriched file: how it was made, and which file of which run it is.

The statistics of a run may span its files. So each file records how many files the run had, its
own number, and a digest of all file names and row counts that is the same for all files of a run.
A reader treats the metadata as untrusted data: it executes nothing that a file names.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from rlpost._version import __version__
from rlpost.display.controls import in_utf8
from rlpost.errors import DataError, UsageError
from rlpost.recipe import semantics
from rlpost.recipe.named import with_named
from rlpost.recipe.recipe import Recipe
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow.parquet as pq

    from rlpost.io.parquet.inputs import InputFile
    from rlpost.io.paths import AnyPath
    from rlpost.pipeline.running_state import RunState


Json = dict[str, Any]
RUN_KEY = "rlpost.run"
PRESET_KEY = "rlpost.preset"
SEMANTICS_KEY = "rlpost.semantics"
_DEEPEST = 50  # lists within lists
_LONGEST = 400  # characters of an error in the metadata


@dataclass(frozen=True)
class FileMetadata:
    """The metadata of an enriched file; without `file` and `summary`, that of a whole run."""

    recipe: Recipe
    run: str
    """The same for all files of a run."""
    files: int
    """Files of the run."""
    rows: int
    """Rows of all files of the run; -1 if unknown."""
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Running reward statistics at the start of the run, by domain, if it used any."""
    kl_coef: float | None = None
    """The adaptive KL coefficient at the start of the run, if a state file had one."""
    asked: dict[str, str] = field(default_factory=dict)
    """The preset that the user requested, and the estimator by the framework's name."""
    mask: dict[str, str] = field(default_factory=dict)
    """The metadata entry of the column `sample_mask`, if the run writes it."""
    file: int = 0
    """The number of the file in the run, from 0."""
    summary: Json | None = None
    """The summary of the file; None in a file of `rlpost loss`."""
    version: str = __version__
    """The version of rlpost that wrote the file."""
    semantics: int = SEMANTICS
    """The semantics of its numbers; see `rlpost.recipe.semantics`."""

    def entries_of(self, number: int, path: AnyPath, summary: Json) -> dict[str, str]:
        """Return the key-value metadata of one file of the run: its number, input and summary."""
        run: Json = {"run": self.run, "file": number, "files": self.files, "rows": self.rows}
        run |= {"running": self.running} if self.running else {}
        run |= {"kl_coef": self.kl_coef} if self.kl_coef is not None else {}
        return {
            "rlpost.version": self.version,
            SEMANTICS_KEY: str(self.semantics),
            "rlpost.recipe": self._recipe_text,
            "rlpost.input": in_utf8(path.name),
            "rlpost.summary": json.dumps(summary),
            RUN_KEY: json.dumps(run),
            **self.mask,
            **({PRESET_KEY: json.dumps(self.asked)} if self.asked else {}),
        }

    @cached_property
    def _recipe_text(self) -> str:
        return self.recipe.model_dump_json()

    @classmethod
    def read(cls, path: str, metadata: Mapping[bytes, bytes]) -> Self:
        """Return the metadata in the footer of an enriched file.

        Its recipe may name code and files; see `rlpost.recipe.named`.

        Args:
            path: of the file, for errors.
            metadata: the key-value metadata of its footer.

        Raises:
            DataError: the file is not enriched, or its metadata is damaged.
        """
        own = {key: value for key, value in metadata.items() if key.startswith(b"rlpost.")}
        text = {key.decode(errors="replace"): value for key, value in own.items()}
        if "rlpost.recipe" not in text:
            raise DataError(
                f"{path}: rlpost advantages did not write this file: its metadata has no "
                "`rlpost.recipe`"
            )
        try:
            version = text.get("rlpost.version", b"unknown").decode()
            number = stored_semantics(metadata)
            recipe = _recipe_of(path, text["rlpost.recipe"], version)
            alone = {"run": path, "file": 0, "files": 1, "rows": -1}
            run = json.loads(text[RUN_KEY]) if RUN_KEY in text else alone
            summary = _parsed(text["rlpost.summary"]) if "rlpost.summary" in text else None
            found = cls(recipe, **run, summary=summary, version=version, semantics=number)
            found.check()
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise DataError(f"{path}: its metadata is damaged: {cut(error)}") from None
        except RecursionError:
            raise DataError(f"{path}: its metadata is damaged: nested too deeply") from None
        return found

    def with_estimator(self, estimator: str | None, where: str) -> Self:
        """Return the metadata with the user's estimator; arguments and errors as `with_named`."""
        recipe, summary = with_named(self.recipe, estimator, where), self.summary
        if summary is not None and recipe.estimator != self.recipe.estimator:
            old, new = (json.dumps(one.estimator)[1:-1] for one in (self.recipe, recipe))
            own = {"estimator": recipe.estimator, "computes": summary.get("computes")}
            own["computes"] = json.loads(json.dumps(own["computes"]).replace(old, new))
            summary = {**summary, **own}
        return replace(self, recipe=recipe, summary=summary)

    def check(self) -> None:
        """Raise TypeError, LookupError or AttributeError if a value has the wrong type."""
        if self.summary is not None:
            _ = [role["column"].strip() for role in self.summary["roles"].values()]
        for number in (self.file, self.files, self.rows):
            if not isinstance(number, int):
                raise TypeError(f"{RUN_KEY} has {number!r} as a number")
        if not isinstance(self.run, str):
            raise TypeError(f"{RUN_KEY} has {self.run!r} as the name of the run")
        if self.running or self.kl_coef is not None:
            moments = self.state.running.values()
            _ = [float(number) for one in moments for number in vars(one).values()]

    @property
    def state(self) -> RunState:
        """The state before the first batch of the run; TypeError or ValueError if it is damaged."""
        from rlpost.pipeline.running_state import RunState  # noqa: PLC0415 - slow to import

        return RunState.of({"running": self.running, "kl_coef": self.kl_coef})

    @property
    def comparable(self) -> bool:
        """Whether recomputed numbers must be equal."""
        return self.semantics == SEMANTICS

    @property
    def notes(self) -> list[str]:
        """Reasons why the file cannot be compared in full."""
        other = not self.comparable
        return [
            *(["it has no summary to compare"] if self.summary is None else []),
            *([f"it was {_written_by(self.version)}"] if self.version != __version__ else []),
            *([f"it has {semantics.describe(self.semantics)}"] if other else []),
            *(["its summary is not compared"] if other and self.summary is not None else []),
        ]


def stored_semantics(metadata: Mapping[bytes, bytes]) -> int:
    """Return the semantics in the key-value metadata of an output.

    Raises:
        KeyError: it has none.
        ValueError: it is invalid.
    """
    return semantics.parse(metadata[SEMANTICS_KEY.encode()].decode(errors="replace"))


def semantics_warnings(files: Sequence[InputFile], footers: Sequence[pq.FileMetaData]) -> list[str]:
    """Return warnings of enriched files whose advantages have other semantics than this version's.

    Args:
        files: of an input.
        footers: theirs. Files without a recipe are of other programs, and are ignored.
    """
    names: dict[int, list[str]] = {}
    for file, footer in zip(files, footers, strict=True):
        stored = footer.metadata or {}
        with suppress(KeyError, ValueError):
            if b"rlpost.recipe" in stored and (number := stored_semantics(stored)) != SEMANTICS:
                names.setdefault(number, []).append(file.path.name)
    return [
        f"{own[0]}{f' and {len(own) - 1} more' if own[1:] else ''}: the advantages have "
        f"{semantics.describe(number)}"
        for number, own in names.items()
    ]


def _parsed(text: bytes) -> Any:
    """Return a value from JSON; raise RecursionError if it is nested deeper than rlpost writes."""
    level = [value := json.loads(text)]
    for _ in range(_DEEPEST):
        lists = [[*one.values()] if isinstance(one, dict) else one for one in level]
        level = [inner for one in lists if isinstance(one, list) for inner in one]
    if level:
        raise RecursionError
    return value


def cut(error: object) -> str:
    """Return the start of an error's text, which may quote all of a file's metadata."""
    text = str(error)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _written_by(version: str) -> str:
    here = "" if version == __version__ else f", this is {__version__}"
    return f"written by rlpost {version}{here}"


def _recipe_of(path: str, text: bytes, version: str) -> Recipe:
    """Return the recipe in a file's metadata.

    Raises:
        DataError: the recipe is invalid: the data is wrong, not the command line.
    """
    stored = _parsed(text)
    if not isinstance(stored, dict) or "estimator" not in stored:  # that of a run has all fields
        raise DataError(f"{path}: its metadata has no recipe: `rlpost.recipe` is {cut(stored)}")
    try:
        recipe = Recipe.of(stored, "rlpost.recipe")
    except UsageError as error:
        raise DataError(
            f"{path}: the recipe in its metadata, {_written_by(version)}, is invalid: {cut(error)}"
        ) from None
    return recipe
